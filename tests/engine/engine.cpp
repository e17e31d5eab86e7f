// SPDX-License-Identifier: MIT
// The engine: whatever runs beside a request, it gets the tokens that it gets alone.
#include <quena/engine/engine.hpp>

#include <quena/backend/cpu/cpu.hpp>
#include <quena/model/session.hpp>

#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "../support.hpp"

using namespace quena;

namespace {

using request = engine_request<cpu>;

const llama<cpu>& story_model() {
  static const llama<cpu> model(checkpoint::open(quena_test::source_dir() + "/examples/data/stories260K"), cpu(cpu_options{.threads = 2}), {.format = format::f32, .progress = {}});
  return model;
}

struct answer {
  std::vector<token_id> tokens = {};
  std::vector<float> logprobs = {};
  engine_finish finish = engine_finish::none;
  friend bool operator==(const answer&, const answer&) = default;
};

/// One completion by the plainest means.
answer alone(const llama<cpu>& model, const request& r, std::size_t completion, std::size_t max_positions = 256) {
  session<cpu> s(model, {.max_positions = max_positions}, {.max_rows = 512, .max_logits = 1, .max_rank = 8});
  sampler choice(r.sampling, model.config().vocab_size, completion);
  choice.accept_prompt(r.prompt);
  answer a;
  std::vector<token_id> fed = r.prompt;
  for (;;) {
    const sampled c = choice.choose(s.feed(fed));
    if (choice.is_end(c.token)) return a.finish = engine_finish::stop, a;
    choice.accept(c.token);
    a.tokens.push_back(c.token), a.logprobs.push_back(c.logprob);
    if (a.tokens.size() == r.max_tokens || s.length() == max_positions) return a.finish = engine_finish::length, a;
    fed = {c.token};
  }
}

std::vector<answer> answers(engine_handle& h, std::size_t n) {
  std::vector<answer> all(n);
  while (const auto e = h.poll()) {
    if (e->token < 0) all[e->completion].finish = e->finish;
    else all[e->completion].tokens.push_back(e->token), all[e->completion].logprobs.push_back(e->logprob);
  }
  return all;
}

request random_request(std::mt19937& random, std::size_t most) {
  request r;
  r.prompt.resize(1 + random() % most);
  r.prompt[0] = 1;
  for (std::size_t i = 1; i < r.prompt.size(); ++i) r.prompt[i] = static_cast<token_id>(3 + random() % 500);
  r.max_tokens = 1 + random() % 24;
  r.n = random() % 4 == 0 ? 3 : 1;
  r.priority = static_cast<int>(random() % 3);
  r.sampling.seed = random();
  r.sampling.temperature = random() % 3 == 0 ? 0.0f : 1.0f;
  r.sampling.top_k = random() % 2 == 0 ? 40 : 0;
  r.sampling.repetition_penalty = random() % 3 == 0 ? 1.2f : 1.0f;
  r.sampling.n_logprobs = 0;
  r.sampling.end_tokens = {2};
  return r;
}

}  // namespace

TEST_CASE("engine: one request, as a session gives it") {
  const llama<cpu>& model = story_model();
  request r{.prompt = {1, 403, 407, 261}, .max_tokens = 20, .sampling = {.temperature = 0, .n_logprobs = 0}};
  engine<cpu> e(model, {.max_sequences = 2, .max_positions = 256});
  engine_handle h = e.submit(r);
  CHECK_FALSE(h.finished());
  while (e.step()) {}
  CHECK(h.finished());
  CHECK(answers(h, 1)[0] == alone(model, r, 0));
  const engine_metrics m = e.metrics();
  CHECK(m.prompt_tokens == 4);
  CHECK(m.generated_tokens == 20);
  CHECK(m.steps == 20);
  CHECK(m.running == 0);
  CHECK(m.queued == 0);
  CHECK(m.finished == 1);
  CHECK(m.pages_free == m.pages);
  CHECK(m.first_token_s > 0);
}

