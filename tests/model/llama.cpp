// SPDX-License-Identifier: MIT
// Whole models on the reference backend and the CPU: the fixtures' logits, ties, observers, cancellation, errors.
#include <quena/backend/cpu/cpu.hpp>
#include <quena/backend/reference.hpp>
#include <quena/io/json.hpp>
#include <quena/model/session.hpp>

#include <algorithm>
#include <cmath>
#include <random>
#include <stop_token>
#include <string>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include "../npy.hpp"
#include "../support.hpp"
#include "../synthetic_model.hpp"

using namespace quena;
using quena_test::synthetic_model;
using quena_test::synthetic_options;

namespace {

template <class B>
B quiet_backend() {  // one thread: tests run beside other tests
  if constexpr (std::is_same_v<B, cpu>) return cpu(cpu_options{.threads = 1});
  else return B();
}

template <class B>
tensor<float, 2> all_logits(const llama<B>& model, std::span<const token_id> ids) {
  session<B> s(model, {.max_positions = (std::max)(ids.size(), std::size_t{1})}, {.max_rows = 64, .max_logits = 64});
  tensor<float, 2> logits({ids.size(), model.config().vocab_size});
  s.feed_all(ids, [&](std::size_t i, std::span<const float> row) { std::copy(row.begin(), row.end(), &logits(i, std::size_t{0})); });
  return logits;
}

struct distance {
  double largest = 0, rms = 0;
};
distance between(const tensor<float, 2>& a, const tensor<float, 2>& b) {
  REQUIRE(a.shape() == b.shape());
  distance d;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(double{a.data()[i]} - double{b.data()[i]});
    d.largest = difference <= d.largest ? d.largest : difference;  // NaN counts
    d.rms += difference * difference;
  }
  d.rms = std::sqrt(d.rms / static_cast<double>(a.size()));
  return d;
}

std::vector<token_id> ids_of(const json& list) {
  std::vector<token_id> ids;
  for (const json& id : list) ids.push_back(id.get<token_id>());
  return ids;
}
json read_json_file(const std::string& path) { return parse_json(quena_test::read_file(path), "test", path); }

/// The README's tolerance for float32 arithmetic.
void check_close(const tensor<float, 2>& got, const tensor<float, 2>& want) {
  const distance d = between(got, want);
  CHECK(d.largest < 5e-4);
  CHECK(d.rms < 5e-5);
}

constexpr const char* fixture_models[] = {"bias-sharded-f32", "k256-bf16", "linear-rope-f32", "stories260K", "t31-gqa4-bf16", "tied-f16-eps"};

template <class B>
void check_fixture_models(const std::string& folder, std::size_t longest) {
  for (const char* name : fixture_models) {
    CAPTURE(std::string(name));
    const std::string path = folder + "/models/" + name;
    const llama<B> model(checkpoint::open(path), quiet_backend<B>(), {.format = format::f32});
    const json reference_data = read_json_file(path + "/ref/ref.json");
    for (const json& prompt : reference_data["prompts"]) {
      const std::vector<token_id> ids = ids_of(prompt["tokens"]);
      if (ids.size() > longest) continue;
      CAPTURE(ids.size());
      check_close(all_logits(model, ids), quena_test::read_npy(path + "/ref/" + prompt["logits"].get<std::string>()));
    }
  }
}

template <class B>
void check_fixture_ggufs(const std::string& folder) {
  for (const char* name : {"bias-sharded-f32", "k256-bf16", "linear-rope-f32", "stories260K", "t31-gqa4-bf16"}) {
    const json about = read_json_file(folder + "/gguf/" + name + "/quant.json");
    const std::vector<token_id> ids = ids_of(about["logits_prompt"]);
    for (json::const_iterator facts = about["files"].begin(); facts != about["files"].end(); ++facts) {
      CAPTURE(facts.key());
      const llama<B> model(checkpoint::open(folder + "/gguf/" + name + "/" + facts.key()), quiet_backend<B>(), {.format = format::f32});
      const json& logits = facts.value()["logits"];
      const std::string want = logits.is_string() ? folder + "/gguf/" + name + "/" + logits.get<std::string>() : folder + "/models/" + name + "/ref/logits_64.npy";
      check_close(all_logits(model, ids), quena_test::read_npy(want));
    }
  }
}

