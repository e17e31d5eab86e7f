// SPDX-License-Identifier: MIT
// The names of a Llama's tensors in GGUF files and in Hugging Face folders. Everything behind io/ uses the latter.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "../core/config.hpp"

namespace quena::inline QUENA_ABI {

namespace detail {

struct tensor_names {
  std::string_view gguf, hugging_face;
};
inline constexpr tensor_names outer_tensor_names[] = {{"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}};
inline constexpr tensor_names layer_tensor_names[] = {{"attn_norm", "input_layernorm"},
                                                      {"attn_q", "self_attn.q_proj"},
                                                      {"attn_k", "self_attn.k_proj"},
                                                      {"attn_v", "self_attn.v_proj"},
                                                      {"attn_output", "self_attn.o_proj"},
                                                      {"ffn_norm", "post_attention_layernorm"},
                                                      {"ffn_gate", "mlp.gate_proj"},
                                                      {"ffn_up", "mlp.up_proj"},
                                                      {"ffn_down", "mlp.down_proj"}};

/// "a.b.weight" -> "a.b", ".weight"; nothing to translate: the whole name, "".
constexpr std::pair<std::string_view, std::string_view> split_suffix(std::string_view name) noexcept {
  const std::size_t dot = name.rfind('.');
  if (dot == name.npos || (name.substr(dot) != ".weight" && name.substr(dot) != ".bias")) return {name, {}};
  return {name.substr(0, dot), name.substr(dot)};
}

/// A name in one of the two worlds, in the other: names outside layers and in them by `from` and `to`, layers by their prefixes.
inline std::string translated_name(std::string_view name, std::string_view tensor_names::* from, std::string_view tensor_names::* to, std::string_view from_layers, std::string_view to_layers) {
  const auto [stem, suffix] = split_suffix(name);
  if (!suffix.empty() && !stem.starts_with(from_layers)) {
    for (const tensor_names& t : outer_tensor_names)
      if (stem == t.*from) return std::string(t.*to).append(suffix);
  } else if (!suffix.empty()) {
    const std::string_view rest = stem.substr(from_layers.size());
    const std::size_t digits = rest.find('.');
    if (digits != rest.npos && digits != 0 && rest.find_first_not_of("0123456789") == digits)
      for (const tensor_names& t : layer_tensor_names)
        if (rest.substr(digits + 1) == t.*from) return std::string(to_layers).append(rest.substr(0, digits)).append(".").append(t.*to).append(suffix);
  }
  return std::string(name);
}

}  // namespace detail

/// The Hugging Face name of a GGUF tensor; a name that is not a Llama's comes back unchanged.
///   blk.3.attn_k.weight -> model.layers.3.self_attn.k_proj.weight
[[nodiscard]] inline std::string hugging_face_name(std::string_view gguf_name) {
  return detail::translated_name(gguf_name, &detail::tensor_names::gguf, &detail::tensor_names::hugging_face, "blk.", "model.layers.");
}
/// And the other way.
[[nodiscard]] inline std::string gguf_name(std::string_view hugging_face_name) {
  return detail::translated_name(hugging_face_name, &detail::tensor_names::hugging_face, &detail::tensor_names::gguf, "model.layers.", "blk.");
}

}  // namespace quena::inline QUENA_ABI
