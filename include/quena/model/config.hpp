// SPDX-License-Identifier: MIT
// The shape of a Llama: from config.json, or from the metadata of a GGUF file, checked and with the defaults filled in.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../core/error.hpp"
#include "../io/checkpoint.hpp"
#include "../io/gguf.hpp"
#include "../io/json_fields.hpp"
#include "../quant/gguf_blocks.hpp"
#include "rope.hpp"

namespace quena::inline QUENA_ABI {

/// A Llama in numbers. After read_config() every value is in range and they fit together.
struct llama_config {
  std::size_t hidden_size = 0;        ///< width of the residual stream
  std::size_t intermediate_size = 0;  ///< width inside the feed-forward block
  std::size_t n_layers = 0;
  std::size_t n_heads = 0;     ///< of queries
  std::size_t n_kv_heads = 0;  ///< of keys and values; divides n_heads
  std::size_t head_dim = 0;    ///< even; n_heads * head_dim need not be hidden_size
  std::size_t vocab_size = 0;
  std::size_t max_position_embeddings = 0;  ///< the context that the model was made for
  float rms_norm_eps = 0;
  rope_config rope;
  bool tie_word_embeddings = false;  ///< the output matrix is the embedding
  bool attention_bias = false;       ///< q, k, v and o have biases
  bool mlp_bias = false;             ///< gate, up and down have biases
  std::optional<std::int32_t> bos_token_id;
  std::vector<std::int32_t> eos_token_ids;  ///< of this file only, see read_generation_defaults()
  std::string dtype;                        ///< the file's word for the type of its weights, may be empty
};

namespace detail {

/// Upper limits: generous for any Llama, small enough that no product of them overflows and no loop over layers gets long.
struct config_limits {
  static constexpr std::uint64_t width = 1u << 24, layers = 4096, heads = 1u << 16, head_dim = 1u << 13, vocab = 1u << 26, positions = (1u << 31) - 1;
};

/// What both sources have in common. `name` translates our field names into the file's.
inline void check_config(const llama_config& c, std::string_view file) {
  const auto bad = [&](const error_message& message) { fail(errc::malformed, "config", message, file); };
  if (c.n_heads % c.n_kv_heads != 0)
    bad({"expected a number of heads that is a multiple of the key/value heads, got ", c.n_heads, " and ", c.n_kv_heads});
  if (c.head_dim == 0 || c.head_dim % 2 != 0 || c.head_dim > config_limits::head_dim)
    bad({"expected an even head_dim from 2 to ", config_limits::head_dim, ", got ", c.head_dim});
  if (!(c.rms_norm_eps > 0 && c.rms_norm_eps <= 1)) bad("expected an epsilon above 0 and up to 1 in f32");

  const rope_config& r = c.rope;
  const auto positive = [&](double x, const char* what) {
    if (!(x > 0 && x <= 1e12)) bad({"rope: expected ", what, " above 0 and up to 1e12, got ", x});
  };
  positive(r.theta, "theta");
  positive(r.factor, "factor");
  if (r.type == rope_type::yarn && r.theta <= 1) bad({"rope: expected theta above 1 for yarn, got ", r.theta});
  if (r.type == rope_type::yarn || r.type == rope_type::llama3) positive(static_cast<double>(r.original_max_position_embeddings), "original_max_position_embeddings");
  if (r.type == rope_type::yarn) {
    positive(r.beta_slow, "beta_slow");
    positive(r.beta_fast, "beta_fast");
    if (r.beta_fast < r.beta_slow) bad({"rope: expected beta_fast of at least beta_slow, got ", r.beta_fast, " and ", r.beta_slow});
    positive(rope_attention_factor(r), "attention_factor");
  }
  if (r.type == rope_type::llama3) {
    positive(r.low_freq_factor, "low_freq_factor");
    positive(r.high_freq_factor, "high_freq_factor");
    if (r.high_freq_factor < r.low_freq_factor)
      bad({"rope: expected high_freq_factor of at least low_freq_factor, got ", r.high_freq_factor, " and ", r.low_freq_factor});
  }
  if (r.type == rope_type::dynamic && c.head_dim == 2) bad("rope: expected head_dim above 2 for dynamic");
  (void)inv_freq(r, c.head_dim, c.max_position_embeddings);  // throws where the values together give no finite frequencies
}

/// rope_scaling as of transformers 4, or rope_parameters as of 5 (which also holds theta); `type` is the older name of rope_type.
inline rope_config parse_rope(const json_fields& config, std::size_t max_position_embeddings) {
  rope_config r;
  r.max_position_embeddings = r.original_max_position_embeddings = max_position_embeddings;
  r.theta = config.positive("rope_theta").value_or(r.theta);
  if (const std::optional<double> part = config.positive("partial_rotary_factor"); part && *part != 1)
    config.wrong("partial_rotary_factor", "1 (whole heads are rotated)", *config.find("partial_rotary_factor"), errc::unsupported);

  const char* const key = config.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  if (!config.has(key)) return r;
  if (!config.find(key)->is_object()) config.wrong(key, "an object", *config.find(key));
  const json_fields scaling(*config.find(key), "config", config.file(), std::string(key) + ".");
  r.theta = scaling.positive("rope_theta").value_or(r.theta);
  if (const std::optional<double> part = scaling.positive("partial_rotary_factor"); part && *part != 1)
    scaling.wrong("partial_rotary_factor", "1 (whole heads are rotated)", *scaling.find("partial_rotary_factor"), errc::unsupported);

  const char* const type_key = scaling.has("rope_type") ? "rope_type" : "type";
  std::optional<std::string> type = scaling.string(type_key);
  if (!type)
    for (const json& part : *config.find(key))
      if (part.is_object()) config.wrong(key, "one set of parameters for all layers", *config.find(key), errc::unsupported);
  if (!type && !scaling.has("factor")) type = "default";
  const std::optional<rope_type> known = parse_rope_type(scaling.need("rope_type", type, "a string"));
  if (!known) scaling.wrong(type_key, "default, linear, dynamic, yarn or llama3", *scaling.find(type_key), errc::unsupported);
  r.type = *known;
  if (r.type == rope_type::standard) return r;

  const char* const original = "original_max_position_embeddings";
  std::optional<std::uint64_t> pretrained = scaling.integer(original, 1, config_limits::positions);
  if (!pretrained) pretrained = config.integer(original, 1, config_limits::positions);
  if (r.type == rope_type::llama3) (void)scaling.need(original, pretrained, "an integer");
  r.original_max_position_embeddings = pretrained.value_or(max_position_embeddings);

  std::optional<double> factor = scaling.positive("factor");
  if (!factor && r.type == rope_type::yarn && pretrained) factor = static_cast<double>(max_position_embeddings) / static_cast<double>(*pretrained);
  r.factor = scaling.need("factor", factor, "a number");
  if (r.type == rope_type::llama3) {
    r.low_freq_factor = scaling.need("low_freq_factor", scaling.positive("low_freq_factor"), "a number");
    r.high_freq_factor = scaling.need("high_freq_factor", scaling.positive("high_freq_factor"), "a number");
  }
  if (r.type == rope_type::yarn) {
    r.attention_factor = scaling.positive("attention_factor");
    r.beta_fast = scaling.positive("beta_fast").value_or(r.beta_fast);
    r.beta_slow = scaling.positive("beta_slow").value_or(r.beta_slow);
    r.mscale = scaling.number("mscale", 0, 1e6);
    r.mscale_all_dim = scaling.number("mscale_all_dim", 0, 1e6);
    r.truncate = scaling.boolean("truncate").value_or(true);
  }
  return r;
}

/// Refuses models whose config.json looks like a Llama's but whose arithmetic differs.
inline void check_architecture(const json_fields& f) {
  const std::optional<std::string> type = f.string("model_type");
  if (type && *type != "llama") f.wrong("model_type", "llama", *f.find("model_type"), errc::unsupported);
  if (const json* names = f.find("architectures")) {
    if (!names->is_array()) f.wrong("architectures", "an array of strings", *names);
    for (const json& name : *names)
      if (name != "LlamaForCausalLM" && name != "LLaMAForCausalLM") f.wrong("architectures", "LlamaForCausalLM", name, errc::unsupported);
  } else if (!type) {
    (void)f.need("model_type", type, "llama");
  }
  if (const json* q = f.find("quantization_config")) {
    const auto method = q->is_object() ? q->find("quant_method") : q->end();
    f.wrong("quantization_config", "no quantization (plain f32, f16 or bf16 weights)", q->is_object() && method != q->end() ? *method : *q, errc::unsupported);
  }
  const std::optional<std::string> act = f.string("hidden_act");
  if (act && *act != "silu" && *act != "swish") f.wrong("hidden_act", "silu", *f.find("hidden_act"), errc::unsupported);
}

}  // namespace detail

/// A parsed config.json. Absent or null: num_key_value_heads = heads, head_dim = hidden/heads, max_position_embeddings = 2048,
/// rms_norm_eps = 1e-6, rope_theta = 10000, no biases, not tied, no scaling. Unknown fields are ignored.
/// Errors   malformed: a needed field is absent, of the wrong type or out of range, or they don't fit together;
///          unsupported: another architecture, activation or rope type, quantised weights (AWQ, GPTQ, bitsandbytes, …).
[[nodiscard]] inline llama_config parse_config(const json& config, std::string_view file) {
  using limits = detail::config_limits;
  const json_fields f(config, "config", file);
  detail::check_architecture(f);

  llama_config c;
  c.hidden_size = f.need_integer("hidden_size", 1, limits::width);
  c.intermediate_size = f.need_integer("intermediate_size", 1, limits::width);
  c.n_layers = f.need_integer("num_hidden_layers", 1, limits::layers);
  c.n_heads = f.need_integer("num_attention_heads", 1, limits::heads);
  c.n_kv_heads = f.integer("num_key_value_heads", 1, limits::heads).value_or(c.n_heads);
  c.vocab_size = f.need_integer("vocab_size", 1, limits::vocab);
  c.max_position_embeddings = f.integer("max_position_embeddings", 1, limits::positions).value_or(2048);
  c.rms_norm_eps = static_cast<float>(f.positive("rms_norm_eps", 1).value_or(1e-6));
  if (const std::optional<std::uint64_t> head_dim = f.integer("head_dim", 2, limits::head_dim)) {
    c.head_dim = *head_dim;
  } else {
    if (c.hidden_size % c.n_heads != 0)
      fail(errc::malformed, "config", {"expected a hidden_size that is a multiple of num_attention_heads (or head_dim), got ", c.hidden_size, " and ", c.n_heads}, file);
    c.head_dim = c.hidden_size / c.n_heads;
  }
  c.tie_word_embeddings = f.boolean("tie_word_embeddings").value_or(false);
  c.attention_bias = f.boolean("attention_bias").value_or(false);
  c.mlp_bias = f.boolean("mlp_bias").value_or(false);
  if (const std::vector<std::int32_t> bos = f.token_ids("bos_token_id", c.vocab_size); !bos.empty()) c.bos_token_id = bos.front();
  c.eos_token_ids = f.token_ids("eos_token_id", c.vocab_size);
  c.dtype = f.string("torch_dtype").value_or(f.string("dtype").value_or(""));
  c.rope = detail::parse_rope(f, c.max_position_embeddings);
  detail::check_config(c, file);
  return c;
}

namespace detail {

/// The same from GGUF metadata (keys llama.*) and from which tensors there are.
inline llama_config gguf_config(const checkpoint& files) {
  const gguf_file& g = files.gguf();
  const auto bad = [&](const error_message& message, errc code = errc::malformed) { fail(code, "config", message, g.file()); };
  using limits = config_limits;
  if (const std::string_view arch = g.get_string("general.architecture"); arch != "llama")
    bad({"general.architecture: expected llama, got ", shortened(arch)}, errc::unsupported);
  const auto integer = [&](std::string_view key, std::uint64_t most, std::optional<std::uint64_t> otherwise = std::nullopt) {
    const std::optional<std::uint64_t> v = g.find_u64(key);
    const std::uint64_t n = v ? *v : otherwise ? *otherwise : g.get_u64(key);
    if (n < 1 || n > most) bad({key, ": expected an integer from 1 to ", most, ", got ", n});
    return static_cast<std::size_t>(n);
  };
  if (g.find_u64("llama.expert_count").value_or(0) != 0) bad("llama.expert_count: expected no experts (a dense model), got some", errc::unsupported);
  for (const std::string_view key : {"llama.attention.scale", "llama.embedding_scale", "llama.residual_scale", "llama.logit_scale"})
    if (const double x = g.find_f64(key).value_or(0); x != 0) bad({key, ": expected none, got ", x}, errc::unsupported);

  llama_config c;
  c.hidden_size = integer("llama.embedding_length", limits::width);
  c.intermediate_size = integer("llama.feed_forward_length", limits::width);
  c.n_layers = integer("llama.block_count", limits::layers);
  c.n_heads = integer("llama.attention.head_count", limits::heads);
  c.n_kv_heads = integer("llama.attention.head_count_kv", limits::heads, c.n_heads);
  c.head_dim = integer("llama.attention.key_length", limits::head_dim, c.hidden_size / c.n_heads);
  if (integer("llama.attention.value_length", limits::head_dim, c.head_dim) != c.head_dim || integer("llama.rope.dimension_count", limits::head_dim, c.head_dim) != c.head_dim)
    bad("expected key_length, value_length and rope.dimension_count to be equal", errc::unsupported);
  c.max_position_embeddings = integer("llama.context_length", limits::positions);
  c.rms_norm_eps = static_cast<float>(g.get_f64("llama.attention.layer_norm_rms_epsilon"));

  const std::uint64_t n_tokens = g.has("tokenizer.ggml.tokens") ? g.find("tokenizer.ggml.tokens")->count : 0;
  const checkpoint_tensor* embedding = files.find("model.embed_tokens.weight");
  if (embedding != nullptr && embedding->shape.size() != 2) bad("token_embd.weight: expected a matrix");
  c.vocab_size = integer("llama.vocab_size", limits::vocab, embedding != nullptr ? embedding->shape[0] : n_tokens);
  if (n_tokens > c.vocab_size) bad({"expected at most ", c.vocab_size, " tokens, one for each row of the embedding, got ", n_tokens});

  c.tie_word_embeddings = files.find("lm_head.weight") == nullptr;
  c.attention_bias = files.find("model.layers.0.self_attn.q_proj.bias") != nullptr;
  c.mlp_bias = files.find("model.layers.0.mlp.gate_proj.bias") != nullptr;
  if (const checkpoint_tensor* q = files.find("model.layers.0.self_attn.q_proj.weight")) c.dtype = dtype_name(q->type);
  const auto token = [&](std::string_view key) -> std::optional<std::int32_t> {
    const std::optional<std::uint64_t> id = g.find_u64(key);
    if (!id) return std::nullopt;
    if (*id >= c.vocab_size) bad({key, ": expected a token below ", c.vocab_size, ", got ", *id});
    return static_cast<std::int32_t>(*id);
  };
  c.bos_token_id = token("tokenizer.ggml.bos_token_id");
  for (const std::string_view key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"})
    if (const auto id = token(key); id && std::find(c.eos_token_ids.begin(), c.eos_token_ids.end(), *id) == c.eos_token_ids.end()) c.eos_token_ids.push_back(*id);

  rope_config& r = c.rope;
  r.theta = g.find_f64("llama.rope.freq_base").value_or(r.theta);
  r.max_position_embeddings = r.original_max_position_embeddings = c.max_position_embeddings;
  // As ggml's readers take it: a factor without a type is linear; older files have scale_linear.
  std::optional<double> factor = g.find_f64("llama.rope.scaling.factor");
  if (!factor) factor = g.find_f64("llama.rope.scale_linear");
  const std::string_view scaling = g.find_string("llama.rope.scaling.type").value_or(factor && *factor != 1 ? "linear" : "none");
  if (scaling == "linear") r.type = rope_type::linear;
  else if (scaling == "yarn") r.type = rope_type::yarn;
  else if (scaling != "none") bad({"llama.rope.scaling.type: expected none, linear or yarn, got ", shortened(scaling)}, errc::unsupported);
  if (r.type != rope_type::standard) r.factor = factor ? *factor : g.get_f64("llama.rope.scaling.factor");
  if (r.type == rope_type::yarn) {
    r.original_max_position_embeddings = integer("llama.rope.scaling.original_context_length", limits::positions, c.max_position_embeddings);
    r.beta_fast = g.find_f64("llama.rope.scaling.yarn_beta_fast").value_or(r.beta_fast);
    r.beta_slow = g.find_f64("llama.rope.scaling.yarn_beta_slow").value_or(r.beta_slow);
    if (const std::optional<double> attention = g.find_f64("llama.rope.scaling.attn_factor")) r.attention_factor = *attention * yarn_mscale(r.factor, 1);
  }
  for (const std::string_view name : {"rope_factors_long.weight", "rope_factors_short.weight"})
    if (g.find_tensor(name) != nullptr) bad({name, ": expected no longrope scaling, got it"}, errc::unsupported);
  if (const gguf_tensor* t = g.find_tensor("rope_freqs.weight")) {
    const std::size_t n = c.head_dim / 2;
    if (t->dims != std::vector<std::size_t>{n} || t->type != dtype::f32) bad({"rope_freqs.weight: expected ", n, " numbers of f32"});
    r.divisors.resize(n);
    dequantize_row(t->type, t->data.data(), r.divisors.data(), n);
    for (const float x : r.divisors)
      if (!(x > 0 && std::isfinite(x))) bad({"rope_freqs.weight: expected finite numbers above 0, got ", x});
  }
  check_config(c, g.file());
  return c;
}

}  // namespace detail

/// The configuration of a checkpoint; for GGUF files also from its tensors. Errors as parse_config().
[[nodiscard]] inline llama_config read_config(const checkpoint& files) {
  if (files.is_gguf()) return detail::gguf_config(files);
  if (files.config_json().is_null()) fail(errc::io, "config", "expected config.json with an object, got null or no file", files.path());
  return parse_config(files.config_json(), files.file_path("config.json"));
}

}  // namespace quena::inline QUENA_ABI
