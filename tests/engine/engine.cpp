// SPDX-License-Identifier: MIT
// The engine against a session and a sampler that run each request alone: equal tokens and log-probabilities, whatever else goes on.
#include <quena/backend/reference.hpp>
#include <quena/engine/engine.hpp>
#include <quena/model/session.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <ranges>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "../support.hpp"

#include "../synthetic_model.hpp"

using namespace quena;
using quena_test::synthetic_model;

namespace {

constexpr std::size_t vocab_size = 53;

const llama<reference>& tiny() {
  static const synthetic_model files{{.hidden_size = 24, .intermediate_size = 40, .n_heads = 4, .n_kv_heads = 2, .head_dim = 8, .vocab_size = vocab_size}};
  static const llama<reference> model(files.open(), reference());
  return model;
}

std::vector<token_id> some_tokens(std::size_t n, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<token_id> ids(n);
  for (token_id& id : ids) id = static_cast<token_id>(random() % vocab_size);
  return ids;
}

sampling_options greedy(std::int32_t n_logprobs = -1) {
  sampling_options o;
  o.temperature = 0;
  o.n_logprobs = n_logprobs;
  return o;
}

struct spoken {
  std::vector<token_id> tokens;
  std::vector<float> logprobs;
  finish_reason reason = finish_reason::none;
  answer_usage usage;

  void add(const engine_event& e) {
    REQUIRE(reason == finish_reason::none);  // nothing comes after the end
    if (e.token) tokens.push_back(*e.token);
    if (e.logprobs) {
      logprobs.push_back(e.logprobs->chosen);
      for (const token_logprob& l : e.logprobs->top) logprobs.push_back(l.logprob);
    }
    reason = e.reason;
    usage = e.usage;
  }
};

/// Answer i of a request on a session of its own.
spoken alone(const llama<reference>& model, const request& r, std::size_t i, std::size_t context) {
  spoken s;
  if (r.max_tokens == 0) return s.reason = finish_reason::length, s;
  session<reference> on(model, {.max_positions = context});
  sampler pick(r.sampling, model.config().vocab_size, i);
  pick.accept_prompt(r.prompt);
  std::vector<token_id> fed = r.prompt;
  for (;;) {
    const sampled choice = pick.choose(on.feed(fed));
    if (pick.is_end(choice.token)) return s.reason = finish_reason::stop, s;
    pick.accept(choice.token);
    s.tokens.push_back(choice.token);
    if (r.sampling.n_logprobs >= 0) {
      s.logprobs.push_back(choice.logprob);
      for (const token_logprob& l : choice.top) s.logprobs.push_back(l.logprob);
    }
    if (s.tokens.size() == r.max_tokens || on.length() == on.max_length()) return s.reason = finish_reason::length, s;
    fed = {choice.token};
  }
}

std::vector<spoken> collected(request_handle h, std::size_t n = 1) {
  std::vector<spoken> all(n);
  for (const engine_event& e : h) all.at(e.answer).add(e);
  return all;
}

void check_equal(const spoken& got, const spoken& want) {
  CHECK(got.tokens == want.tokens);
  CHECK(got.logprobs == want.logprobs);
  CHECK(got.reason == want.reason);
}

/// The next event by either way of waiting for it.
std::optional<engine_event> next_or_poll(request_handle& h, bool next) {
  if (next) return h.next();
  for (;;) {
    const bool over = h.done();
    if (auto event = h.poll(); event || over) return event;
    std::this_thread::yield();
  }
}

/// No page is lost: what is used is the prefix cache's.
void check_clean(const engine<reference>& e) {
  const engine_metrics m = e.metrics();
  CHECK(m.running == 0);
  CHECK(m.waiting == 0);
  CHECK(m.queued == 0);
  CHECK(m.swapped_bytes == 0);
  CHECK(m.pages_used == m.pages_cached);
  CHECK(m.pages_shared == 0);
}

}  // namespace

static_assert(std::ranges::input_range<request_handle>);