std::vector<token_id> some_tokens(std::size_t n, std::size_t vocab_size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<token_id> ids(n);
  for (token_id& id : ids) id = static_cast<token_id>(random() % vocab_size);
  return ids;
}

std::vector<row> rows_of(std::span<const token_id> ids, sequence_id sequence, bool logits = true, std::size_t first = 0) {
  std::vector<row> rows;
  for (std::size_t i = 0; i < ids.size(); ++i) rows.push_back({ids[i], static_cast<std::uint32_t>(first + i), sequence, logits});
  return rows;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != text.npos);
  return text.replace(at, from.size(), to);
}

/// hidden x matrix^T for the first rows, in double.
void check_logits_are_products(const forward_output& out, const std::vector<float>& weights) {
  const std::size_t hidden_size = out.hidden.extent(1);
  std::size_t n_wrong = 0;
  for (std::size_t i = 0; i < out.logits.extent(0); ++i)
    for (std::size_t r = 0; r < out.logits.extent(1); ++r) {
      double sum = 0, terms = 0;
      for (std::size_t k = 0; k < hidden_size; ++k) {
        const double product = double{out.hidden(i, k)} * double{weights[r * hidden_size + k]};
        sum += product, terms += std::abs(product);
      }
      if (!(std::abs(double{out.logits(i, r)} - sum) <= 1e-6 * terms)) ++n_wrong;
    }
  CHECK(out.logits.extent(0) > 0);
  CHECK(n_wrong == 0);
}

}  // namespace

