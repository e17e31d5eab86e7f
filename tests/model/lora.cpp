// SPDX-License-Identifier: MIT
// Low-rank adapters: reading them, refusing them, and the models they are merged into.
#include <quena/model/lora.hpp>

#include <quena/backend/cpu/cpu.hpp>
#include <quena/backend/reference.hpp>
#include <quena/io/json.hpp>
#include <quena/load.hpp>
#include <quena/model/session.hpp>

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "../npy.hpp"
#include "../support.hpp"

using namespace quena;

namespace {

template <backend B>
std::vector<float> logits(const checkpoint& files, std::shared_ptr<const B> b, std::span<const token_id> ids, const weight_options& o) {
  const llama<B> model(files, std::move(b), o);
  session<B> s(model, {.max_positions = 128, .cell = dtype::f32});
  std::vector<float> all;
  s.feed_all(ids, [&](std::size_t, std::span<const float> line) { all.insert(all.end(), line.begin(), line.end()); });
  return all;
}

std::shared_ptr<const cpu> one_thread() { return std::make_shared<const cpu>(cpu_options{.threads = 1}); }

}  // namespace

TEST_CASE("lora: the rank, the scale and the modules of PEFT's rules") {
  const auto parse = [](const char* more) { return detail::parse_lora_config(parse_json(std::string(R"({"peft_type":"LORA","r":8,"lora_alpha":16)") + more + "}", "test"), "adapter_config.json"); };
  const detail::lora_config c = parse(R"(,"rank_pattern":{"q_proj":4},"alpha_pattern":{"layers.1.self_attn.v_proj":2})");
  CHECK(c.rank_of("model.layers.0.self_attn.q_proj") == 4);
  CHECK(c.scale_of("model.layers.0.self_attn.q_proj") == 4);
  CHECK(c.rank_of("model.layers.0.self_attn.k_proj") == 8);
  CHECK(c.scale_of("model.layers.0.self_attn.v_proj") == 2);
  CHECK(c.scale_of("model.layers.1.self_attn.v_proj") == 0.25);
  CHECK(c.scale_of("model.layers.11.self_attn.v_proj") == 2);  // not the end of a name
  CHECK(parse(R"(,"use_rslora":true)").scale_of("lm_head") == doctest::Approx(16 / std::sqrt(8.0)));

  for (const char* more : {R"(,"use_dora":true)", R"(,"bias":"all")", R"(,"modules_to_save":["lm_head"])", R"(,"fan_in_fan_out":true)", R"(,"init_lora_weights":"pissa_niter_4")", R"(,"rank_pattern":{"^model.*q_proj":4})",
                           R"(,"layer_replication":[[0,2]])", R"(,"trainable_token_indices":[1])"}) {
    CAPTURE(more);
    CHECK(quena_test::code_of([&] { static_cast<void>(parse(more)); }) == errc::unsupported);
  }
  for (const char* more : {R"(,"lora_alpha":-1)", R"(,"target_modules":[1])", R"(,"rank_pattern":{"q_proj":0})", R"(,"rank_pattern":3)", R"(,"layers_to_transform":["a"])"}) {
    CAPTURE(more);
    CHECK(quena_test::code_of([&] { static_cast<void>(parse(more)); }) == errc::malformed);
  }
}

TEST_CASE("lora: merged into f32 weights, the reference's logits") {
  QUENA_NEEDS_FIXTURES(fixtures);
  for (const char* name : {"all-r8", "all-r8-rslora", "lmhead-r4", "pattern-r4", "qv-r4"}) {
    CAPTURE(name);
    const std::string folder = fixtures + "/lora/" + name;
    const json ref = parse_json(quena_test::read_file(folder + "/ref.json"), "test");
    const checkpoint files = checkpoint::open(fixtures + "/models/" + ref.at("base_model").get<std::string>());
    const lora_adapter adapter = lora_adapter::open(folder, read_config(files));
    for (const auto& [module, scale] : ref.at("scale").items()) CHECK(adapter.find(module)->scale == doctest::Approx(scale.get<double>()));
    for (const json& p : ref.at("prompts")) {
      const std::vector<token_id> ids = p.at("tokens").get<std::vector<token_id>>();
      const tensor<float, 2> want = quena_test::read_npy(folder + "/" + p.at("logits").get<std::string>());
      const auto worst = [&](const std::vector<float>& got) {
        REQUIRE(got.size() == want.size());
        double most = 0;
        for (std::size_t i = 0; i < want.size(); ++i) most = (std::max)(most, std::abs(double{got[i]} - double{want.data()[i]}));
        return most;
      };
      const weight_options o{.format = format::f32, .merge = {{&adapter, 1}}, .progress = {}};
      CHECK(worst(logits<cpu>(files, one_thread(), ids, o)) < 5e-4);  // the fixtures' tolerance
      if (ids.size() < 10) CHECK(worst(logits<reference>(files, std::make_shared<const reference>(), ids, o)) < 5e-4);
      CHECK(worst(logits<cpu>(files, one_thread(), ids, {.format = format::f32, .progress = {}})) > 0.05);  // it does something
    }
  }
}

