// SPDX-License-Identifier: MIT
// The engine against a session and a sampler that run each request alone: equal tokens and log-probabilities, whatever else goes on.
#include <quena/backend/reference.hpp>
#include <quena/engine/engine.hpp>
#include <quena/model/session.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <random>
#include <ranges>
#include <span>
#include <string>
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
      r.adapter = below(2);
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