namespace {

/// The whole model once more, over all positions at once, in doubles, from the tensors' names: no cache, no backend, no batch.
std::vector<std::vector<double>> plain_llama(const checkpoint& files, const llama_config& c, const std::vector<token_id>& ids) {
  using rows = std::vector<std::vector<double>>;
  const auto values = [&](const std::string& name) {
    const checkpoint_tensor* t = files.find(name);
    std::vector<float> v(t == nullptr ? 0 : t->data.size() / block_bytes(t->type));
    if (t != nullptr) dequantize_row(t->type, t->data.data(), v.data(), v.size());
    return v;
  };
  const auto linear = [&](const std::string& module, const rows& x) {
    const std::vector<float> w = values(module + ".weight"), bias = values(module + ".bias");
    rows y;
    for (const std::vector<double>& row : x) {
      y.emplace_back(w.size() / row.size());
      for (std::size_t r = 0; r < y.back().size(); ++r) {
        y.back()[r] = bias.empty() ? 0.0 : double{bias[r]};
        for (std::size_t k = 0; k < row.size(); ++k) y.back()[r] += double{w[r * row.size() + k]} * row[k];
      }
    }
    return y;
  };
  const auto norm = [&](const std::string& name, rows x) {
    const std::vector<float> gain = values(name + ".weight");
    for (std::vector<double>& row : x) {
      double squares = 0;
      for (const double v : row) squares += v * v;
      for (std::size_t k = 0; k < row.size(); ++k) row[k] *= double{gain[k]} / std::sqrt(squares / static_cast<double>(row.size()) + double{c.rms_norm_eps});
    }
    return x;
  };
  const auto rotate = [&](rows& x) {
    const std::size_t d = c.head_dim;
    for (std::size_t p = 0; p < x.size(); ++p)
      for (std::size_t at = 0; at < x[p].size(); at += d)
        for (std::size_t t = 0; t < d / 2; ++t) {
          const double angle = static_cast<double>(p) / std::pow(10000.0, 2 * static_cast<double>(t) / static_cast<double>(d));
          const double a = x[p][at + t], b = x[p][at + d / 2 + t];
          x[p][at + t] = a * std::cos(angle) - b * std::sin(angle);
          x[p][at + d / 2 + t] = b * std::cos(angle) + a * std::sin(angle);
        }
  };
  const auto add = [](rows& x, const rows& y) {
    for (std::size_t p = 0; p < x.size(); ++p)
      for (std::size_t k = 0; k < x[p].size(); ++k) x[p][k] += y[p][k];
  };

  rows x;
  const std::vector<float> embedding = values("model.embed_tokens.weight");
  for (const token_id id : ids) x.emplace_back(embedding.begin() + id * static_cast<std::ptrdiff_t>(c.hidden_size), embedding.begin() + (id + 1) * static_cast<std::ptrdiff_t>(c.hidden_size));
  for (std::size_t l = 0; l < c.n_layers; ++l) {
    const std::string layer = "model.layers." + std::to_string(l) + ".";
    const rows h = norm(layer + "input_layernorm", x);
    rows q = linear(layer + "self_attn.q_proj", h), k = linear(layer + "self_attn.k_proj", h), attended = q;
    const rows v = linear(layer + "self_attn.v_proj", h);
    rotate(q), rotate(k);
    for (std::size_t p = 0; p < q.size(); ++p)
      for (std::size_t head = 0; head < c.n_heads; ++head) {
        const std::size_t at = head * c.head_dim, kv_at = head / (c.n_heads / c.n_kv_heads) * c.head_dim;
        std::vector<double> weight(p + 1);
        double sum = 0;
        for (std::size_t j = 0; j <= p; ++j) {
          double dot = 0;
          for (std::size_t t = 0; t < c.head_dim; ++t) dot += q[p][at + t] * k[j][kv_at + t];
          sum += weight[j] = std::exp(dot / std::sqrt(static_cast<double>(c.head_dim)));
        }
        for (std::size_t t = 0; t < c.head_dim; ++t) {
          double value = 0;
          for (std::size_t j = 0; j <= p; ++j) value += weight[j] / sum * v[j][kv_at + t];
          attended[p][at + t] = value;
        }
      }
    add(x, linear(layer + "self_attn.o_proj", attended));
    const rows g = norm(layer + "post_attention_layernorm", x);
    rows gate = linear(layer + "mlp.gate_proj", g);
    const rows up = linear(layer + "mlp.up_proj", g);
    for (std::size_t p = 0; p < gate.size(); ++p)
      for (std::size_t j = 0; j < gate[p].size(); ++j) gate[p][j] *= up[p][j] / (1 + std::exp(-gate[p][j]));
    add(x, linear(layer + "mlp.down_proj", gate));
  }
  return linear(c.tie_word_embeddings ? "model.embed_tokens" : "lm_head", norm("model.norm", x));
}

template <class B>
void check_against_plain(const synthetic_options& o) {
  const synthetic_model files(o);
  const checkpoint opened = files.open();
  const std::vector<token_id> ids = some_tokens(37, o.vocab_size, 9);
  const llama<B> model(opened, quiet_backend<B>(), {.format = format::f32});
  const std::vector<std::vector<double>> want = plain_llama(opened, model.config(), ids);
  tensor<float, 2> exact({ids.size(), o.vocab_size});
  for (std::size_t i = 0; i < exact.size(); ++i) exact.data()[i] = static_cast<float>(want[i / o.vocab_size][i % o.vocab_size]);
  check_close(all_logits(model, ids), exact);
}

}  // namespace

TEST_CASE("llama: the model written down once more in doubles") {
  for (const synthetic_options& o : {synthetic_options{}, synthetic_options{.hidden_size = 40, .intermediate_size = 56, .n_layers = 3, .n_heads = 6, .n_kv_heads = 3, .head_dim = 10, .vocab_size = 67, .tied = false, .biases = true},
                                     synthetic_options{.n_heads = 4, .n_kv_heads = 1, .head_dim = 8, .biases = true, .type = dtype::bf16},
                                     synthetic_options{.n_heads = 3, .n_kv_heads = 3, .head_dim = 22, .vocab_size = 511, .type = dtype::f16}}) {
    CAPTURE(o.head_dim);
    check_against_plain<reference>(o);
    check_against_plain<cpu>(o);
  }
}

TEST_CASE("llama: the fixtures' logits on the reference backend") {
  QUENA_NEEDS_FIXTURES(folder);
  check_fixture_models<reference>(folder, 7);
}

TEST_CASE("llama: the fixtures' logits on the CPU") {
  QUENA_NEEDS_FIXTURES(folder);
  check_fixture_models<cpu>(folder, 64);
}

TEST_CASE("llama: the fixtures' logits, every prompt, both backends [slow]") {
  QUENA_NEEDS_FIXTURES(folder);
  check_fixture_models<reference>(folder, 1000);
  check_fixture_models<cpu>(folder, 1000);
}