TEST_CASE("lora: without an addition the weights keep their bits; two adapters are one after the other") {
  QUENA_NEEDS_FIXTURES(fixtures);
  const checkpoint files = checkpoint::open(fixtures + "/models/t31-gqa4-bf16");
  const lora_adapter adapter = lora_adapter::open(fixtures + "/lora/all-r8", read_config(files));
  const token_id ids[] = {323, 1, 173, 85};
  const std::shared_ptr<const cpu> b = one_thread();
  for (const format f : {format::automatic, format::f32, format::int8, format::int4}) {
    const std::vector<float> plain = logits<cpu>(files, b, ids, {.format = f, .progress = {}});
    CHECK(logits<cpu>(files, b, ids, {.format = f, .merge = {{&adapter, 0}}, .progress = {}}) == plain);
    CHECK(logits<cpu>(files, b, ids, {.format = f, .merge = {{&adapter, 1}}, .progress = {}}) != plain);
  }
  const std::vector<float> whole = logits<cpu>(files, b, ids, {.format = format::f32, .merge = {{&adapter, 1}}, .progress = {}});
  const std::vector<float> halves = logits<cpu>(files, b, ids, {.format = format::f32, .merge = {{&adapter, 0.5}, {&adapter, 0.5}}, .progress = {}});
  for (std::size_t i = 0; i < whole.size(); ++i) CHECK(halves[i] == doctest::Approx(whole[i]).epsilon(1e-4));
}

TEST_CASE("lora: what does not fit is refused, with a reason") {
  QUENA_NEEDS_FIXTURES(fixtures);
  const std::string rejects = fixtures + "/lora/reject";
  for (const json& c : parse_json(quena_test::read_file(rejects + "/expected.json"), "test")) {
    const std::string name = c.at("name");
    CAPTURE(name);
    const llama_config config = read_config(checkpoint::open(fixtures + "/models/" + c.at("base_model").get<std::string>()));
    try {
      static_cast<void>(lora_adapter::open(rejects + "/" + name, config));
      FAIL_CHECK("expected an error");
    } catch (const error& e) {
      const std::map<std::string, const char*> reasons = {{"modules-to-save", "modules_to_save"}, {"dora", "use_dora"}, {"missing-B", "q_proj.lora_B"}, {"bad-in-features", "lora_A.weight: expected [4, 96], got [4, 95]"},
                                                          {"rank-mismatch", "lora_A.weight: expected [8, "}, {"unknown-layer", "layers.99"}, {"ia3", "peft_type"}, {"no-safetensors", "adapter_model.safetensors"}};
      const std::string reason = e.what();
      CAPTURE(reason);
      const auto known = reasons.find(name);
      CHECK(reason.find(known != reasons.end() ? known->second : "expected") != reason.npos);
    }
  }
  const llama_config other = read_config(checkpoint::open(fixtures + "/models/k256-bf16"));
  CHECK(quena_test::code_of([&] { static_cast<void>(lora_adapter::open(fixtures + "/lora/all-r8", other)); }) == errc::unsupported);  // layers that the other does not have
}

