// SPDX-License-Identifier: MIT
// The names of a Llama's tensors in GGUF files and in Hugging Face folders. Everything behind io/ uses the latter.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "../core/config.hpp"

namespace quena::inline QUENA_ABI {

/// The Hugging Face name of a GGUF tensor; a name that is not a Llama's comes back unchanged.
///   blk.3.attn_k.weight -> model.layers.3.self_attn.k_proj.weight
[[nodiscard]] inline std::string hugging_face_name(std::string_view gguf_name) {
  using entry = std::pair<std::string_view, std::string_view>;
  constexpr entry outer[] = {{"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}};
  constexpr entry inner[] = {{"attn_norm", "input_layernorm"},
                             {"attn_q", "self_attn.q_proj"},
                             {"attn_k", "self_attn.k_proj"},
                             {"attn_v", "self_attn.v_proj"},
                             {"attn_output", "self_attn.o_proj"},
                             {"ffn_norm", "post_attention_layernorm"},
                             {"ffn_gate", "mlp.gate_proj"},
                             {"ffn_up", "mlp.up_proj"},
                             {"ffn_down", "mlp.down_proj"}};

  const std::size_t dot = gguf_name.rfind('.');
  if (dot == std::string_view::npos) return std::string(gguf_name);
  std::string_view stem = gguf_name.substr(0, dot);
  const std::string_view suffix = gguf_name.substr(dot);
  if (suffix != ".weight" && suffix != ".bias") return std::string(gguf_name);

  if (!stem.starts_with("blk.")) {
    for (const auto& [gguf, hf] : outer)
      if (stem == gguf) return std::string(hf).append(suffix);
    return std::string(gguf_name);
  }
  stem.remove_prefix(4);
  const std::size_t digits = stem.find('.');
  if (digits == std::string_view::npos || digits == 0 || stem.find_first_not_of("0123456789") != digits) return std::string(gguf_name);
  for (const auto& [gguf, hf] : inner)
    if (stem.substr(digits + 1) == gguf) return std::string("model.layers.").append(stem.substr(0, digits)).append(".").append(hf).append(suffix);
  return std::string(gguf_name);
}

}  // namespace quena::inline QUENA_ABI