TEST_CASE("llama: GGUF files give the logits of their dequantised weights (A08)") {
  QUENA_NEEDS_FIXTURES(folder);
  check_fixture_ggufs<cpu>(folder);
}

TEST_CASE("llama: GGUF files on the reference backend [slow]") {
  QUENA_NEEDS_FIXTURES(folder);
  check_fixture_ggufs<reference>(folder);
}

TEST_CASE("llama: Hugging Face and GGUF files of one model agree (A08)") {
  QUENA_NEEDS_FIXTURES(folder);
  for (const auto& [name, file] : {std::pair{"bias-sharded-f32", "f32"}, {"linear-rope-f32", "f32"}, {"stories260K", "f32"}, {"t31-gqa4-bf16", "bf16"}}) {
    const std::string model_name = name;
    CAPTURE(model_name);
    const checkpoint hf = checkpoint::open(folder + "/models/" + name), gguf = checkpoint::open(folder + "/gguf/" + name + "/" + name + "-" + file + ".gguf");
    const llama<reference> a(hf, reference(), {.format = format::f32}), b(gguf, reference(), {.format = format::f32});
    CHECK(a.weights().embed_tokens.weights == b.weights().embed_tokens.weights);
    for (std::size_t l = 0; l < a.config().n_layers; ++l) {  // after loading, nothing tells the two apart
      CHECK(a.weights().layers[l].qkv_proj.weights == b.weights().layers[l].qkv_proj.weights);
      CHECK(a.weights().layers[l].qkv_proj.bias == b.weights().layers[l].qkv_proj.bias);
      CHECK(a.weights().layers[l].gate_up_proj.weights == b.weights().layers[l].gate_up_proj.weights);
    }
    const std::vector<token_id> ids = some_tokens(40, a.config().vocab_size, 1);
    const tensor<float, 2> left = all_logits(a, ids), right = all_logits(b, ids);
    double largest = 0;
    for (const float x : left.span()) largest = (std::max)(largest, std::abs(double{x}));
    CHECK(between(left, right).largest < 1e-4 * largest);
  }
}

TEST_CASE("llama: greedy continuations of the fixtures") {
  QUENA_NEEDS_FIXTURES(folder);
  for (const char* name : fixture_models) {
    CAPTURE(std::string(name));
    const std::string path = folder + "/models/" + name;
    const llama<cpu> model(checkpoint::open(path), quiet_backend<cpu>(), {.format = format::f32});
    const json reference_data = read_json_file(path + "/ref/ref.json");
    for (const json& prompt : reference_data["prompts"]) {
      session<cpu> s(model);
      std::span<const float> logits = s.feed(ids_of(prompt["tokens"]));
      for (const token_id want : ids_of(prompt["greedy"])) {
        const auto best = static_cast<token_id>(std::max_element(logits.begin(), logits.end()) - logits.begin());
        REQUIRE(best == want);
        logits = s.feed(std::span(&best, 1));
      }
    }
  }
}

TEST_CASE("llama: prompts in pieces, in company, on any page size: the same bits on the reference backend, too") {
  const synthetic_model files({.hidden_size = 32, .intermediate_size = 48, .n_heads = 4, .n_kv_heads = 1, .head_dim = 6, .vocab_size = 61, .biases = true});
  for (const format f : {format::f32, format::bf16}) {
    const llama<reference> model(files.open(), reference(), {.format = f});
    const std::vector<token_id> ids = some_tokens(50, 61, 2), other = some_tokens(50, 61, 3);
    const tensor<float, 2> want = all_logits(model, ids);
    for (const std::size_t page_size : {16u, 48u})
      for (const std::size_t chunk : {1u, 7u, 16u, 50u}) {
        kv_cache<reference> cache = model.make_cache({.max_positions = 50, .max_sequences = 2, .page_size = page_size});
        workspace<reference> ws = model.make_workspace(cache, {.max_rows = 2 * chunk, .max_logits = chunk});
        const sequence_id b = cache.add(), a = cache.add();
        for (std::size_t at = 0; at < ids.size(); at += chunk) {
          const std::size_t n = (std::min)(chunk, ids.size() - at);
          std::vector<row> rows = rows_of(std::span(other).subspan(at, n), b, false, at);
          for (const row& r : rows_of(std::span(ids).subspan(at, n), a, true, at)) rows.insert(rows.begin() + static_cast<std::ptrdiff_t>(2 * (r.position - at)), r);  // interleaved
          const forward_output out = model.forward(rows, cache, ws);
          REQUIRE(out.logits.extent(0) == n);
          for (std::size_t i = 0; i < n; ++i) REQUIRE(std::equal(out.logits[i].span().begin(), out.logits[i].span().end(), &want(at + i, std::size_t{0})));
        }
      }
  }
}