TEST_CASE("lora: load() merges, and its cache tells adapters apart") {
  QUENA_NEEDS_FIXTURES(fixtures);
  const std::string model = fixtures + "/models/t31-gqa4-bf16", folder = fixtures + "/lora/all-r8";
  const quena_test::temp_dir cache;
  const token_id ids[] = {323, 1, 173, 85};
  const auto run = [&](std::vector<adapter_path> adapters, const std::string& dir) {
    const auto llm = load(model, {.format = format::int8, .threads = 1, .adapters = std::move(adapters), .cache_dir = dir, .progress = {}, .log = {}});
    session<cpu> s(llm.model, {.max_positions = 32});
    const auto last = s.feed(ids);
    return std::vector<float>(last.begin(), last.end());
  };
  const std::vector<float> plain = run({}, ""), one = run({{folder, 1}}, ""), half = run({{folder, 0.5}}, "");
  CHECK(plain != one);
  CHECK(half != one);
  for (int turn = 0; turn < 2; ++turn) {
    CHECK(run({}, cache.path()) == plain);
    CHECK(run({{folder, 1}}, cache.path()) == one);
    CHECK(run({{folder, 0.5}}, cache.path()) == half);
  }
}

namespace {

/// Logits of every row of some sequences, each with an adapter (or none), fed together `step` rows of each at a time.
std::vector<std::vector<float>> together(const llama<cpu>& model, const std::vector<std::vector<token_id>>& texts, const std::vector<std::uint32_t>& with, std::span<const lora_weights<cpu>* const> adapters, std::size_t step) {
  auto cache = model.make_cache({.max_positions = 64, .max_sequences = texts.size(), .cell = dtype::f32});
  auto ws = model.make_workspace(cache, {.max_rows = 64, .max_logits = 64, .max_rank = 8});
  std::vector<std::vector<float>> out(texts.size());
  std::vector<std::size_t> fed(texts.size());
  for (const std::vector<token_id>& text : texts) static_cast<void>(cache.add()), static_cast<void>(text);
  for (bool more = true; more;) {
    more = false;
    std::vector<row> rows;
    for (std::size_t s = 0; s < texts.size(); ++s)
      for (std::size_t i = 0; i < step && fed[s] < texts[s].size(); ++i, ++fed[s]) rows.push_back({texts[s][fed[s]], static_cast<std::uint32_t>(fed[s]), static_cast<sequence_id>(s), true, with[s]});
    if (rows.empty()) break;
    more = true;
    const forward_output o = model.forward(rows, cache, ws, {}, adapters);
    for (std::size_t i = 0; i < rows.size(); ++i) out[rows[i].sequence].insert(out[rows[i].sequence].end(), o.logits[i].span().begin(), o.logits[i].span().end());
  }
  return out;
}

template <backend B>
std::vector<float> unmerged(const llama<B>& model, const lora_weights<B>* adapter, std::span<const token_id> ids) {
  session<B> s(model, {.max_positions = 128, .cell = dtype::f32}, {.max_rows = 32, .max_logits = 32, .max_rank = 8});
  s.use(adapter);
  std::vector<float> all;
  s.feed_all(ids, [&](std::size_t, std::span<const float> line) { all.insert(all.end(), line.begin(), line.end()); });
  return all;
}

}  // namespace

TEST_CASE("lora: beside f32 weights, the reference's logits") {
  QUENA_NEEDS_FIXTURES(fixtures);
  for (const char* name : {"all-r8", "all-r8-rslora", "lmhead-r4", "pattern-r4", "qv-r4"}) {
    CAPTURE(name);
    const std::string folder = fixtures + "/lora/" + name;
    const json ref = parse_json(quena_test::read_file(folder + "/ref.json"), "test");
    const checkpoint files = checkpoint::open(fixtures + "/models/" + ref.at("base_model").get<std::string>());
    const lora_adapter adapter = lora_adapter::open(folder, read_config(files));
    const llama<cpu> model(files, one_thread(), {.format = format::f32, .progress = {}});
    const llama<reference> slow(files, reference(), {.format = format::f32, .progress = {}});
    const lora_weights<cpu> weights(model.backend(), adapter, model.config());
    const lora_weights<reference> slow_weights(slow.backend(), adapter, slow.config());
    for (const json& p : ref.at("prompts")) {
      const std::vector<token_id> ids = p.at("tokens").get<std::vector<token_id>>();
      const tensor<float, 2> want = quena_test::read_npy(folder + "/" + p.at("logits").get<std::string>());
      const auto worst = [&](const std::vector<float>& got) {
        REQUIRE(got.size() == want.size());
        double most = 0;
        for (std::size_t i = 0; i < want.size(); ++i) most = (std::max)(most, std::abs(double{got[i]} - double{want.data()[i]}));
        return most;
      };
      CHECK(worst(unmerged(model, &weights, ids)) < 5e-4);  // the fixtures' tolerance
      if (ids.size() < 10) CHECK(worst(unmerged(slow, &slow_weights, ids)) < 5e-4);
      CHECK(unmerged<cpu>(model, nullptr, ids) == logits<cpu>(files, one_thread(), ids, {.format = format::f32, .progress = {}}));
    }
  }
}