TEST_CASE("engine: one request says what a session says, by range, poll and callback") {
  const request r{.prompt = some_tokens(40, 1), .max_tokens = 30, .sampling = greedy(3)};
  const spoken want = alone(tiny(), r, 0, 1024);
  engine<reference> e(tiny(), {.token_budget = 32});
  check_equal(collected(e.submit(r))[0], want);

  spoken polled;
  request_handle h = e.submit(r);
  CHECK(!h.poll());
  while (e.step())
    while (const auto event = h.poll()) polled.add(*event);
  while (const auto event = h.poll()) polled.add(*event);
  CHECK(h.done());
  check_equal(polled, want);

  spoken called;
  request with = r;
  with.on_event = [&](const engine_event& event) { called.add(event); };
  CHECK(!e.submit(with).next());
  check_equal(called, want);
  check_clean(e);
}

TEST_CASE("engine: invariance: random schedules change no bit of any answer") {
  engine_metrics total;
  for (std::uint32_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
    const std::size_t max_sequences = 1 + below(8), page_size = below(3) != 0 ? 16 : 32, context = 96 + below(60);
    const std::size_t n_pages = below(3) == 0 ? 0 : (context + page_size - 1) / page_size + below(4);
    engine<reference> e(tiny(), {.cache = {.max_positions = context, .max_sequences = max_sequences, .page_size = page_size, .n_pages = n_pages},
                                 .token_budget = max_sequences + below(40),
                                 .max_queue = 64,
                                 .swap_bytes = below(3) == 0 ? std::size_t{1} << (10 + below(12)) : 0,
                                 .share_prefixes = below(4) != 0,
                                 .aging = below(10)});
    const std::vector<token_id> common = some_tokens(70, seed + 1000);
    std::vector<request> asked;
    std::vector<std::size_t> arrival;
    for (std::size_t i = 0; i < 4 + below(8); ++i) {
      request r{.prompt = some_tokens(1 + below(60), seed * 100 + static_cast<std::uint32_t>(i)), .max_tokens = below(50), .n = below(3) == 0 ? 1 + below(4) : 1};
      if (below(2) == 0) std::copy_n(common.begin(), (std::min)(r.prompt.size(), 1 + below(70)), r.prompt.begin());
      if (below(3) == 0) r.sampling.temperature = 0;
      r.sampling.seed = below(5);
      if (below(3) == 0) r.sampling.top_k = 5;
      if (below(3) == 0) r.sampling.top_p = 0.8f;
      if (below(3) == 0) r.sampling.repetition_penalty = 1.3f, r.sampling.frequency_penalty = 0.4f;
      if (below(2) == 0) r.sampling.n_logprobs = static_cast<std::int32_t>(below(4));
      if (below(2) == 0) r.sampling.end_tokens = {static_cast<token_id>(below(vocab_size)), static_cast<token_id>(below(vocab_size))};
      r.priority = static_cast<std::int32_t>(below(3));
      r.salt = static_cast<std::uint32_t>(below(2));
      asked.push_back(r);
      arrival.push_back(below(40));
    }
    std::map<std::size_t, request_handle> handles;
    std::vector<std::size_t> cancelled_at(asked.size(), 1000000);
    for (std::size_t& c : cancelled_at)
      if (below(6) == 0) c = below(60);
    for (std::size_t step = 0, more = 1; step < 40 || more != 0; ++step) {
      for (std::size_t i = 0; i < asked.size(); ++i) {
        if (arrival[i] == step) handles.emplace(i, e.submit(asked[i]));
        if (cancelled_at[i] == step && handles.contains(i)) handles.at(i).cancel();
      }
      more = e.step() ? 1 : 0;
      REQUIRE(step < 20000);  // no livelock
      const engine_metrics m = e.metrics();
      REQUIRE(m.pages_used <= m.pages);
      REQUIRE(m.running <= max_sequences);
    }
    const std::size_t limit = e.max_length();
    for (std::size_t i = 0; i < asked.size(); ++i) {
      CAPTURE(i);
      const std::vector<spoken> got = collected(handles.at(i), asked[i].n);
      for (std::size_t k = 0; k < got.size(); ++k) {
        spoken want = alone(tiny(), asked[i], k, limit);
        if (got[k].reason == finish_reason::cancelled) {  // what came is the beginning
          REQUIRE(cancelled_at[i] < 1000000);
          REQUIRE(got[k].tokens.size() <= want.tokens.size());
          want.tokens.resize(got[k].tokens.size());
          want.logprobs.resize(got[k].logprobs.size());
          want.reason = finish_reason::cancelled;
        }
        check_equal(got[k], want);
        CHECK(got[k].usage.prompt_tokens == asked[i].prompt.size());
        CHECK(got[k].usage.generated_tokens == got[k].tokens.size());
      }
    }
    check_clean(e);
    const engine_metrics m = e.metrics();
    total.preemptions += m.preemptions, total.swaps += m.swaps, total.prefix_tokens += m.prefix_tokens;
  }
  CHECK(total.preemptions > 200);  // the schedules were as rough as they were meant to be
  CHECK(total.swaps > 20);
  CHECK(total.prefix_tokens > 2000);
}