TEST_CASE("llama: tied embeddings (A18)") {
  const std::string tied = "\"tie_word_embeddings\":true", untied = "\"tie_word_embeddings\":false";
  const std::vector<token_id> ids = some_tokens(9, 511, 4);
  const auto run = [&](const synthetic_model& files, auto&& check) {
    const llama<reference> model(files.open(), reference());
    kv_cache<reference> cache = model.make_cache({.max_positions = 16});
    workspace<reference> ws = model.make_workspace(cache, {.max_logits = 16});
    check(model, model.forward(rows_of(ids, cache.add()), cache, ws));
  };
  SUBCASE("no lm_head: the embedding is the output matrix") {
    run(synthetic_model({.vocab_size = 511}), [](const llama<reference>& model, const forward_output& out) {
      CHECK(!model.weights().lm_head);
      check_logits_are_products(out, model.weights().embed_tokens.weights);
    });
  }
  SUBCASE("both: the embedding is used") {
    synthetic_model files({.vocab_size = 511, .tied = false});
    files.config = replaced(files.config, untied, tied);
    run(files, [](const llama<reference>& model, const forward_output& out) {
      CHECK(!model.weights().lm_head);
      check_logits_are_products(out, model.weights().embed_tokens.weights);
    });
  }
  SUBCASE("untied: lm_head is used") {
    run(synthetic_model({.vocab_size = 511, .tied = false}), [](const llama<reference>& model, const forward_output& out) {
      REQUIRE(model.weights().lm_head);
      CHECK(model.weights().lm_head->weights != model.weights().embed_tokens.weights);
      check_logits_are_products(out, model.weights().lm_head->weights);
    });
  }
  SUBCASE("untied without lm_head is an error") {
    synthetic_model files({.vocab_size = 511});
    files.config = replaced(files.config, tied, untied);
    CHECK(quena_test::code_of([&] { llama<reference>(files.open(), reference()); }) == errc::malformed);
    CHECK_THROWS_WITH_AS(llama<reference>(files.open(), reference()), doctest::Contains("lm_head.weight"), error);
  }
  SUBCASE("in every format, on both backends, from a folder") {
    const synthetic_model files({.vocab_size = 511});
    const quena_test::temp_dir folder;
    quena_test::write_file(folder / "config.json", files.config);
    quena_test::write_file(folder / "model.safetensors", files.weights);
    const checkpoint opened = checkpoint::open(folder.path());
    for (const format f : {format::f32, format::f16, format::bf16}) {
      const tensor<float, 2> a = all_logits(llama<reference>(opened, reference(), {.format = f}), ids), b = all_logits(llama<cpu>(opened, quiet_backend<cpu>(), {.format = f}), ids);
      CHECK(between(a, b).largest < (f == format::f32 ? 1e-4 : 2e-2));  // cells of 16 bits round the same values from sums in another order
    }
  }
}

TEST_CASE("llama: the hidden state is what the output matrix sees") {
  const synthetic_model files({.tied = false});
  const llama<reference> model(files.open(), reference());
  kv_cache<reference> cache = model.make_cache({.max_positions = 32});
  workspace<reference> ws = model.make_workspace(cache, {.max_logits = 3});
  std::vector<row> rows = rows_of(some_tokens(10, 211, 5), cache.add(), false);
  forward_output out = model.forward(rows, cache, ws);
  CHECK(out.logits.extent(0) == 0);
  CHECK(out.hidden.extent(0) == 0);
  CHECK(cache.length(0) == 10);
  cache.rewind(0, 0);
  rows[1].wants_logits = rows[4].wants_logits = rows[9].wants_logits = true;
  out = model.forward(rows, cache, ws);
  CHECK(out.logits.shape() == std::array<std::size_t, 2>{3, 211});
  CHECK(out.hidden.shape() == std::array<std::size_t, 2>{3, 64});
  check_logits_are_products(out, model.weights().lm_head->weights);
}

