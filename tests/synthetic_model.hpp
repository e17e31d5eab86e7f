// SPDX-License-Identifier: MIT
// A tiny Llama with seeded random weights, as the files of a Hugging Face folder in memory.
#pragma once

#include <quena/core/float16.hpp>
#include <quena/io/checkpoint.hpp>

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace quena_test {

struct synthetic_options {
  std::size_t hidden_size = 64, intermediate_size = 160, n_layers = 2, n_heads = 4, n_kv_heads = 2, head_dim = 16, vocab_size = 211;
  bool tied = true, biases = false;
  quena::dtype type = quena::dtype::f32;
  std::uint32_t seed = 1;
  std::size_t max_position_embeddings = 1024;
  std::string rope_scaling = "null";
};

class synthetic_model {
 public:
  explicit synthetic_model(const synthetic_options& o = {}) : options(o) {
    const auto b = [](bool x) { return x ? "true" : "false"; };
    const auto n = [](std::size_t x) { return std::to_string(x); };
    config = R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_act":"silu","hidden_size":)" + n(o.hidden_size) +
             ",\"intermediate_size\":" + n(o.intermediate_size) + ",\"num_hidden_layers\":" + n(o.n_layers) + ",\"num_attention_heads\":" + n(o.n_heads) +
             ",\"num_key_value_heads\":" + n(o.n_kv_heads) + ",\"head_dim\":" + n(o.head_dim) + ",\"vocab_size\":" + n(o.vocab_size) +
             ",\"max_position_embeddings\":" + n(o.max_position_embeddings) + ",\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,\"rope_scaling\":" + o.rope_scaling +
             ",\"tie_word_embeddings\":" + b(o.tied) + ",\"attention_bias\":" + b(o.biases) + ",\"mlp_bias\":" + b(o.biases) + "}";
    std::mt19937 random(o.seed);
    std::string header, data;
    const auto add = [&](const std::string& name, std::size_t rows, std::size_t cols, float mean, float deviation) {
      std::normal_distribution<float> values(mean, deviation);
      const std::size_t begin = data.size();
      for (std::size_t i = 0; i < rows * (cols == 0 ? 1 : cols); ++i) append(data, values(random));
      header += (header.empty() ? "{\"" : ",\"") + name + "\":{\"dtype\":\"" + (o.type == quena::dtype::f32 ? "F32" : o.type == quena::dtype::f16 ? "F16" : "BF16") +
                "\",\"shape\":[" + n(rows) + (cols == 0 ? "" : "," + n(cols)) + "],\"data_offsets\":[" + n(begin) + "," + n(data.size()) + "]}";
    };
    const auto module = [&](const std::string& name, std::size_t rows, std::size_t cols) {
      add(name + ".weight", rows, cols, 0, 1.5f / std::sqrt(static_cast<float>(cols)));
      if (o.biases) add(name + ".bias", rows, 0, 0, 0.5f);
    };
    add("model.embed_tokens.weight", o.vocab_size, o.hidden_size, 0, 1);
    for (std::size_t l = 0; l < o.n_layers; ++l) {
      const std::string layer = "model.layers." + n(l) + ".";
      add(layer + "input_layernorm.weight", o.hidden_size, 0, 1, 0.1f);
      module(layer + "self_attn.q_proj", o.n_heads * o.head_dim, o.hidden_size);
      module(layer + "self_attn.k_proj", o.n_kv_heads * o.head_dim, o.hidden_size);
      module(layer + "self_attn.v_proj", o.n_kv_heads * o.head_dim, o.hidden_size);
      module(layer + "self_attn.o_proj", o.hidden_size, o.n_heads * o.head_dim);
      add(layer + "post_attention_layernorm.weight", o.hidden_size, 0, 1, 0.1f);
      module(layer + "mlp.gate_proj", o.intermediate_size, o.hidden_size);
      module(layer + "mlp.up_proj", o.intermediate_size, o.hidden_size);
      module(layer + "mlp.down_proj", o.hidden_size, o.intermediate_size);
    }
    add("model.norm.weight", o.hidden_size, 0, 1, 0.1f);
    if (!o.tied) add("lm_head.weight", o.vocab_size, o.hidden_size, 0, 1 / std::sqrt(static_cast<float>(o.hidden_size)));
    header += "}";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    weights.resize(8);
    const std::uint64_t length = header.size();
    for (std::size_t i = 0; i < 8; ++i) weights[i] = static_cast<char>(length >> (8 * i) & 255);
    weights += header + data;
  }
  synthetic_model(const synthetic_model&) = delete;
  synthetic_model& operator=(const synthetic_model&) = delete;

  /// The checkpoint; it refers to this object's bytes.
  [[nodiscard]] quena::checkpoint open() const {
    const quena::memory_file files[] = {{"config.json", bytes(config)}, {"model.safetensors", bytes(weights)}};
    return quena::checkpoint::from_memory(files);
  }

  synthetic_options options;
  std::string config, weights;

 private:
  static std::span<const std::byte> bytes(const std::string& s) { return {reinterpret_cast<const std::byte*>(s.data()), s.size()}; }
  void append(std::string& data, float value) const {
    char raw[4];
    const std::uint16_t half = options.type == quena::dtype::f16 ? quena::f16(value).bits : quena::bf16(value).bits;
    if (options.type == quena::dtype::f32) std::memcpy(raw, &value, 4);
    else std::memcpy(raw, &half, 2);
    data.append(raw, options.type == quena::dtype::f32 ? 4 : 2);
  }
};

}  // namespace quena_test
