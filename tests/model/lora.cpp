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
      const std::map<std::string, const char*> reasons = {{"modules-to-save", "modules_to_save"}, {"dora", "use_dora"}, {"missing-B", "q_proj.lora_B"}, {"bad-in-features", "lora_A.weight: expected [8, "},
                                                          {"rank-mismatch", "lora_A.weight: expected [8, "}, {"unknown-layer", "layers.99"}, {"ia3", "peft_type"}, {"no-safetensors", "adapter_model.safetensors"}};
      const std::string reason = e.what();
      CAPTURE(reason);
      const auto known = reasons.find(name);
      CHECK(reason.find(known != reasons.end() ? known->second : "expected") != reason.npos);
    }
  }
  const llama_config other = read_config(checkpoint::open(fixtures + "/models/k256-bf16"));
  CHECK(quena_test::code_of([&] { static_cast<void>(lora_adapter::open(fixtures + "/lora/all-r8", other)); }) == errc::malformed);
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
