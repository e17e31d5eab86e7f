// SPDX-License-Identifier: MIT
// The weights of a Llama model in a backend's own layout, and how they get there.
#pragma once

#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "../backend/backend.hpp"
#include "../io/checkpoint.hpp"
#include "config.hpp"
#include "lora.hpp"
#include "packed_weights.hpp"
#include "rope.hpp"
#include "weights.hpp"

namespace quena::inline QUENA_ABI {

struct weight_options {
  quena::format format = quena::format::automatic;
  /// Positions that caches will hold at most: only the "dynamic" RoPE scaling depends on it. 0: the model's max_position_embeddings.
  std::size_t context = 0;
  /// Adapters that are merged into the weights: W + s B A, summed in double before it is rounded to `format`. Weights in blocks that get
  /// an addition are kept as f16 if the format is `automatic`. They must live until the weights are loaded.
  std::vector<lora_use> merge = {};
  /// Called as weights become ready, with the bytes of the checkpoint that were read and their total.
  std::function<void(std::size_t done, std::size_t total)> progress = {};
};

/// What `automatic` comes to for a file whose embedding has this type: its dense type, or still automatic for blocks, which stay what
/// they are.
[[nodiscard]] constexpr format stored_format(format f, dtype embedding) noexcept {
  if (f != format::automatic) return f;
  return embedding == dtype::f32 ? format::f32 : embedding == dtype::f16 ? format::f16 : embedding == dtype::bf16 ? format::bf16 : format::automatic;
}

/// One decoder layer. Shapes are [out_features, in_features].
template <backend B>
struct layer_weights {
  typename B::vector input_layernorm;           // [hidden_size]
  typename B::matrix qkv_proj;                  // [(n_heads + 2 n_kv_heads) * head_dim, hidden_size]   q, k, v stacked
  typename B::matrix o_proj;                    // [hidden_size, n_heads * head_dim]
  typename B::vector post_attention_layernorm;  // [hidden_size]
  typename B::matrix gate_up_proj;              // 2 x [intermediate_size, hidden_size]
  typename B::matrix down_proj;                 // [hidden_size, intermediate_size]
};

/// f(name, matrix) for every matrix, in the order of loading. A name is the modules that are stacked in it: as in an artifact.
template <class Weights, class F>
void for_each_matrix(Weights& w, F&& f) {
  f(std::string("model.embed_tokens"), w.embed_tokens);
  if (w.lm_head) f(std::string("lm_head"), *w.lm_head);
  for (std::size_t l = 0; l < w.layers.size(); ++l) {
    const std::string layer = "model.layers." + std::to_string(l) + ".";
    f(layer + "self_attn.q_proj+k_proj+v_proj", w.layers[l].qkv_proj);
    f(layer + "self_attn.o_proj", w.layers[l].o_proj);
    f(layer + "mlp.gate_proj+up_proj", w.layers[l].gate_up_proj);
    f(layer + "mlp.down_proj", w.layers[l].down_proj);
  }
}

template <backend B>
struct llama_weights {
  format stored = format::f32;             // see stored_format()
  rope_table rope;
  typename B::matrix embed_tokens;         // [vocab_size, hidden_size]
  std::vector<layer_weights<B>> layers;    // [n_layers]
  typename B::vector norm;                 // [hidden_size]
  std::optional<typename B::matrix> lm_head;  // [vocab_size, hidden_size]; none: tied to embed_tokens