TEST_CASE("engine: random schedules, each request as if it were alone") {
  const llama<cpu>& model = story_model();
  std::mt19937 random(11);
  std::uint64_t preempted = 0;
  for (int turn = 0; turn < 40; ++turn) {
    CAPTURE(turn);
    const std::size_t page_size = 16 * (1 + random() % 2), one_page = model.make_cache({.max_positions = 16, .page_size = page_size, .n_pages = 1}).shape().page_bytes();
    // Sometimes a pool so tiny that sequences take each other's place.
    const std::size_t n_pages = turn % 2 == 0 ? 0 : 96 / page_size + random() % 6;
    engine<cpu> e(model, {.max_sequences = 1 + random() % 6, .max_positions = 256, .page_size = page_size, .cache_bytes = n_pages * one_page, .step_tokens = 1 + random() % 60});
    struct sent {
      request r;
      engine_handle h;
    };
    std::vector<sent> all;
    const std::size_t n = 1 + random() % 7;
    while (all.size() < n) {
      request r = random_request(random, 60);
      engine_handle h = e.submit(r);
      all.push_back({std::move(r), std::move(h)});
      for (std::size_t steps = random() % 6; steps > 0; --steps) e.step();
    }
    while (e.step()) {}
    for (sent& s : all) {
      REQUIRE(s.h.finished());
      const std::vector<answer> got = answers(s.h, s.r.n);
      for (std::size_t i = 0; i < s.r.n; ++i) CHECK(got[i] == alone(model, s.r, i));
    }
    const engine_metrics m = e.metrics();
    CHECK(m.pages_free == m.pages);
    CHECK(m.running + m.queued == 0);
    preempted += m.preemptions;
  }
  CHECK(preempted > 10);
}

TEST_CASE("engine: cancelled and late requests end, the others go on; a sequence that fills all memory ends") {
  const llama<cpu>& model = story_model();
  engine<cpu> e(model, {.max_sequences = 3, .max_positions = 256, .step_tokens = 16});
  std::mt19937 random(3);
  request r = random_request(random, 40), late = r;
  r.n = late.n = 1, r.max_tokens = 30, r.sampling.end_tokens = {};
  late.deadline = std::chrono::steady_clock::now();
  engine_handle stays = e.submit(r), goes = e.submit(r), never = e.submit(late);
  for (int i = 0; i < 6; ++i) e.step();
  goes.cancel();
  while (e.step()) {}
  CHECK(answers(stays, 1)[0] == alone(model, r, 0));
  CHECK(answers(goes, 1)[0].finish == engine_finish::cancelled);
  CHECK(answers(never, 1)[0] == answer{{}, {}, engine_finish::deadline});

  const std::size_t page = model.make_cache({.max_positions = 16, .n_pages = 1}).shape().page_bytes();
  engine<cpu> tiny(model, {.max_sequences = 2, .max_positions = 256, .cache_bytes = 3 * page, .step_tokens = 16});
  request greedy{.prompt = std::vector<token_id>(20, 5), .max_tokens = 100, .sampling = {.temperature = 0}};
  engine_handle a = tiny.submit(greedy), b = tiny.submit(greedy);
  while (tiny.step()) {}
  for (engine_handle* const h : {&a, &b}) {
    const answer got = answers(*h, 1)[0];
    CHECK(got.finish == engine_finish::length);
    CHECK(got.tokens.size() == 3 * 16 - 20 + 1);  // every position, and the token after them
  }
  CHECK(tiny.metrics().pages_free == 3);
}

