// SPDX-License-Identifier: MIT
#include <quena/model/config.hpp>
#include <quena/model/generation_config.hpp>

#include <clocale>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "../gguf_writer.hpp"
#include "../support.hpp"

using namespace quena;

namespace {

json small() {
  return json::parse(R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_act":"silu","hidden_size":64,"intermediate_size":100,
    "num_hidden_layers":2,"num_attention_heads":8,"num_key_value_heads":2,"vocab_size":50,"max_position_embeddings":128,"rms_norm_eps":1e-05,
    "rope_theta":10000.0,"bos_token_id":1,"eos_token_id":2})");
}

json with(const char* key, const json& value) {
  json c = small();
  c[key] = value;
  return c;
}

json without(const char* key) {
  json c = small();
  c.erase(key);
  return c;
}

json scaled(const json& scaling) { return with("rope_scaling", scaling); }

std::string message_of(const json& config, errc* code = nullptr) {
  try {
    (void)parse_config(config, "config.json");
  } catch (const error& e) {
    if (code != nullptr) *code = e.code();
    return e.what();
  }
  return "";
}

void refused(const json& config, std::string_view part, errc code = errc::malformed) {
  errc got{};
  const std::string message = message_of(config, &got);
  INFO(config.dump());
  INFO(message);
  CHECK(message.find(part) != message.npos);
  CHECK(message.ends_with(" (config.json)"));
  CHECK(got == code);
}

const json llama3 = json::parse(R"({"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":64})");

/// A GGUF Llama of which tests change the metadata. It has only as many tensors as read_config() looks at.
struct small_gguf {
  using value = std::variant<std::uint32_t, float, std::string, std::vector<std::string>>;
  std::map<std::string, value> values = {{"general.architecture", std::string("llama")}, {"llama.embedding_length", 64u},        {"llama.feed_forward_length", 100u},
                                         {"llama.block_count", 2u},                      {"llama.attention.head_count", 8u},     {"llama.attention.head_count_kv", 2u},
                                         {"llama.context_length", 128u},                 {"llama.attention.layer_norm_rms_epsilon", 1e-5f}};
  std::map<std::string, std::vector<std::uint64_t>> tensors = {{"token_embd.weight", {64, 50}}};  // f32, all bytes 1

  std::string bytes() const {
    quena_test::gguf_writer w;
    w.header(tensors.size(), values.size());
    for (const auto& [key, v] : values) {
      if (const auto* n = std::get_if<std::uint32_t>(&v)) w.key(key, 4).number(*n);
      else if (const auto* x = std::get_if<float>(&v)) w.key(key, 6).number(*x);
      else if (const auto* s = std::get_if<std::string>(&v)) w.key(key, 8).string(*s);
      else {
        const auto& list = std::get<std::vector<std::string>>(v);
        w.key(key, 9).number(std::uint32_t{8}).number(static_cast<std::uint64_t>(list.size()));
        for (const std::string& item : list) w.string(item);
      }
    }
    std::uint64_t at = 0;
    for (const auto& [name, dims] : tensors) {
      w.tensor(name, dims, 0, at);
      std::uint64_t n = 4;
      for (const std::uint64_t d : dims) n *= d;
      at += (n + 31) / 32 * 32;
    }
    return w.pad(32).data(at).bytes;
  }
  llama_config read() const {
    const std::string b = bytes();
    return read_config(checkpoint::from_memory(std::as_bytes(std::span(b)), "m.gguf"));
  }
  std::string problem() const {
    try {
      (void)read();
    } catch (const error& e) {
      return e.what();
    }
    return "";
  }
  small_gguf with(const std::string& key, value v) const {
    small_gguf g = *this;
    g.values[key] = std::move(v);
    return g;
  }
};

bool says(const small_gguf& g, std::string_view part) {
  const std::string m = g.problem();
  if (m.find(part) == m.npos) MESSAGE("got: ", m);
  return m.find(part) != m.npos && m.ends_with(" (m.gguf)");
}

}  // namespace