TEST_CASE("llama: an observer sees the residual stream after every layer") {
  const synthetic_model files({.n_layers = 3});
  const llama<reference> model(files.open(), reference());
  kv_cache<reference> cache = model.make_cache({.max_positions = 32});
  workspace<reference> ws = model.make_workspace(cache, {.max_logits = 5});
  const std::vector<token_id> ids = some_tokens(5, 211, 6);
  std::vector<std::size_t> layers;
  tensor<float, 2> last({5, 64});
  const forward_output out = model.forward(rows_of(ids, cache.add()), cache, ws, {.on_layer = [&](std::size_t layer, tensor_view<const float, 2> x) {
    layers.push_back(layer);
    REQUIRE(x.shape() == std::array<std::size_t, 2>{5, 64});
    auto s = model.backend().make_stream({});
    model.backend().read(s, x, last.span());
  }});
  CHECK(layers == std::vector<std::size_t>{0, 1, 2});
  auto s = model.backend().make_stream({});
  tensor<float, 2> normalised({5, 64});
  model.backend().rmsnorm(s, last, model.weights().norm, model.config().rms_norm_eps, normalised);
  CHECK(std::equal(normalised.span().begin(), normalised.span().end(), out.hidden.data()));
}

TEST_CASE("llama: a cancelled pass leaves the cache as it was") {
  const synthetic_model files({.n_layers = 4});
  const llama<reference> model(files.open(), reference());
  const std::vector<token_id> ids = some_tokens(40, 211, 7);
  const tensor<float, 2> want = all_logits(model, ids);
  kv_cache<reference> cache = model.make_cache({.max_positions = 64});
  workspace<reference> ws = model.make_workspace(cache, {.max_logits = 64});
  const sequence_id id = cache.add();
  model.forward(rows_of(std::span(ids).first(15), id), cache, ws);
  const std::vector<row> rest = rows_of(std::span(ids).subspan(15), id, true, 15);
  const std::size_t free_pages = cache.free_pages();
  for (const std::size_t after : {0u, 1u, 3u}) {
    std::stop_source stop;
    std::size_t n_layers = 0;
    if (after == 0) stop.request_stop();
    const forward_options options{.stop = stop.get_token(), .on_layer = [&](std::size_t, tensor_view<const float, 2>) {
      if (++n_layers == after) stop.request_stop();
    }};
    CHECK(quena_test::code_of([&] { model.forward(rest, cache, ws, options); }) == errc::cancelled);
    CHECK(n_layers == after);  // no layer begins after the request
    CHECK(cache.length(id) == 15);
    CHECK(cache.free_pages() == free_pages);
  }
  CHECK_THROWS_AS(model.forward(rest, cache, ws, {.on_layer = [](std::size_t, tensor_view<const float, 2>) { throw 5; }}), int);  // the observer's own
  CHECK(cache.length(id) == 15);
  const forward_output out = model.forward(rest, cache, ws);
  CHECK(std::equal(out.logits.data(), out.logits.data() + out.logits.size(), &want(std::size_t{15}, std::size_t{0})));
}