TEST_CASE("engine: a prefix of another salt is never taken") {
  engine<reference> e(tiny(), {.token_budget = 64});
  const std::vector<token_id> prompt = some_tokens(64, 9);
  const spoken want = alone(tiny(), {.prompt = prompt, .max_tokens = 10, .sampling = greedy(0)}, 0, 1024);
  const std::uint32_t keys[] = {0, 1, 2, 1u << 31, 0, 1, 0xffffffff};
  const std::size_t cached[] = {0, 0, 0, 0, 48, 48, 0};
  for (std::size_t i = 0; i < 7; ++i) {
    CAPTURE(i);
    const spoken got = collected(e.submit({.prompt = prompt, .max_tokens = 10, .sampling = greedy(0), .salt = keys[i]}))[0];
    check_equal(got, want);
    CHECK(got.usage.cached_tokens == cached[i]);
  }
  CHECK(e.metrics().prefix_tokens == 96);
}

TEST_CASE("engine: a prompt that is wholly cached is answered the same again (A12)") {
  for (const std::size_t n : {15u, 16u, 17u, 32u}) {
    CAPTURE(n);
    engine<reference> e(tiny(), {.cache = {.max_positions = 64, .max_sequences = 2}, .token_budget = 8});
    const request r{.prompt = some_tokens(n, 10), .max_tokens = 20, .sampling = greedy(1)};
    const spoken want = alone(tiny(), r, 0, 64);
    for (int time = 0; time < 3; ++time) {
      const spoken got = collected(e.submit(r))[0];
      check_equal(got, want);
      CHECK(got.usage.prompt_tokens == n);
      CHECK(got.usage.cached_tokens == (time == 0 ? 0 : (n - 1) / 16 * 16));
    }
    check_clean(e);
  }
  engine<reference> off(tiny(), {.token_budget = 64, .share_prefixes = false});
  for (int time = 0; time < 2; ++time) CHECK(collected(off.submit({.prompt = some_tokens(40, 1), .max_tokens = 2}))[0].usage.cached_tokens == 0);
  CHECK(off.metrics().pages_used == 0);
}

TEST_CASE("engine: preempted answers go on where they were (A13)") {
  for (const std::size_t swap_bytes : {std::size_t{0}, std::size_t{9000}, std::size_t{1} << 30})
    for (const std::size_t n_pages : {8u, 5u})
      for (const bool penalties : {false, true}) {
        CAPTURE(n_pages);
        CAPTURE(penalties);
        CAPTURE(swap_bytes);
        engine<reference> e(tiny(), {.cache = {.max_positions = 80, .max_sequences = 4, .n_pages = n_pages}, .token_budget = 16, .swap_bytes = swap_bytes});
        std::vector<request_handle> handles;
        std::vector<spoken> want;
        for (std::uint32_t i = 0; i < 4; ++i) {
          request r{.prompt = some_tokens(12 + i, 20 + i), .max_tokens = 40, .sampling = greedy(1)};
          if (penalties) r.sampling.repetition_penalty = 1.4f, r.sampling.presence_penalty = 0.5f, r.sampling.penalty_last_n = 30;
          want.push_back(alone(tiny(), r, 0, 80));
          handles.push_back(e.submit(r));
        }
        for (std::size_t i = 0; i < 4; ++i) check_equal(collected(handles[i])[0], want[i]);
        const engine_metrics m = e.metrics();
        CHECK(m.preemptions >= (n_pages == 5 ? 3 : 1));
        CHECK((m.swaps > 0) == (swap_bytes > 0));
        CHECK((m.swaps == m.preemptions) == (swap_bytes > 9000));
        CHECK(m.generated_tokens == 160);
        check_clean(e);
      }
}