TEST_CASE("config: reference cases") {
  QUENA_NEEDS_FIXTURES(dir);
  const json cases = json::parse(quena_test::read_file(dir + "/config/config_cases.json"));
  CHECK(cases.size() >= 8);
  for (const json& one : cases) {
    INFO(one["name"].dump());
    const llama_config c = parse_config(one["config"], "config.json");
    const json& e = one["expected"];
    CHECK(c.hidden_size == e["hidden"]);
    CHECK(c.intermediate_size == e["intermediate"]);
    CHECK(c.n_layers == e["layers"]);
    CHECK(c.n_heads == e["heads"]);
    CHECK(c.n_kv_heads == e["kv_heads"]);
    CHECK(c.head_dim == e["head_dim"]);
    CHECK(c.vocab_size == e["vocab"]);
    CHECK(c.max_position_embeddings == e["max_positions"]);
    CHECK(c.rms_norm_eps == e["rms_eps"].get<float>());
    CHECK(c.rope.theta == e["rope_theta"].get<double>());
    CHECK(rope_type_name(c.rope.type) == e["rope_type"].get<std::string>());
    CHECK(c.tie_word_embeddings == e["tied"]);
    CHECK(c.attention_bias == e["attention_bias"]);
    CHECK(c.mlp_bias == e["mlp_bias"]);
    CHECK(json(c.bos_token_id.value_or(-1)) == e["bos"]);
    CHECK(json(c.eos_token_ids) == e["eos"]);
    CHECK(c.dtype == e["dtype"].get<std::string>());
    const std::vector<double> f = inv_freq(c.rope, c.head_dim), want = e["inv_freq"].get<std::vector<double>>();
    REQUIRE(f.size() == want.size());
    for (std::size_t i = 0; i < f.size(); ++i) CHECK(std::abs(f[i] - want[i]) <= 1e-6 * want[i]);
  }
}

TEST_CASE("config: defaults for what is absent or null") {
  json c = json::parse(R"({"model_type":"llama","hidden_size":64,"intermediate_size":100,"num_hidden_layers":2,"num_attention_heads":8,"vocab_size":50})");
  for (int round = 0; round < 2; ++round) {
    const llama_config p = parse_config(c, "config.json");
    CHECK(p.n_kv_heads == 8);
    CHECK(p.head_dim == 8);
    CHECK(p.max_position_embeddings == 2048);
    CHECK(p.rms_norm_eps == 1e-6f);
    CHECK(p.rope.theta == 10000);
    CHECK(p.rope.type == rope_type::standard);
    CHECK_FALSE(p.tie_word_embeddings);
    CHECK_FALSE(p.bos_token_id);
    CHECK(p.eos_token_ids.empty());
    CHECK(p.dtype.empty());
    for (const char* key : {"num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "rope_theta", "rope_scaling", "tie_word_embeddings", "attention_bias",
                            "mlp_bias", "bos_token_id", "eos_token_id", "torch_dtype", "architectures", "hidden_act", "quantization_config"})
      c[key] = nullptr;
  }
}