  [[nodiscard]] const typename B::matrix& output() const noexcept { return lm_head ? *lm_head : embed_tokens; }
  /// Bytes of all matrices; those that a decode step reads are all but an untied embedding.
  [[nodiscard]] std::size_t n_bytes() const noexcept {
    std::size_t n = 0;
    for_each_matrix(*this, [&](const std::string&, const typename B::matrix& m) { n += m.n_bytes(); });
    return n;
  }
  [[nodiscard]] std::size_t decode_bytes() const noexcept { return n_bytes() - (lm_head ? embed_tokens.n_bytes() : 0); }
};

/// Hands every tensor of the checkpoint to the backend, and lets go of each one's pages in the file as soon as it is packed. An
/// artifact's matrices are used where they are, once their hashes have been checked.
/// Errors   malformed: a tensor is missing or has another shape than the config says, with name, shapes and file; an altered artifact;
///          unsupported: an artifact of another backend or in another format than was asked for, or with adapters to merge.
template <backend B>
llama_weights<B> load_weights(const checkpoint& files, const llama_config& c, const B& b, const weight_options& o) {
  check_tensors(files, c);
  const artifact_file* const artifact = files.artifact();
  const format stored = artifact != nullptr ? detail::artifact_format<B>(files, o.format) : stored_format(o.format, files.find("model.embed_tokens.weight")->type);
  std::size_t done = 0, total = 0;
  if (artifact != nullptr) for (const safetensors_tensor& t : artifact->tensors()) total += t.data.size();
  else for (const checkpoint_tensor& t : files.tensors()) total += t.data.size();

  const auto vector = [&](const std::string& name) { return b.prepare_vector(as_vector(*files.find(name))); };
  // Modules are named by a prefix and their names behind it.
  using names = std::initializer_list<std::string_view>;
  if (artifact != nullptr && !o.merge.empty()) fail(errc::unsupported, "load", "expected weights that adapters can be merged into, got an artifact: they are packed already", files.path());
  std::map<std::string, std::vector<low_rank_delta>, std::less<>> deltas;  // by module
  for (const lora_use& use : o.merge)
    for (const lora_module& m : use.adapter->modules())
      if (use.scale != 0) deltas[m.name].push_back({m.rank, m.a.data(), m.b.data(), m.scale * use.scale});
  // The module's weights, which are another's where they are tied.
  const auto source_from = [&](const std::string& module, const std::string& weights) {
    matrix_source s = detail::module_source(files, weights);
    if (const auto found = deltas.find(module); found != deltas.end()) s.deltas = found->second;
    return s;
  };
  const auto source = [&](const std::string& prefix, std::string_view name) { return source_from(prefix + std::string(name), prefix + std::string(name)); };
  const auto finished = [&](const std::string& prefix, names modules) {
    for (const std::string_view name : modules) {
      const checkpoint_tensor& t = *files.find(prefix + std::string(name) + ".weight");
      files.release(t);
      done += t.data.size();
    }
    if (o.progress) o.progress(done, total);
  };
  // An artifact's matrix of these modules, of which the first one's rows count for gate and up.
  const auto adopted = [&](const std::string& prefix, names modules, bool gate_up) -> typename B::matrix {
    if constexpr (packing_backend<B>) {
      std::string name = prefix;
      std::size_t rows = 0, cols = 0;
      for (const std::string_view module : modules) {
        name.append(rows == 0 ? "" : "+").append(module);
        const checkpoint_tensor& t = *files.find(prefix + std::string(module) + ".weight");
        rows = gate_up ? t.shape[0] : rows + t.shape[0], cols = t.shape[1];
      }
      const std::vector<packed_part> parts = detail::packed_parts(files, name, rows, cols, gate_up ? 1 : modules.size());
      const auto expect = [&](const std::string& part, std::span<const std::byte> bytes) {
        artifact->expect_hash(part, b.hash(bytes));
        done += bytes.size();
      };
      for (std::size_t i = 0; i < parts.size(); ++i) {
        const std::string part = detail::part_name(name, i);
        if (parts[i].gate_up != gate_up) fail(errc::malformed, "artifact", {name, ": expected ", (gate_up ? "a pair" : "one matrix"), ", got another"}, artifact->file());
        expect(part, parts[i].weights);
        if (!parts[i].bias.empty()) expect(part + "/bias", parts[i].bias);
      }
      if (o.progress) o.progress(done, total);
      return b.adopt(parts, artifact->keeper());
    } else {
      fail(errc::unsupported, "load", {"expected a checkpoint: the backend ", b.name(), " reads no artifacts"}, files.path());
    }
  };
  const auto stacked = [&](const std::string& prefix, names modules) {
    if (artifact != nullptr) return adopted(prefix, modules, false);
    std::vector<matrix_source> sources;
    for (const std::string_view name : modules) sources.push_back(source(prefix, name));
    typename B::matrix m = b.prepare(sources, o.format);
    finished(prefix, modules);
    return m;
  };
  const auto gate_up = [&](const std::string& prefix, std::string_view gate, std::string_view up) {
    if (artifact != nullptr) return adopted(prefix, {gate, up}, true);
    typename B::matrix m = b.prepare_gate_up(source(prefix, gate), source(prefix, up), o.format);
    finished(prefix, {gate, up});
    return m;
  };

  llama_weights<B> w{.stored = stored, .rope = rope_table(c.rope, c.head_dim, o.context), .embed_tokens = stacked("model.", {"embed_tokens"}), .layers = {}, .norm = vector("model.norm.weight"), .lm_head = {}};
  // The largest matrices come first, while little is in memory: their part of the file is resident until they are packed.
  if (!c.tie_word_embeddings) {
    w.lm_head = stacked("", {"lm_head"});
  } else if (deltas.contains("lm_head")) {  // no longer the embedding
    const matrix_source s = source_from("lm_head", "model.embed_tokens");
    w.lm_head = b.prepare({&s, 1}, o.format);
  }
  w.layers.reserve(c.n_layers);
  for (std::size_t l = 0; l < c.n_layers; ++l) {
    const std::string layer = "model.layers." + std::to_string(l) + ".", attention = layer + "self_attn.", mlp = layer + "mlp.";
    w.layers.push_back({.input_layernorm = vector(layer + "input_layernorm.weight"),
                        .qkv_proj = stacked(attention, {"q_proj", "k_proj", "v_proj"}),
                        .o_proj = stacked(attention, {"o_proj"}),
                        .post_attention_layernorm = vector(layer + "post_attention_layernorm.weight"),
                        .gate_up_proj = gate_up(mlp, "gate_proj", "up_proj"),
                        .down_proj = stacked(mlp, {"down_proj"})});
  }
  return w;
}

}  // namespace quena::inline QUENA_ABI
