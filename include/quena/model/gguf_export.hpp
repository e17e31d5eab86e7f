// SPDX-License-Identifier: MIT
// A Hugging Face folder as the source of a GGUF file: the configuration and the tokenizer as metadata, tensors by their names there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../io/gguf_names.hpp"
#include "../io/gguf_writer.hpp"
#include "../text/tokenizer.hpp"
#include "config.hpp"
#include "rope.hpp"
#include "weights.hpp"

namespace quena::inline QUENA_ABI {
namespace detail {

[[noreturn]] inline void not_in_gguf(const error_message& what, std::string_view file) { fail(errc::unsupported, "quantize", what, file); }

/// Sizes and rotary frequencies, as llama.* keys. llama3's scaling has no keys: it becomes the divisors in rope_freqs.weight.
inline void add_gguf_config(gguf_source& s, const llama_config& c, std::string_view file) {
  s.set_text("general.architecture", "llama");
  s.set_u32("llama.embedding_length", c.hidden_size);
  s.set_u32("llama.feed_forward_length", c.intermediate_size);
  s.set_u32("llama.block_count", c.n_layers);
  s.set_u32("llama.attention.head_count", c.n_heads);
  s.set_u32("llama.attention.head_count_kv", c.n_kv_heads);
  s.set_u32("llama.attention.key_length", c.head_dim);
  s.set_u32("llama.attention.value_length", c.head_dim);
  s.set_u32("llama.rope.dimension_count", c.head_dim);
  s.set_u32("llama.context_length", c.max_position_embeddings);
  s.set_u32("llama.vocab_size", c.vocab_size);
  s.set_f32("llama.attention.layer_norm_rms_epsilon", static_cast<double>(c.rms_norm_eps));
  s.set_f32("llama.rope.freq_base", c.rope.theta);
  switch (c.rope.type) {
    case rope_type::standard:
    case rope_type::llama3: return;
    case rope_type::dynamic: not_in_gguf("rope: expected a scaling that GGUF has a name for, got dynamic", file);
    case rope_type::linear: s.set_text("llama.rope.scaling.type", "linear"); break;
    case rope_type::yarn:
      if (!c.rope.truncate) not_in_gguf("rope: expected a scaling that GGUF has keys for, got yarn without truncate", file);
      s.set_text("llama.rope.scaling.type", "yarn");
      s.set_u32("llama.rope.scaling.original_context_length", c.rope.original_max_position_embeddings);
      s.set_f32("llama.rope.scaling.yarn_beta_fast", c.rope.beta_fast);
      s.set_f32("llama.rope.scaling.yarn_beta_slow", c.rope.beta_slow);
      s.set_f32("llama.rope.scaling.attn_factor", rope_attention_factor(c.rope) / yarn_mscale(c.rope.factor, 1));
      break;
  }
  s.set_f32("llama.rope.scaling.factor", c.rope.factor);
}

/// tokenizer.json of a byte-level tokenizer as tokenizer.ggml.* keys. Ids without a token become unused ones.
inline void add_gguf_tokenizer(gguf_source& s, const checkpoint& files, const llama_config& c) {
  const std::string file = files.file_path("tokenizer.json"), text = files.text_file("tokenizer.json").value_or("");
  const tokenizer_data d = read_tokenizer_json(text, files.text_file("tokenizer_config.json").value_or(""), file);
  if (!d.byte_level) not_in_gguf("expected a byte-level tokenizer, got a SentencePiece one, whose scores tokenizer.json does not hold", file);
  const std::string_view pre = d.split == split_pattern::llama3 && d.ignore_merges ? "llama-bpe" : d.split == split_pattern::gpt2 && !d.ignore_merges ? "gpt-2" : d.split == split_pattern::gpt2_digits && !d.ignore_merges ? "smollm" : "";
  const auto only = [](const std::vector<token_id>& around, std::optional<token_id> id) { return around.empty() || (around.size() == 1 && around.front() == id); };
  if (!only(d.first_ids, d.bos) || !only(d.last_ids, d.eos.empty() ? std::nullopt : std::optional(d.eos.front())))
    not_in_gguf("expected no tokens around a text but its BOS and EOS, got others", file);
  if (pre.empty()) not_in_gguf("expected a split pattern that GGUF has a name for, got another one", file);

  enum : std::int32_t { normal = 1, control = 3, user_defined = 4, unused = 5 };
  std::vector<std::string> tokens(c.vocab_size);
  std::vector<std::int32_t> types(c.vocab_size, unused);
  const auto set = [&](const std::string& token, const json& id, std::int32_t type) {
    const std::size_t at = id.get<std::size_t>();
    if (at >= c.vocab_size) not_in_gguf({"expected tokens below vocab_size ", c.vocab_size, ", got ", at}, file);
    tokens[at] = token, types[at] = type;
  };
  const json parsed = parse_json(text, "quantize", file);
  const json& model = parsed.at("model");
  for (const auto& [token, id] : model.at("vocab").items()) set(token, id, normal);
  if (const auto added = parsed.find("added_tokens"); added != parsed.end())
    for (const json& t : *added) set(t.at("content").get<std::string>(), t.at("id"), t.value("special", false) ? control : user_defined);
  for (std::size_t i = 0; i < tokens.size(); ++i)
    if (types[i] == unused) tokens[i] = "[PAD" + std::to_string(i) + "]";

  s.set_text("tokenizer.ggml.model", "gpt2");
  s.set_text("tokenizer.ggml.pre", pre);
  s.set_list("tokenizer.ggml.tokens", gguf_type::string, tokens.size(), [&](gguf_head& h, std::size_t i) { h.text(tokens[i]); });
  s.set_list("tokenizer.ggml.token_type", gguf_type::i32, types.size(), [&](gguf_head& h, std::size_t i) { h.number(types[i]); });
  const json& merges = model.at("merges");
  s.set_list("tokenizer.ggml.merges", gguf_type::string, merges.size(), [&](gguf_head& h, std::size_t i) {
    const json& m = merges[i];
    h.text(m.is_string() ? m.get<std::string>() : m.at(0).get<std::string>() + " " + m.at(1).get<std::string>());
  });
  if (d.bos) s.set_u32("tokenizer.ggml.bos_token_id", static_cast<std::size_t>(*d.bos));
  if (!d.eos.empty()) s.set_u32("tokenizer.ggml.eos_token_id", static_cast<std::size_t>(d.eos.front()));
  s.set_bool("tokenizer.ggml.add_bos_token", !d.first_ids.empty());
  s.set_bool("tokenizer.ggml.add_eos_token", !d.last_ids.empty());
  if (const std::optional<std::string> chat = read_chat_template(files)) s.set_text("tokenizer.chat_template", *chat);
}

}  // namespace detail

/// What `files` holds, to be written by write_gguf(). `files` must outlive it.
/// Errors   unsupported: SentencePiece tokenizers, split patterns and RoPE scalings that GGUF has no keys for; malformed: as load().
[[nodiscard]] inline gguf_source gguf_source_of(const checkpoint& files) {
  if (files.artifact() != nullptr) fail(errc::unsupported, "quantize", "expected a Hugging Face folder or a .gguf file, got an artifact: its weights are rounded already", files.path());
  if (files.is_gguf()) return gguf_source_of(files.gguf());
  const llama_config c = read_config(files);
  check_tensors(files, c);
  gguf_source s;
  s.file = files.path(), s.n_layers = c.n_layers;
  detail::add_gguf_config(s, c, files.file_path("config.json"));
  detail::add_gguf_tokenizer(s, files, c);
  std::vector<weight_spec> specs = outer_weights(c);
  for (std::size_t l = 0; l < c.n_layers; ++l)
    for (weight_spec& w : layer_weights_table(c, l)) specs.push_back(std::move(w));
  for (const weight_spec& w : specs) {
    const checkpoint_tensor& t = *files.find(w.name);
    const bool rotary = w.name.find(".q_proj.") != w.name.npos || w.name.find(".k_proj.") != w.name.npos;
    s.tensors.push_back({gguf_name(w.name), t.type, {t.shape.rbegin(), t.shape.rend()}, t.data, rotary ? c.head_dim : 0});
  }
  if (c.rope.type == rope_type::llama3) {
    rope_config plain = c.rope;
    plain.type = rope_type::standard;
    const std::vector<double> scaled = inv_freq(c.rope, c.head_dim), unscaled = inv_freq(plain, c.head_dim);
    detail::gguf_head divisors;
    for (std::size_t i = 0; i < scaled.size(); ++i) divisors.number(static_cast<float>(unscaled[i] / scaled[i]));
    s.owned.assign(divisors.bytes().begin(), divisors.bytes().end());
    s.tensors.push_back({"rope_freqs.weight", dtype::f32, {scaled.size()}, s.owned, 0});
  }
  return s;
}

}  // namespace quena::inline QUENA_ABI