TEST_CASE("config: every field is checked") {
  CHECK(message_of(small()).empty());
  for (const char* key : {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"}) {
    refused(without(key), std::string(key) + ": expected an integer, but it is absent");
    for (const json& bad : {json("64"), json(-1), json(0), json(1.5), json(64.0), json(1ull << 40), json::array(), json::object(), json(true)})
      refused(with(key, bad), std::string(key) + ": expected an integer from 1 to ");
  }
  refused(with("num_hidden_layers", 2147483647), "got 2147483647");
  for (const char* key : {"num_key_value_heads", "head_dim", "max_position_embeddings"})
    for (const json& bad : {json("1"), json(0), json(-2), json(2.0)}) refused(with(key, bad), std::string(key) + ": expected an integer");
  refused(with("num_key_value_heads", 3), "multiple of the key/value heads, got 8 and 3");
  refused(with("num_key_value_heads", 16), "got 8 and 16");
  refused(with("head_dim", 7), "expected an even head_dim");
  refused(with("hidden_size", 65), "multiple of num_attention_heads");
  refused(with("hidden_size", 72), "expected an even head_dim from 2 to 8192, got 9");
  CHECK(message_of(with("head_dim", 10)).empty());
  for (const json& bad : {json(0), json(-1e-5), json("1e-5"), json(1e-60), json(2)}) refused(with("rms_norm_eps", bad), "");
  for (const json& bad : {json(0), json(-1.0), json("x"), json(1e300)}) refused(with("rope_theta", bad), "");
  for (const char* key : {"tie_word_embeddings", "attention_bias", "mlp_bias"}) refused(with(key, 1), std::string(key) + ": expected true or false, got 1");
  for (const json& bad : {json(50), json(-1), json("2"), json(2.0), json({1, 50}), json({{1}})}) refused(with("eos_token_id", bad), "eos_token_id: expected token ids");
  CHECK(parse_config(with("eos_token_id", {3, 4}), "f").eos_token_ids == std::vector<std::int32_t>{3, 4});
  refused(json::array(), "expected an object, got an array");
  refused(json(nullptr), "expected an object");
}

TEST_CASE("config: other models are refused by name") {
  refused(with("model_type", "mistral"), "model_type: expected llama, got \"mistral\"", errc::unsupported);
  refused(with("architectures", {"MistralForCausalLM"}), "architectures: expected LlamaForCausalLM, got \"MistralForCausalLM\"", errc::unsupported);
  refused(with("architectures", {"LlamaForSequenceClassification"}), "architectures", errc::unsupported);
  refused(with("architectures", "LlamaForCausalLM"), "architectures: expected an array of strings");
  refused(with("hidden_act", "gelu"), "hidden_act: expected silu, got \"gelu\"", errc::unsupported);
  refused(with("quantization_config", {{"quant_method", "awq"}, {"bits", 4}}), "got \"awq\"", errc::unsupported);
  refused(with("quantization_config", json::object()), "quantization_config", errc::unsupported);
  refused(with("partial_rotary_factor", 0.5), "partial_rotary_factor", errc::unsupported);
  json c = without("model_type");
  CHECK(message_of(c).empty());
  c.erase("architectures");
  refused(c, "model_type: expected llama, but it is absent");
}

TEST_CASE("config: rope scaling") {
  CHECK(parse_config(scaled(llama3), "f").rope.type == rope_type::llama3);
  CHECK(parse_config(scaled({{"type", "dynamic"}, {"factor", 2}}), "f").rope.type == rope_type::dynamic);
  CHECK(parse_config(scaled(json::object()), "f").rope.type == rope_type::standard);
  const rope_config yarn = parse_config(scaled({{"rope_type", "yarn"}, {"factor", 4.0}}), "f").rope;
  CHECK(yarn.original_max_position_embeddings == 128);
  CHECK(yarn.truncate);
  const rope_config ratio = parse_config(scaled({{"rope_type", "yarn"}, {"original_max_position_embeddings", 32}, {"truncate", false}}), "f").rope;
  CHECK(ratio.factor == 4);
  CHECK_FALSE(ratio.truncate);
  const rope_config both = parse_config(with("rope_parameters", {{"rope_type", "linear"}, {"factor", 2}, {"rope_theta", 777}}), "f").rope;
  CHECK(both.theta == 777);
  CHECK(both.type == rope_type::linear);

  refused(scaled({{"rope_type", "longrope"}, {"factor", 2}}), "rope_scaling.rope_type: expected default, linear, dynamic, yarn or llama3, got \"longrope\"", errc::unsupported);
  refused(scaled({{"type", "su"}}), "rope_scaling.type", errc::unsupported);
  refused(scaled({{"factor", 2}}), "rope_scaling.rope_type: expected a string, but it is absent");
  refused(scaled("linear"), "rope_scaling: expected an object");
  refused(with("rope_parameters", {{"full_attention", {{"rope_type", "default"}, {"rope_theta", 5000}}}}), "rope_parameters: expected one set of parameters for all layers", errc::unsupported);
  refused(scaled({{"type", 3}}), "rope_scaling.type: expected a string, got 3");
  for (const json& bad : {json(0), json(-1), json("2"), json(1e300)}) refused(scaled({{"type", "linear"}, {"factor", bad}}), "");
  refused(scaled({{"type", "linear"}}), "rope_scaling.factor: expected a number, but it is absent");
  for (const char* key : {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
    json s = llama3;
    s.erase(key);
    refused(scaled(s), std::string("rope_scaling.") + key);
    for (const json& bad : {json(0), json(-1), json("2")}) {
      s[key] = bad;
      refused(scaled(s), std::string("rope_scaling.") + key);
    }
  }
  json s = llama3;
  s["low_freq_factor"] = 5.0;
  refused(scaled(s), "expected high_freq_factor of at least low_freq_factor");
  refused(scaled({{"type", "yarn"}, {"factor", 2}, {"beta_fast", 1}, {"beta_slow", 2}}), "beta_fast");
  refused(scaled({{"type", "yarn"}, {"factor", 2}, {"attention_factor", -1}}), "attention_factor");
}

TEST_CASE("config: numbers don't depend on the locale") {
  const std::string before = std::setlocale(LC_ALL, nullptr);
  bool found = false;
  for (const char* name : {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "de_DE"}) found = found || std::setlocale(LC_ALL, name) != nullptr;
  const json c = parse_json(R"({"model_type":"llama","hidden_size":64,"intermediate_size":100,"num_hidden_layers":2,"num_attention_heads":8,"vocab_size":50,
    "rms_norm_eps":1e-05,"rope_theta":500000.5,"rope_scaling":{"type":"linear","factor":8.25}})", "test");
  const llama_config p = parse_config(c, "f");
  const std::string text = json(0.5).dump() + json(1234567).dump();
  std::setlocale(LC_ALL, before.c_str());
  if (!found) MESSAGE("no locale with a decimal comma on this machine");
  CHECK(p.rms_norm_eps == 1e-05f);
  CHECK(p.rope.theta == 500000.5);
  CHECK(p.rope.factor == 8.25);
  CHECK(text == "0.51234567");
}

TEST_CASE("config: the same from a folder and from GGUF") {
  QUENA_NEEDS_FIXTURES(dir);
  const std::pair<const char*, const char*> pairs[] = {{"bias-sharded-f32", "bias-sharded-f32-f32"}, {"k256-bf16", "k256-bf16-q4_k_m"}, {"linear-rope-f32", "linear-rope-f32-f32"},
                                                       {"stories260K", "stories260K-f32"}, {"t31-gqa4-bf16", "t31-gqa4-bf16-bf16"}};
  for (const auto& both : pairs) {
    const std::string folder = both.first, file = both.second;
    INFO(folder);
    const llama_config a = read_config(checkpoint::open(dir + "/models/" + folder));
    const llama_config b = read_config(checkpoint::open(dir + "/gguf/" + folder + "/" + file + ".gguf"));
    CHECK(a.hidden_size == b.hidden_size);
    CHECK(a.intermediate_size == b.intermediate_size);
    CHECK(a.n_layers == b.n_layers);
    CHECK(a.n_heads == b.n_heads);
    CHECK(a.n_kv_heads == b.n_kv_heads);
    CHECK(a.head_dim == b.head_dim);
    CHECK(a.vocab_size == b.vocab_size);
    CHECK(a.max_position_embeddings == b.max_position_embeddings);
    CHECK(a.rms_norm_eps == b.rms_norm_eps);
    CHECK(a.tie_word_embeddings == b.tie_word_embeddings);
    CHECK(a.attention_bias == b.attention_bias);
    CHECK(a.mlp_bias == b.mlp_bias);
    CHECK(a.bos_token_id == b.bos_token_id);
    for (const std::int32_t id : a.eos_token_ids) CHECK(std::find(b.eos_token_ids.begin(), b.eos_token_ids.end(), id) != b.eos_token_ids.end());
    const std::vector<double> x = inv_freq(a.rope, a.head_dim), y = inv_freq(b.rope, b.head_dim);
    REQUIRE(x.size() == y.size());
    for (std::size_t i = 0; i < x.size(); ++i) CHECK(std::abs(x[i] - y[i]) <= 2e-7 * x[i]);  // the divisors are f32
  }
}

TEST_CASE("config: GGUF metadata") {
  const small_gguf g;
  const llama_config c = g.read();
  CHECK(c.head_dim == 8);
  CHECK(c.n_kv_heads == 2);
  CHECK(c.vocab_size == 50);
  CHECK(c.tie_word_embeddings);
  CHECK(c.rope.theta == 10000);
  CHECK_FALSE(c.bos_token_id);
  CHECK(c.eos_token_ids.empty());

  for (const char* key : {"llama.embedding_length", "llama.feed_forward_length", "llama.block_count", "llama.attention.head_count", "llama.context_length",
                          "llama.attention.layer_norm_rms_epsilon", "general.architecture"}) {
    small_gguf missing = g;
    missing.values.erase(key);
    CHECK(says(missing, std::string("expected the key ") + key));
    CHECK(says(g.with(key, std::vector<std::string>{"x"}), std::string(key) + ": expected "));
  }
  CHECK(says(g.with("llama.block_count", 0u), "llama.block_count: expected an integer from 1 to 4096, got 0"));
  CHECK(says(g.with("llama.attention.head_count", 0u), "llama.attention.head_count: expected at least 1"));
  CHECK(says(g.with("llama.attention.head_count_kv", 3u), "got 8 and 3"));
  CHECK(says(g.with("llama.attention.layer_norm_rms_epsilon", 0.0f), "epsilon above 0"));
  CHECK(says(g.with("llama.attention.layer_norm_rms_epsilon", std::nanf("")), "epsilon above 0"));
  CHECK(says(g.with("llama.rope.freq_base", 0.0f), "rope: expected theta above 0"));
  CHECK(says(g.with("llama.rope.freq_base", std::nanf("")), "rope: expected theta above 0"));
  CHECK(says(g.with("llama.attention.key_length", 7u), "expected an even head_dim"));
  CHECK(says(g.with("llama.attention.value_length", 16u), "to be equal"));
  CHECK(says(g.with("llama.rope.dimension_count", 4u), "to be equal"));
  CHECK(g.with("llama.attention.key_length", 16u).with("llama.attention.value_length", 16u).read().head_dim == 16);
  CHECK(says(g.with("llama.expert_count", 8u), "expected no experts"));
  CHECK(g.with("llama.expert_count", 0u).problem() == "");
  CHECK(says(g.with("llama.attention.scale", 0.5f), "llama.attention.scale: expected none"));
  CHECK(says(g.with("general.architecture", std::string("qwen2")), "expected llama, got qwen2"));
  CHECK(says(g.with("split.count", 3u), "got one of 3 parts"));
  CHECK(g.with("split.count", 1u).problem() == "");

  CHECK(says(g.with("tokenizer.ggml.tokens", std::vector<std::string>(51, "x")), "expected at most 50 tokens"));
  CHECK(g.with("tokenizer.ggml.tokens", std::vector<std::string>(49, "x")).problem() == "");
  CHECK(says(g.with("tokenizer.ggml.eos_token_id", 50u), "tokenizer.ggml.eos_token_id: expected a token below 50, got 50"));
  CHECK(says(g.with("tokenizer.ggml.bos_token_id", ~0u), "tokenizer.ggml.bos_token_id"));
  CHECK(g.with("tokenizer.ggml.eos_token_id", 7u).with("tokenizer.ggml.eot_token_id", 9u).with("tokenizer.ggml.eom_token_id", 7u).read().eos_token_ids == std::vector<std::int32_t>{7, 9});
}

TEST_CASE("config: GGUF rope scaling") {
  const small_gguf g;
  const rope_config linear = g.with("llama.rope.scaling.type", std::string("linear")).with("llama.rope.scaling.factor", 4.0f).read().rope;
  CHECK(linear.type == rope_type::linear);
  CHECK(linear.factor == 4);
  CHECK(g.with("llama.rope.scale_linear", 2.0f).read().rope.type == rope_type::linear);
  CHECK(g.with("llama.rope.scaling.factor", 2.0f).read().rope.type == rope_type::linear);  // without a type
  CHECK(g.with("llama.rope.scaling.factor", 1.0f).read().rope.type == rope_type::standard);
  CHECK(says(g.with("llama.rope.scaling.factor", 0.0f), "factor above 0"));
  CHECK(g.with("llama.rope.scaling.type", std::string("linear")).with("llama.rope.scale_linear", 2.0f).read().rope.factor == 2);
  CHECK(g.with("llama.rope.scaling.type", std::string("none")).read().rope.type == rope_type::standard);
  const rope_config yarn = g.with("llama.rope.scaling.type", std::string("yarn"))
                               .with("llama.rope.scaling.factor", 4.0f)
                               .with("llama.rope.scaling.original_context_length", 32u)
                               .with("llama.rope.scaling.attn_factor", 0.5f)
                               .read()
                               .rope;
  CHECK(yarn.type == rope_type::yarn);
  CHECK(yarn.original_max_position_embeddings == 32);
  CHECK(std::abs(rope_attention_factor(yarn) - 0.5 * (0.1 * std::log(4.0) + 1)) < 1e-12);
  CHECK(says(g.with("llama.rope.scaling.type", std::string("yarn")), "expected the key llama.rope.scaling.factor"));
  CHECK(says(g.with("llama.rope.scaling.type", std::string("longrope")), "got longrope"));
  CHECK(says(g.with("llama.rope.scaling.type", std::string("linear")).with("llama.rope.scaling.factor", 0.0f), "factor above 0"));

  small_gguf divisors = g;
  divisors.tensors["rope_freqs.weight"] = {4};
  CHECK(divisors.read().rope.divisors.size() == 4);
  divisors.tensors["rope_freqs.weight"] = {5};
  CHECK(says(divisors, "rope_freqs.weight: expected 4 numbers of f32"));
  small_gguf longrope = g;
  longrope.tensors["rope_factors_long.weight"] = {4};
  CHECK(says(longrope, "expected no longrope scaling"));
}

TEST_CASE("config: generation defaults") {
  quena_test::temp_dir tmp;
  quena_test::write_file(tmp / "config.json", with("eos_token_id", 9).dump());
  const auto read = [&](const char* text) {
    quena_test::write_file(tmp / "generation_config.json", text);
    return read_generation_defaults(checkpoint::open(tmp.path(), {.weights = false}));
  };
  const generation_defaults d = read(R"({"eos_token_id":[7,8,9],"do_sample":true,"temperature":0.6,"top_p":0.9,"top_k":40,"min_p":0.05,"repetition_penalty":1.1,"other":{}})");
  CHECK(d.eos_token_ids == std::vector<std::int32_t>{7, 8, 9});
  CHECK(d.do_sample == true);
  CHECK(d.temperature == 0.6f);
  CHECK(d.top_p == 0.9f);
  CHECK(d.top_k == 40);
  CHECK(d.min_p == 0.05f);
  CHECK(d.repetition_penalty == 1.1f);
  CHECK(read("{}").eos_token_ids == std::vector<std::int32_t>{9});
  CHECK_FALSE(read(R"({"temperature":null})").temperature);
  for (const char* bad : {"[]", "{", R"({"temperature":"hot"})", R"({"temperature":-1})", R"({"top_p":1.5})", R"({"top_k":-1})", R"({"do_sample":1})", R"({"eos_token_id":"x"})", R"({"repetition_penalty":0})"})
    CHECK_THROWS_AS((void)read(bad), error);
}
