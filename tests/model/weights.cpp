// SPDX-License-Identifier: MIT
#include <quena/model/weights.hpp>

#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "../support.hpp"

using namespace quena;

namespace {

/// The weights of a small model as safetensors bytes, all zero; tests change the list before they write it.
struct small_model {
  json config = json::parse(R"({"model_type":"llama","hidden_size":8,"intermediate_size":12,"num_hidden_layers":2,"num_attention_heads":2,
    "num_key_value_heads":1,"head_dim":6,"vocab_size":10,"tie_word_embeddings":false})");
  std::map<std::string, std::vector<std::size_t>> tensors;
  std::string type = "F32";

  small_model() {
    tensors = {{"model.embed_tokens.weight", {10, 8}}, {"model.norm.weight", {8}}, {"lm_head.weight", {10, 8}}};
    for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
      const std::string l = layer;
      tensors[l + "input_layernorm.weight"] = tensors[l + "post_attention_layernorm.weight"] = {8};
      tensors[l + "self_attn.q_proj.weight"] = {12, 8};
      tensors[l + "self_attn.k_proj.weight"] = tensors[l + "self_attn.v_proj.weight"] = {6, 8};
      tensors[l + "self_attn.o_proj.weight"] = {8, 12};
      tensors[l + "mlp.gate_proj.weight"] = tensors[l + "mlp.up_proj.weight"] = {12, 8};
      tensors[l + "mlp.down_proj.weight"] = {8, 12};
    }
  }

  /// The error of checking it, empty if there is none.
  std::string problem() const {
    json header = json::object();
    std::size_t at = 0;
    for (const auto& [name, shape] : tensors) {
      std::size_t n = type == "F32" ? 4 : 8;
      for (const std::size_t d : shape) n *= d;
      header[name] = {{"dtype", type}, {"shape", shape}, {"data_offsets", {at, at + n}}};
      at += n;
    }
    const std::string text = header.dump(), settings = config.dump();
    std::string bytes;
    for (int i = 0; i < 8; ++i) bytes += static_cast<char>(text.size() >> (8 * i));
    bytes += text + std::string(at, '\0');
    const memory_file files[] = {{"config.json", std::as_bytes(std::span(settings))}, {"model.safetensors", std::as_bytes(std::span(bytes))}};
    try {
      const checkpoint c = checkpoint::from_memory(files);
      check_tensors(c, read_config(c));
    } catch (const error& e) {
      return e.what();
    }
    return "";
  }
};

}  // namespace

TEST_CASE("weights: what a Llama needs") {
  small_model m;
  CHECK(m.problem() == "");
  for (const auto& [name, shape] : small_model().tensors) {
    small_model missing;
    missing.tensors.erase(name);
    CHECK(missing.problem().find("[load] " + name + ": expected [") == 0);
    CHECK(missing.problem().find("but it is absent") != std::string::npos);
    small_model turned;
    std::vector<std::size_t>& s = turned.tensors[name];
    s.size() == 2 ? std::swap(s[0], s[1]) : s.push_back(1);
    if (s != shape) CHECK(turned.problem().find(name + ": expected [") != std::string::npos);
  }
  m.tensors["model.layers.1.self_attn.k_proj.weight"] = {12, 8};
  CHECK(m.problem() == "[load] model.layers.1.self_attn.k_proj.weight: expected [6, 8], got [12, 8] (model.safetensors)");
}

TEST_CASE("weights: tied embeddings") {
  small_model m;
  m.config["tie_word_embeddings"] = true;
  CHECK(m.problem() == "");  // a stray lm_head is not used
  m.tensors.erase("lm_head.weight");
  CHECK(m.problem() == "");
  m.config["tie_word_embeddings"] = false;
  CHECK(m.problem().find("lm_head.weight: expected [10, 8], but it is absent") != std::string::npos);
}

TEST_CASE("weights: what would be left out is refused") {
  small_model m;
  m.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = {3};
  m.tensors["something.else"] = {3};
  CHECK(m.problem() == "");
  for (const char* name : {"model.layers.0.self_attn.q_proj.bias", "model.layers.1.self_attn.q_norm.weight", "model.layers.2.input_layernorm.weight"}) {
    small_model extra;
    extra.tensors[name] = {12};
    CHECK(extra.problem().find(std::string(name) + ": expected only a Llama's tensors in layers 0 to 1") != std::string::npos);
  }
  small_model biased;
  biased.config["mlp_bias"] = true;
  CHECK(biased.problem().find("mlp.gate_proj.bias: expected [12], but it is absent") != std::string::npos);
  small_model integers;
  integers.type = "I64";
  CHECK(integers.problem().find("expected a floating-point or block type, got i64") != std::string::npos);
}

TEST_CASE("weights: NaN and infinity are found on request") {
  std::string header = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(header.size() >> (8 * i));
  bytes += header + std::string(8, '\0');
  const float bad = std::numeric_limits<float>::infinity();
  const std::string config = "{}";
  const auto files = [&] { return std::vector<memory_file>{{"config.json", std::as_bytes(std::span(config))}, {"model.safetensors", std::as_bytes(std::span(bytes))}}; };
  CHECK_NOTHROW(check_finite(checkpoint::from_memory(files()), {.every_value = true}));
  std::memcpy(bytes.data() + bytes.size() - 4, &bad, 4);
  CHECK_NOTHROW(check_finite(checkpoint::from_memory(files())));
  CHECK_THROWS_WITH_AS(check_finite(checkpoint::from_memory(files()), {.every_value = true}), "[load] a: expected finite weights, got NaN or infinity as element 1 (model.safetensors)", error);
}

TEST_CASE("weights: every broken checkpoint of the reference data is refused, every good one loads") {
  QUENA_NEEDS_FIXTURES(dir);
  const json cases = json::parse(quena_test::read_file(dir + "/malformed/expected.json"));
  std::size_t n = 0;
  for (const json& one : cases) {
    if (one["kind"] == "tokenizer") continue;
    ++n;
    const std::string name = one["name"], open = one["open"], path = dir + "/" + one["path"].get<std::string>() + (open == "." ? "" : "/" + open);
    INFO(name, ": ", one["problem"].get<std::string>());
    std::string message;
    try {
      const checkpoint c = checkpoint::open(path);
      const llama_config config = read_config(c);
      check_tensors(c, config);
      check_finite(c);
    } catch (const error& e) {
      message = e.what();
    }
    INFO(message);
    CHECK(message.empty() == (one["kind"] == "control"));
    if (std::getenv("QUENA_TEST_SHOW") != nullptr) MESSAGE(name, " -> ", message);
  }
  CHECK(n >= 40);
}