TEST_CASE("engine: an answer does not depend on who shares the batch (A14)") {
  const request r{.prompt = some_tokens(30, 30), .max_tokens = 25, .sampling = greedy(5)};
  const spoken want = alone(tiny(), r, 0, 128);
  engine<reference> e(tiny(), {.cache = {.max_positions = 128, .max_sequences = 46}, .token_budget = 128});
  for (int time = 0; time < 5; ++time) check_equal(collected(e.submit(r))[0], want);
  for (const std::size_t others : {1u, 7u, 45u}) {
    std::vector<request_handle> handles;
    for (std::size_t i = 0; i < others; ++i) handles.push_back(e.submit({.prompt = some_tokens(1 + i * 2, static_cast<std::uint32_t>(40 + i)), .max_tokens = 100}));
    check_equal(collected(e.submit(r))[0], want);
    CHECK(e.metrics().running == others);
    for (request_handle& h : handles) h.cancel();
    while (e.step()) {}
    check_clean(e);
  }
}

TEST_CASE("engine: several answers share the prompt's pages and differ in their draws") {
  engine<reference> e(tiny(), {.cache = {.max_positions = 128, .max_sequences = 8}, .token_budget = 128, .share_prefixes = false});
  request r{.prompt = some_tokens(100, 50), .max_tokens = 20, .n = 5};
  r.sampling.seed = 3;
  request_handle h = e.submit(r);
  e.step();
  CHECK(e.metrics().running == 5);
  CHECK(e.metrics().pages_used == 7);
  e.step();
  CHECK(e.metrics().pages_used == 6 + 5);  // each its own last page
  CHECK(e.metrics().pages_shared == 6);
  std::vector<spoken> got = collected(h, 5);
  for (std::size_t i = 0; i < 5; ++i) check_equal(got[i], alone(tiny(), r, i, 128));
  CHECK(got[0].tokens != got[1].tokens);
  CHECK(e.metrics().computed_tokens == 100 + 5 * 19);
  check_clean(e);

  r.n = 20;  // more than sequences
  got = collected(e.submit(r), 20);
  for (std::size_t i = 0; i < 20; ++i) check_equal(got[i], alone(tiny(), r, i, 128));
  check_clean(e);
}

TEST_CASE("engine: a long prompt comes in chunks, beside the others' tokens") {
  engine<reference> e(tiny(), {.cache = {.max_positions = 512, .max_sequences = 4}, .token_budget = 12, .share_prefixes = false});
  std::vector<request_handle> talking;
  for (std::uint32_t i = 0; i < 3; ++i) talking.push_back(e.submit({.prompt = some_tokens(2, i), .max_tokens = 100, .sampling = greedy()}));
  e.step();
  for (request_handle& h : talking) CHECK(h.poll());
  request_handle slow = e.submit({.prompt = some_tokens(90, 7), .max_tokens = 5, .sampling = greedy()});
  for (std::size_t step = 1; step <= 10; ++step) {  // nine rows of twelve are for it
    CAPTURE(step);
    const std::size_t before = e.metrics().computed_tokens;
    e.step();
    CHECK(e.metrics().computed_tokens - before == 12);
    for (request_handle& h : talking) {
      CHECK(h.poll());
      CHECK(!h.poll());
    }
    CHECK(slow.poll().has_value() == (step == 10));
  }
}