TEST_CASE("llama: what does not fit is refused, and the model works afterwards (A09, A32)") {
  const synthetic_model files;
  const llama<reference> model(files.open(), reference());
  kv_cache<reference> cache = model.make_cache({.max_positions = 32, .max_sequences = 3, .n_pages = 3});
  workspace<reference> ws = model.make_workspace(cache, {.max_rows = 40, .max_logits = 2});
  const sequence_id a = cache.add(), b = cache.add();
  const std::vector<token_id> ids = some_tokens(40, 211, 8);
  const auto refused = [&](const std::vector<row>& rows) {
    const std::size_t free_pages = cache.free_pages(), length_a = cache.length(a), length_b = cache.length(b);
    const errc code = quena_test::code_of([&] { model.forward(rows, cache, ws); });
    CHECK(cache.free_pages() == free_pages);
    CHECK(cache.length(a) == length_a);
    CHECK(cache.length(b) == length_b);
    return code;
  };
  CHECK(refused({}) == errc::invalid_argument);
  CHECK(refused(std::vector<row>(41)) == errc::invalid_argument);
  CHECK(refused({{211, 0, a}}) == errc::invalid_argument);
  CHECK(refused({{-1, 0, a}}) == errc::invalid_argument);
  CHECK(refused({{0, 1, a}}) == errc::invalid_argument);                             // begins with a gap
  CHECK(refused({{0, 0, a}, {0, 0, a}}) == errc::invalid_argument);                  // a position twice
  CHECK(refused({{0, 0, a}, {0, 2, a}}) == errc::invalid_argument);
  CHECK(refused({{0, 0, 2}}) == errc::invalid_argument);                             // not added
  CHECK(refused({{0, 0, 1000}}) == errc::invalid_argument);
  CHECK(refused(rows_of(std::span(ids).first(3), a, true)) == errc::invalid_argument);  // logits for 2 rows at most
  CHECK(refused(rows_of(std::span(ids).first(33), a, false)) == errc::context_overflow);
  std::vector<row> both = rows_of(std::span(ids).first(17), a, false);
  for (const row& r : rows_of(std::span(ids).first(17), b, false)) both.push_back(r);
  CHECK(refused(both) == errc::out_of_memory);  // four pages of three: neither sequence keeps one
  CHECK_THROWS_WITH_AS(model.forward(std::vector<row>{{0, 0, a}, {500, 1, a}}, cache, ws), "[forward] row 1: expected a token in [0, 211), got 500", error);
  CHECK_THROWS_WITH_AS(model.forward(rows_of(std::span(ids).first(33), a, false), cache, ws), "[kv_cache] expected at most 32 positions, got 33", error);
  model.forward(rows_of(std::span(ids).first(32), a, false), cache, ws);
  CHECK(cache.length(a) == 32);

  CHECK(quena_test::code_of([&] { static_cast<void>(model.make_workspace(cache, {.max_rows = 0})); }) == errc::invalid_argument);
  CHECK(quena_test::code_of([&] { static_cast<void>(model.make_cache({.page_size = 0})); }) == errc::invalid_argument);
  CHECK(quena_test::code_of([&] { static_cast<void>(model.make_cache({.max_sequences = 0})); }) == errc::invalid_argument);
  CHECK(quena_test::code_of([&] { static_cast<void>(model.make_cache({.max_sequences = std::size_t(-1)})); }) == errc::out_of_memory);
  kv_cache<reference> larger = model.make_cache({.max_positions = 64, .max_sequences = 3}), more = model.make_cache({.max_positions = 32, .max_sequences = 9});
  static_cast<void>(larger.add()), static_cast<void>(more.add());
  CHECK(quena_test::code_of([&] { model.forward(std::vector<row>{{0, 0, 0}}, larger, ws); }) == errc::invalid_argument);
  CHECK(quena_test::code_of([&] { model.forward(std::vector<row>{{0, 0, 0}}, more, ws); }) == errc::invalid_argument);
}

TEST_CASE("llama: defaults of a cache") {
  const synthetic_model small({.max_position_embeddings = 128}), large({.type = dtype::bf16, .max_position_embeddings = 1u << 20});
  const llama<reference> a(small.open(), reference()), b(large.open(), reference());
  CHECK(a.make_cache().max_positions() == 128);
  CHECK(a.make_cache().shape().cell == dtype::f32);
  CHECK(b.make_cache().max_positions() == 4096);
  CHECK(b.make_cache().shape().cell == dtype::f16);
  CHECK(b.make_cache({.max_positions = 100, .max_sequences = 3}).shape().n_pages == 21);
  CHECK(b.make_cache({.cell = dtype::bf16}).shape().cell == dtype::bf16);
  CHECK(b.weights().stored == format::bf16);
}

TEST_CASE("llama: progress of loading ends at the total") {
  const synthetic_model files;
  std::size_t last = 0, end = 0, n = 0;
  const llama<reference> model(files.open(), reference(), {.progress = [&](std::size_t done, std::size_t total) {
    CHECK(done >= last);
    last = done, end = total, ++n;
  }});
  CHECK(n > 4);
  CHECK(last <= end);
  CHECK(static_cast<double>(last) > 0.9 * static_cast<double>(end));
}