TEST_CASE("lora: rows with different adapters in one batch, each with the bits that it has alone") {
  QUENA_NEEDS_FIXTURES(fixtures);
  const checkpoint files = checkpoint::open(fixtures + "/models/t31-gqa4-bf16");
  const llama_config config = read_config(files);
  const lora_adapter all = lora_adapter::open(fixtures + "/lora/all-r8", config), head = lora_adapter::open(fixtures + "/lora/lmhead-r4", config), some = lora_adapter::open(fixtures + "/lora/pattern-r4", config);
  std::vector<std::vector<token_id>> texts;
  for (std::size_t s = 0; s < 6; ++s) {
    texts.emplace_back();
    for (std::size_t i = 0; i < 5 + 3 * s; ++i) texts[s].push_back(static_cast<token_id>((s * 31 + i * 17) % 300));
  }
  const std::vector<std::uint32_t> with = {0, no_adapter, 1, 2, 0, 3};
  for (const format f : {format::f32, format::bf16, format::int8, format::int4}) {
    CAPTURE(format_name(f));
    std::vector<std::vector<float>> alone;
    for (const int threads : {1, 2, 3}) {
      const llama<cpu> model(files, cpu(cpu_options{.threads = threads, .task_work = 1}), {.format = f, .progress = {}});
      const lora_weights<cpu> a(model.backend(), all, config), b(model.backend(), head, config), c(model.backend(), some, config), d(model.backend(), all, config, 0.5);
      const lora_weights<cpu>* const adapters[] = {&a, &b, &c, &d};
      if (alone.empty()) {
        for (std::size_t s = 0; s < texts.size(); ++s) alone.push_back(together(model, {texts[s]}, {with[s]}, adapters, 1)[0]);
        CHECK(alone[1] == unmerged<cpu>(model, nullptr, texts[1]));
        CHECK(alone[0] != together(model, {texts[0]}, {no_adapter}, adapters, 64)[0]);
      }
      for (const std::size_t step : {1u, 3u, 64u})
        if (step * texts.size() <= 64 || step == 64) {
          if (step == 64) {
            for (std::size_t s = 0; s < texts.size(); ++s) CHECK(together(model, {texts[s]}, {with[s]}, adapters, step)[0] == alone[s]);
          } else {
            CHECK(together(model, texts, with, adapters, step) == alone);
          }
        }
    }
  }
}

TEST_CASE("lora: what a pass cannot take is refused and leaves the cache as it was") {
  QUENA_NEEDS_FIXTURES(fixtures);
  const checkpoint files = checkpoint::open(fixtures + "/models/t31-gqa4-bf16");
  const llama<cpu> model(files, one_thread(), {.format = format::bf16, .progress = {}});
  const lora_adapter all = lora_adapter::open(fixtures + "/lora/all-r8", model.config());
  const lora_weights<cpu> weights(model.backend(), all, model.config());
  const lora_weights<cpu>* const adapters[] = {&weights};
  auto cache = model.make_cache({.max_positions = 32});
  auto ws = model.make_workspace(cache, {.max_rows = 4, .max_rank = 8}), narrow = model.make_workspace(cache, {.max_rows = 4, .max_rank = 4});
  const sequence_id id = cache.add();
  const row unknown[] = {{1, 0, id, true, 1}}, good[] = {{1, 0, id, true, 0}};
  CHECK(quena_test::code_of([&] { static_cast<void>(model.forward(unknown, cache, ws, {}, adapters)); }) == errc::invalid_argument);
  CHECK(quena_test::code_of([&] { static_cast<void>(model.forward(good, cache, ws)); }) == errc::invalid_argument);
  CHECK(quena_test::code_of([&] { static_cast<void>(model.forward(good, cache, narrow, {}, adapters)); }) == errc::invalid_argument);
  CHECK(cache.length(id) == 0);
  CHECK_NOTHROW(static_cast<void>(model.forward(good, cache, ws, {}, adapters)));
  CHECK(cache.length(id) == 1);
}