TEST_CASE("engine: priorities overtake, but not for ever; equals keep their order") {
  engine<reference> e(tiny(), {.cache = {.max_positions = 64, .max_sequences = 1}, .token_budget = 64, .aging = 20});
  std::string order;
  const auto ask = [&](char name, std::int32_t priority) {
    request r{.prompt = some_tokens(3, static_cast<std::uint32_t>(name)), .max_tokens = 4, .sampling = greedy(), .priority = priority};
    r.on_event = [&order, name](const engine_event& event) {
      if (event.reason != finish_reason::none) order += name;
    };
    static_cast<void>(e.submit(r));
  };
  for (const char name : {'a', 'b', 'c', 'd'}) ask(name, 0);
  while (e.step()) {}
  CHECK(order == "abcd");
  order.clear();
  ask('x', 0), e.step(), ask('y', 0), ask('z', 1);
  while (e.step()) {}
  CHECK(order == "zxy");  // x was running, and went on later
  CHECK(e.metrics().preemptions == 1);
  order.clear();
  ask('l', 0);  // a stream of greater priority
  for (std::size_t i = 0; i < 100 && order.find('l') == std::string::npos; ++i) {
    if (i % 4 == 0) ask('h', 1);
    e.step();
  }
  REQUIRE(order.find('l') != std::string::npos);
  CHECK(order.size() > 3);
  CHECK(order.size() < 12);
}