TEST_CASE("engine: what can never run is refused; a full queue says so") {
  const llama<cpu>& model = story_model();
  engine<cpu> e(model, {.max_sequences = 2, .max_positions = 64, .max_queue = 3});
  const request good{.prompt = {1, 5}, .max_tokens = 2};
  const auto refused = [&](request r, errc code) { CHECK(quena_test::code_of([&] { static_cast<void>(e.submit(r)); }) == code); };
  refused({.prompt = {}}, errc::invalid_argument);
  refused({.prompt = {1}, .n = 0}, errc::invalid_argument);
  refused({.prompt = {1, 100000}}, errc::invalid_argument);
  refused({.prompt = {1}, .sampling = {.temperature = -1}}, errc::invalid_argument);
  refused({.prompt = std::vector<token_id>(64, 5)}, errc::context_overflow);
  refused({.prompt = {1}, .n = 4}, errc::busy);
  engine_handle a = e.submit(good), b = e.submit(good), c = e.submit(good);
  refused(good, errc::busy);
  while (e.step()) {}
  CHECK_NOTHROW(static_cast<void>(e.submit(good)));
  CHECK(c.finished());
  CHECK(quena_test::code_of([&] { engine<cpu> bad(model, {.cache_bytes = 1}); }) == errc::invalid_argument);
  CHECK(quena_test::code_of([&] { engine<cpu> bad(model, {.step_tokens = 0}); }) == errc::invalid_argument);
}

TEST_CASE("engine: four threads submit, wait and cancel while one runs it") {
  const llama<cpu>& model = story_model();
  engine<cpu> e(model, {.max_sequences = 4, .max_positions = 128, .step_tokens = 24});
  const request r{.prompt = {1, 403, 407, 261}, .max_tokens = 12, .sampling = {.temperature = 0, .n_logprobs = 0}};
  const answer want = alone(model, r, 0, 128);
  std::atomic<int> right = 0;
  {
    std::jthread runner([&](std::stop_token stop) { e.run(stop); });
    std::vector<std::jthread> hosts;
    for (int t = 0; t < 4; ++t)
      hosts.emplace_back([&, t] {
        for (int i = 0; i < 5; ++i) {
          engine_handle h = e.submit(r);
          if ((t + i) % 4 == 0) h.cancel();
          answer got;
          while (const auto event = h.wait())
            if (event->token < 0) got.finish = event->finish;
            else got.tokens.push_back(event->token), got.logprobs.push_back(event->logprob);
          right += got == want || got.finish == engine_finish::cancelled ? 1 : 0;
        }
      });
  }
  CHECK(right == 20);
}

TEST_CASE("engine: requests with adapters beside others; an engine that goes ends what runs") {
  QUENA_NEEDS_FIXTURES(fixtures);
  const llama<cpu> model(checkpoint::open(fixtures + "/models/t31-gqa4-bf16"), cpu(cpu_options{.threads = 1}), {.format = format::int8, .progress = {}});
  const lora_adapter files = lora_adapter::open(fixtures + "/lora/all-r8", model.config());
  const lora_weights<cpu> strong(model.backend(), files, model.config()), weak(model.backend(), files, model.config(), 0.25);
  const auto by_session = [&](const lora_weights<cpu>* adapter) {
    session<cpu> s(model, {.max_positions = 64}, {.max_rank = 8});
    s.use(adapter);
    std::vector<token_id> tokens, fed = {323, 1, 173, 85, 183};
    for (int i = 0; i < 10; ++i) {
      const auto line = s.feed(fed);
      fed = {static_cast<token_id>(std::max_element(line.begin(), line.end()) - line.begin())};
      tokens.push_back(fed[0]);
    }
    return tokens;
  };
  engine_handle last = [&] {
    engine<cpu> e(model, {.max_sequences = 4, .max_positions = 64, .max_rank = 8});
    std::vector<engine_handle> handles;
    const lora_weights<cpu>* const adapters[] = {&strong, nullptr, &weak, &strong};
    for (const auto* adapter : adapters) handles.push_back(e.submit({.prompt = {323, 1, 173, 85, 183}, .max_tokens = 10, .sampling = {.temperature = 0}, .adapter = adapter}));
    while (e.step()) {}
    for (std::size_t i = 0; i < handles.size(); ++i) CHECK(answers(handles[i], 1)[0].tokens == by_session(adapters[i]));
    return e.submit({.prompt = {1}, .max_tokens = 5});
  }();
  CHECK(last.finished());
  CHECK(answers(last, 1)[0].finish == engine_finish::cancelled);
}
