// SPDX-License-Identifier: MIT
// Which tensors a Llama consists of, and whether a checkpoint has them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "../backend/backend.hpp"
#include "../core/error.hpp"
#include "../io/checkpoint.hpp"
#include "../io/sort_by_name.hpp"
#include "../quant/gguf_blocks.hpp"
#include "config.hpp"

namespace quena::inline QUENA_ABI {

/// A tensor that the architecture needs: a matrix [rows, cols] = [out_features, in_features], or a vector [rows] if cols is 0.
struct weight_spec {
  std::string name;
  std::size_t rows = 0, cols = 0;
};

/// The tensors outside the layers.
[[nodiscard]] inline std::vector<weight_spec> outer_weights(const llama_config& c) {
  std::vector<weight_spec> w = {{"model.embed_tokens.weight", c.vocab_size, c.hidden_size}, {"model.norm.weight", c.hidden_size, 0}};
  if (!c.tie_word_embeddings) w.push_back({"lm_head.weight", c.vocab_size, c.hidden_size});
  return w;
}

/// The tensors of one decoder layer.
[[nodiscard]] inline std::vector<weight_spec> layer_weights_table(const llama_config& c, std::size_t layer) {
  struct module {
    std::string_view name;
    std::size_t out, in;
    bool bias;
  };
  const std::size_t q = c.n_heads * c.head_dim, kv = c.n_kv_heads * c.head_dim;
  const module modules[] = {{"self_attn.q_proj", q, c.hidden_size, c.attention_bias},
                            {"self_attn.k_proj", kv, c.hidden_size, c.attention_bias},
                            {"self_attn.v_proj", kv, c.hidden_size, c.attention_bias},
                            {"self_attn.o_proj", c.hidden_size, q, c.attention_bias},
                            {"mlp.gate_proj", c.intermediate_size, c.hidden_size, c.mlp_bias},
                            {"mlp.up_proj", c.intermediate_size, c.hidden_size, c.mlp_bias},
                            {"mlp.down_proj", c.hidden_size, c.intermediate_size, c.mlp_bias}};
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  std::vector<weight_spec> w;
  const auto add = [&](std::string_view name, std::string_view kind, std::size_t rows, std::size_t cols) {
    w.push_back({(prefix + std::string(name)).append(kind), rows, cols});
  };
  add("input_layernorm", ".weight", c.hidden_size, 0);
  add("post_attention_layernorm", ".weight", c.hidden_size, 0);
  for (const module& m : modules) {
    add(m.name, ".weight", m.out, m.in);
    if (m.bias) add(m.name, ".bias", m.out, 0);
  }
  return w;
}

namespace detail {

[[nodiscard]] inline std::string shape_text(const std::vector<std::size_t>& shape) {
  std::string s = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) s.append(i ? ", " : "").append(std::to_string(shape[i]));
  return s + "]";
}

inline void check_tensor(const checkpoint& files, const weight_spec& want) {
  const std::vector<std::size_t> shape = want.cols == 0 ? std::vector{want.rows} : std::vector{want.rows, want.cols};
  const checkpoint_tensor* t = files.find(want.name);
  if (t == nullptr) fail(errc::malformed, "load", {want.name, ": expected ", shape_text(shape), ", but it is absent"}, files.path());
  if (t->shape != shape) fail(errc::malformed, "load", {want.name, ": expected ", shape_text(shape), ", got ", shape_text(t->shape)}, t->file);
  if (!is_weight_type(t->type))
    fail(errc::unsupported, "load", {want.name, ": expected a floating-point or block type, got ", dtype_name(t->type)}, t->file);
  if (want.cols == 0 && is_block_type(t->type))
    fail(errc::unsupported, "load", {want.name, ": expected a vector of f32, f16 or bf16, got ", dtype_name(t->type)}, t->file);
}

}  // namespace detail

/// Checks that every tensor the configuration asks for is there, with its shape and a type that can be read, and that no layer
/// has tensors that would be left out of the arithmetic. A stray lm_head beside tied embeddings, saved rotary tables, and tensors
/// outside the layers are ignored.
/// Errors   malformed: absent or of another shape; unsupported: of an integer type, or an unknown tensor in a layer (biases that
///          the configuration denies, extra norms, a layer too many).
inline void check_tensors(const checkpoint& files, const llama_config& c) {
  for (const weight_spec& w : outer_weights(c)) detail::check_tensor(files, w);
  std::vector<std::string> known;
  for (std::size_t layer = 0; layer < c.n_layers; ++layer)
    for (weight_spec& w : layer_weights_table(c, layer)) {
      detail::check_tensor(files, w);
      known.push_back(std::move(w.name));
    }
  detail::sort_by_name(known, [](const std::string& s) { return std::string_view(s); });
  for (const checkpoint_tensor& t : files.tensors()) {
    if (!t.name.starts_with("model.layers.") && !t.name.starts_with("blk.")) continue;
    if (t.name.ends_with(".rotary_emb.inv_freq") || std::binary_search(known.begin(), known.end(), t.name)) continue;
    fail(errc::unsupported, "load", {detail::shortened(t.name), ": expected only a Llama's tensors in layers 0 to ", c.n_layers - 1, ", got this one"}, t.file);
  }
}

struct finite_options {
  bool every_value = false;  ///< also reads all plain weights; without it only the scales of block types
};

/// Looks for NaN and infinity in the weights.
/// Errors   non_finite, with the tensor's name and the place.
/// Cost     reads the scales of block types; with every_value the whole file, at memory speed.
inline void check_finite(const checkpoint& files, finite_options options = {}) {
  for (const checkpoint_tensor& t : files.tensors()) {
    if (!options.every_value && !is_block_type(t.type)) continue;
    const std::size_t n = t.data.size() / block_bytes(t.type) * block_elements(t.type), at = find_non_finite(t.type, t.data.data(), n);
    files.release(t);  // else the whole file would count as this program's memory
    if (at != n)
      fail(errc::non_finite, "load", {detail::shortened(t.name), ": expected finite weights, got NaN or infinity ", (is_block_type(t.type) ? "as the scale of element " : "as element "), at}, t.file);
  }
}

/// A checkpoint's tensor as a backend takes it. The shape must have been checked.
[[nodiscard]] inline vector_source as_vector(const checkpoint_tensor& t) { return {.type = t.type, .size = t.shape.at(0), .data = t.data.data()}; }
[[nodiscard]] inline matrix_source as_matrix(const checkpoint_tensor& t) {
  return {.name = t.name, .type = t.type, .rows = t.shape.at(0), .cols = t.shape.at(1), .data = t.data.data(), .interleaved_head_dim = t.interleaved_head_dim, .bias = {}};
}

namespace detail {

/// A module's weight with its bias, if it has one.
[[nodiscard]] inline matrix_source module_source(const checkpoint& files, const std::string& module) {
  matrix_source s = as_matrix(*files.find(module + ".weight"));
  if (const checkpoint_tensor* bias = files.find(module + ".bias")) s.bias = as_vector(*bias);
  return s;
}

}  // namespace detail

}  // namespace quena::inline QUENA_ABI