TEST_CASE("engine: cancelling is safe at any moment and touches its own request only (A31)") {
  engine<reference> e(tiny(), {.cache = {.max_positions = 256, .max_sequences = 2}, .token_budget = 8});
  const request other{.prompt = some_tokens(9, 60), .max_tokens = 60, .sampling = greedy(1)}, gone{.prompt = some_tokens(100, 61), .max_tokens = 100'000};
  const spoken want = alone(tiny(), other, 0, 256);
  for (const std::size_t steps : {0u, 1u, 5u, 20u, 30u}) {  // in the queue, while its prompt is computed, after tokens
    CAPTURE(steps);
    request_handle stays = e.submit(other), goes = e.submit(gone), queued = e.submit(gone);
    for (std::size_t i = 0; i < steps; ++i) e.step();
    queued.cancel();
    goes.cancel(), goes.cancel();
    e.step();
    CHECK(goes.done());
    CHECK(queued.done());
    CHECK(e.metrics().running == 1);
    check_equal(collected(stays)[0], want);
    CHECK(collected(goes)[0].reason == finish_reason::cancelled);
    CHECK(collected(queued)[0].tokens.empty());
    goes.cancel(), stays.cancel();
    CHECK(!e.step());
    check_clean(e);
  }
  spoken heard;  // from its own callback
  request_handle* self = nullptr;
  request talks = gone;
  talks.on_event = [&](const engine_event& event) {
    heard.add(event);
    if (heard.tokens.size() == 3) self->cancel();
  };
  request_handle h = e.submit(talks);
  self = &h;
  while (e.step()) {}
  CHECK(heard.tokens.size() == 3);
  CHECK(heard.reason == finish_reason::cancelled);
}

TEST_CASE("engine: a callback that throws ends its own request") {
  engine<reference> e(tiny(), {.cache = {.max_positions = 256, .max_sequences = 4}, .token_budget = 64});
  const request other{.prompt = some_tokens(9, 60), .max_tokens = 30, .sampling = greedy(1)};
  request bad = other;
  std::size_t called = 0;
  bad.n = 2;
  bad.on_event = [&](const engine_event&) {
    ++called;
    throw 7;
  };
  request_handle stays = e.submit(other), throws = e.submit(bad);
  check_equal(collected(stays)[0], alone(tiny(), other, 0, 256));
  CHECK(throws.done());
  CHECK(called == 1);
  bool refused = false;
  request steps = other;
  steps.max_tokens = 1;
  steps.on_event = [&](const engine_event& event) {
    if (event.token) refused = quena_test::code_of([&] { e.step(); }) == errc::busy;
  };
  CHECK(!e.submit(steps).next());
  CHECK(refused);
  check_clean(e);
}

TEST_CASE("engine: deadlines") {
  engine<reference> e(tiny(), {.cache = {.max_positions = 256, .max_sequences = 1}, .token_budget = 64});
  request r{.prompt = some_tokens(9, 60), .max_tokens = 200, .sampling = greedy(), .n = 3};
  r.deadline = std::chrono::steady_clock::now();
  std::vector<spoken> got = collected(e.submit(r), 3);
  for (const spoken& s : got) CHECK(s.reason == finish_reason::deadline);
  CHECK(got[0].tokens.empty());
  CHECK(got[2].usage.prompt_tokens == 9);

  r.n = 1;
  r.deadline = std::chrono::steady_clock::now() + std::chrono::hours(1);
  request_handle h = e.submit(r);
  e.step(), e.step();
  CHECK(h.poll());
  r.deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
  request_handle waits = e.submit(r);  // behind the other; its time passes in the queue
  while (std::chrono::steady_clock::now() < *r.deadline) e.step_for(std::chrono::microseconds(1));
  e.step();
  CHECK(waits.done());
  CHECK(collected(waits)[0].reason == finish_reason::deadline);
  CHECK(collected(h)[0].reason == finish_reason::length);
  check_clean(e);
}

TEST_CASE("engine: every end token ends an answer, the engine's and the request's (A23)") {
  engine<reference> e(tiny(), {.token_budget = 64, .end_tokens = {7, 8}});
  for (const token_id id : {7, 8, 9}) {
    request r{.prompt = some_tokens(5, 1), .max_tokens = 6, .sampling = greedy()};
    r.sampling.logit_bias = {{id, 100.0f}};
    r.sampling.end_tokens = {9};
    const spoken got = collected(e.submit(r))[0];
    CHECK(got.reason == finish_reason::stop);
    CHECK(got.tokens.empty());
    CHECK(got.usage.generated_tokens == 0);
    r.sampling.ignore_eos = true;
    CHECK(collected(e.submit(r))[0].tokens == std::vector<token_id>(6, id));
  }
}

TEST_CASE("engine: an answer without a possible token fails with a reason, alone (A22)") {
  engine<reference> e(tiny(), {.token_budget = 64});
  const request other{.prompt = some_tokens(9, 60), .max_tokens = 30, .sampling = greedy(1)};
  request bad = other;
  bad.n = 2;
  for (token_id t = 0; t < static_cast<token_id>(vocab_size); ++t) bad.sampling.banned_tokens.push_back(t);
  request_handle fails = e.submit(bad), stays = e.submit(other);
  check_equal(collected(stays)[0], alone(tiny(), other, 0, 1024));
  for (std::size_t i = 0; i < 2; ++i) {
    const auto event = fails.poll();
    REQUIRE(event);
    CHECK(event->answer == i);
    CHECK(event->reason == finish_reason::failed);
    CHECK(event->failure == errc::non_finite);
    CHECK(event->message.find("non-finite logits at step 0 (position 9)") != std::string::npos);
  }
  CHECK(!fails.next());
  check_clean(e);
}

TEST_CASE("engine: what can't be is refused by submit() and by the constructor, with a reason (A09, A32)") {
  engine<reference> e(tiny(), {.cache = {.max_positions = 64, .max_sequences = 2}, .token_budget = 16, .max_queue = 3});
  const auto refused = [&](request r) { return quena_test::code_of([&] { static_cast<void>(e.submit(std::move(r))); }); };
  CHECK(refused({}) == errc::invalid_argument);
  CHECK(refused({.prompt = {53}}) == errc::invalid_argument);
  CHECK(refused({.prompt = {-1}}) == errc::invalid_argument);
  CHECK(refused({.prompt = {1}, .n = 0}) == errc::invalid_argument);
  CHECK(refused({.prompt = {1}, .stop = {"x"}}) == errc::invalid_argument);
  request hot{.prompt = {1}};
  hot.sampling.temperature = -1;
  CHECK(refused(hot) == errc::invalid_argument);
  CHECK(refused({.prompt = some_tokens(64, 1)}) == errc::context_overflow);
  CHECK_THROWS_WITH_AS(static_cast<void>(e.submit({.prompt = some_tokens(70, 1)})), "[engine] expected a prompt below the context of 64 tokens, got 70", error);
  CHECK(!e.step());
  CHECK(e.metrics().requests == 0);

  const request full{.prompt = some_tokens(63, 1), .max_tokens = 100, .sampling = greedy()};
  check_equal(collected(e.submit(full))[0], alone(tiny(), full, 0, 64));  // it ends where the context does
  CHECK(collected(e.submit({.prompt = {1}, .max_tokens = 0}))[0].reason == finish_reason::length);

  std::vector<request_handle> handles;
  for (int i = 0; i < 3; ++i) handles.push_back(e.submit({.prompt = some_tokens(20, 2), .max_tokens = 40, .sampling = greedy()}));
  CHECK_THROWS_WITH_AS(static_cast<void>(e.submit({.prompt = {1}})), "[engine] expected at most 3 waiting requests, got one more", error);
  CHECK(refused({.prompt = {1}}) == errc::queue_full);
  CHECK(e.metrics().queued == 3);
  e.step();  // one of them leaves the queue
  handles.push_back(e.submit({.prompt = {1}, .max_tokens = 3}));
  CHECK(refused({.prompt = {1}}) == errc::queue_full);
  handles[3].cancel();
  e.step();
  CHECK(e.metrics().queued < 3);
  for (request_handle& h : handles) CHECK(collected(h).size() == 1);
  check_clean(e);

  const auto impossible = [&](const engine_options& o) { return quena_test::code_of([&] { engine<reference>(tiny(), o); }); };
  CHECK(impossible({.cache = {.max_sequences = 8}, .token_budget = 7}) == errc::invalid_argument);
  CHECK(impossible({.cache = {.max_sequences = 0}}) == errc::invalid_argument);
  CHECK(impossible({.max_queue = 0}) == errc::invalid_argument);
  CHECK(impossible({.aging = std::size_t{1} << 40}) == errc::invalid_argument);
  CHECK(impossible({.cache = {.max_sequences = 1, .n_bytes = 1}}) == errc::invalid_argument);  // not one page
}

TEST_CASE("engine: a byte budget is a number of pages") {
  const std::size_t page = tiny().make_cache().shape().page_bytes();
  engine<reference> e(tiny(), {.cache = {.max_positions = 512, .max_sequences = 4, .n_bytes = 7 * page + page / 2}, .token_budget = 16});
  CHECK(e.max_length() == 7 * 16);
  std::vector<request_handle> handles;
  for (std::uint32_t i = 0; i < 5; ++i) handles.push_back(e.submit({.prompt = some_tokens(30, i), .max_tokens = 100, .sampling = greedy()}));
  while (e.step()) {
    REQUIRE(e.metrics().pages == 7);
    REQUIRE(e.metrics().pages_used <= 7);
  }
  for (request_handle& h : handles) CHECK(collected(h)[0].tokens.size() == 7 * 16 - 30 + 1);
}

TEST_CASE("engine: metrics add up") {
  engine<reference> e(tiny(), {.cache = {.max_positions = 128, .max_sequences = 2}, .token_budget = 16});
  for (std::uint32_t i = 0; i < 3; ++i) static_cast<void>(e.submit({.prompt = some_tokens(10, i), .max_tokens = 5, .sampling = greedy()}));
  CHECK(e.metrics().queued == 3);
  while (e.step()) {}
  const engine_metrics m = e.metrics();
  CHECK(m.requests == 3);
  CHECK(m.prompt_tokens == 30);
  CHECK(m.generated_tokens == 15);
  CHECK(m.computed_tokens == 30 + 3 * 4);
  CHECK(m.finished == 3);
  CHECK(m.first_token.count == 3);
  CHECK(m.inter_token.count == 12);
  CHECK(m.first_token.longest_s >= m.first_token.mean_s());
  CHECK(m.inter_token.mean_s() > 0);
  CHECK(m.step_s > m.forward_s);
  CHECK(m.forward_s > 0);
  CHECK(m.steps == 10);  // the second prompt is computed in two parts; the third comes with the first's end, in step 6
}

TEST_CASE("engine: what is left when it goes is cancelled") {
  spoken called;
  std::vector<request_handle> handles;
  {
    engine<reference> e(tiny(), {.cache = {.max_positions = 128, .max_sequences = 1}, .token_budget = 16});
    handles.push_back(e.submit({.prompt = some_tokens(10, 1), .max_tokens = 50}));
    handles.push_back(e.submit({.prompt = some_tokens(10, 2), .max_tokens = 50, .n = 2}));
    for (int i = 0; i < 5; ++i) e.step();
    handles.push_back(e.submit({.prompt = some_tokens(10, 3), .max_tokens = 50, .on_event = [&](const engine_event& event) { called.add(event); }}));
  }
  CHECK(collected(handles[0])[0].tokens.size() == 5);
  for (const spoken& s : collected(handles[1], 2)) CHECK(s.reason == finish_reason::cancelled);
  CHECK(handles[2].done());
  CHECK(called.reason == finish_reason::cancelled);
  handles[0].cancel();
}

TEST_CASE("engine: a worker thread, and four that submit, cancel and poll") {
  engine<reference> e(tiny(), {.cache = {.max_positions = 96, .max_sequences = 6, .n_pages = 16}, .token_budget = 24, .max_queue = 8});
  std::vector<request> asked;
  std::vector<spoken> want;
  for (std::uint32_t i = 0; i < 8; ++i) {
    request r{.prompt = some_tokens(5 + i * 6, 80 + i / 2), .max_tokens = 20, .sampling = {}};
    r.sampling.seed = i, r.sampling.n_logprobs = 0;
    want.push_back(alone(tiny(), r, 0, 96));
    asked.push_back(std::move(r));
  }
  e.start();
  CHECK(quena_test::code_of([&] { e.start(); }) == errc::busy);
  CHECK(quena_test::code_of([&] { e.step(); }) == errc::busy);
  std::atomic<std::size_t> n_right = 0, n_wrong = 0, n_cancelled = 0;
  {
    std::vector<std::jthread> hosts;
    for (std::uint32_t host = 0; host < 4; ++host)
      hosts.emplace_back([&, host] {
        std::mt19937 random(host);
        for (int time = 0; time < 12; ++time) {
          const std::size_t which = random() % asked.size();
          try {
            request r = asked[which];
            const bool calls = random() % 3 == 0, leaves = random() % 4 == 0;
            std::vector<token_id> tokens;
            finish_reason reason = finish_reason::none;
            if (calls)
              r.on_event = [&](const engine_event& event) {
                if (event.token) tokens.push_back(*event.token);
                reason = event.reason;
              };
            request_handle h = e.submit(std::move(r));
            if (leaves) h.cancel();
            static_cast<void>(e.metrics());
            while (const auto event = next_or_poll(h, time % 2 == 0)) {
              if (event->token) tokens.push_back(*event->token);
              reason = event->reason;
            }
            if (reason == finish_reason::cancelled) ++n_cancelled;
            else if (tokens == want[which].tokens && reason == want[which].reason) ++n_right;
            else ++n_wrong;
          } catch (const error& full) {
            if (full.code() != errc::queue_full) ++n_wrong;
          }
        }
      });
  }
  CHECK(n_wrong == 0);
  CHECK(n_right > 10);
  CHECK(n_right + n_cancelled == e.metrics().finished);
  e.stop();
  e.stop();
  check_clean(e);

  request_handle h = e.submit(asked[0]);  // nobody steps: the handle does
  check_equal(collected(h)[0], want[0]);
  request_handle again = e.submit(asked[1]);
  e.start();  // it finds what came before
  while (!again.done()) std::this_thread::yield();
  e.stop();
  check_equal(collected(again)[0], want[1]);
}

TEST_CASE("engine: two threads that read ranges share the steps") {
  engine<reference> e(tiny(), {.cache = {.max_positions = 96, .max_sequences = 6}, .token_budget = 24});
  const request r{.prompt = some_tokens(30, 90), .max_tokens = 40, .sampling = greedy()};
  const spoken want = alone(tiny(), r, 0, 96);
  std::vector<std::vector<token_id>> got(4);
  {
    std::vector<std::jthread> readers;
    for (std::vector<token_id>& tokens : got)
      readers.emplace_back([&] {
        for (const engine_event& event : e.submit(r))
          if (event.token) tokens.push_back(*event.token);
      });
  }
  for (const std::vector<token_id>& tokens : got) CHECK(tokens == want.tokens);
}
