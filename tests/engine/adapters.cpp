// SPDX-License-Identifier: MIT
// Requests with adapters in one engine.
#include <quena/engine/engine.hpp>

#include <quena/backend/cpu/cpu.hpp>
#include <quena/model/session.hpp>

#include <algorithm>
#include <memory>
#include <vector>

#include <doctest/doctest.h>

#include "../support.hpp"

using namespace quena;

namespace {

std::vector<token_id> greedy_alone(const llama<cpu>& model, const lora_weights<cpu>* adapter, std::vector<token_id> fed, std::size_t n) {
  session<cpu> s(model, {.max_positions = 128}, {.max_rank = 8});
  s.use(adapter);
  std::vector<token_id> tokens;
  while (tokens.size() < n) {
    const auto line = s.feed(fed);
    fed = {static_cast<token_id>(std::max_element(line.begin(), line.end()) - line.begin())};
    tokens.push_back(fed[0]);
  }
  return tokens;
}

struct got {
  std::vector<token_id> tokens = {};
  std::size_t cached = 0;
};
got collected(request_handle handle) {
  got all;
  for (const engine_event& e : handle) {
    if (e.token) all.tokens.push_back(*e.token);
    if (e.reason != finish_reason::none) all.cached = e.usage.cached_tokens;
  }
  return all;
}

}  // namespace

TEST_CASE("engine: adapters side by side, and no prefix of one for another (A11)") {
  QUENA_NEEDS_FIXTURES(fixtures);
  const llama<cpu> model(checkpoint::open(fixtures + "/models/t31-gqa4-bf16"), cpu(cpu_options{.threads = 2}), {.format = format::int8, .progress = {}});
  const lora_adapter files = lora_adapter::open(fixtures + "/lora/all-r8", model.config());
  const auto strong = std::make_shared<const lora_weights<cpu>>(model.backend(), files, model.config()), weak = std::make_shared<const lora_weights<cpu>>(model.backend(), files, model.config(), 0.5);
  engine<cpu> e(model, {.cache = {.max_positions = 128, .max_sequences = 4}, .max_rank = 8});
  const std::uint32_t a = e.add_adapter(strong), b = e.add_adapter(weak);
  std::vector<token_id> prompt(64);
  for (std::size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<token_id>(i * 17 % 300);
  const auto ask = [&](std::uint32_t adapter) { return e.submit({.prompt = prompt, .max_tokens = 12, .sampling = {.temperature = 0}, .adapter = adapter}); };
  const std::vector<token_id> base = greedy_alone(model, nullptr, prompt, 12), with_a = greedy_alone(model, strong.get(), prompt, 12), with_b = greedy_alone(model, weak.get(), prompt, 12);
  CHECK(base != with_a);
  CHECK(with_a != with_b);

  // All at once, in one batch.
  std::vector<request_handle> together;
  for (const std::uint32_t adapter : {a, 0u, b, a}) together.push_back(ask(adapter));
  CHECK(collected(together[0]).tokens == with_a);
  CHECK(collected(together[1]).tokens == base);
  CHECK(collected(together[2]).tokens == with_b);
  CHECK(collected(together[3]).tokens == with_a);
  // One after the other: 48 of the 64 positions are there already, each adapter's own.
  for (const std::uint32_t adapter : {0u, a, b, 0u, a}) {
    const got answer = collected(ask(adapter));
    CHECK(answer.tokens == (adapter == 0 ? base : adapter == a ? with_a : with_b));
    CHECK(answer.cached == 48);
  }

  // A removed adapter stays with those that have it, and its number never comes again.
  request_handle last = ask(a);
  e.remove_adapter(a);
  CHECK(collected(last).tokens == with_a);
  CHECK(quena_test::code_of([&] { static_cast<void>(ask(a)); }) == errc::invalid_argument);
  CHECK(quena_test::code_of([&] { e.remove_adapter(a); }) == errc::invalid_argument);
  const std::uint32_t again = e.add_adapter(weak);
  CHECK(again > b);
  const got fresh = collected(ask(again));
  CHECK(fresh.tokens == with_b);
  CHECK(fresh.cached == 0);

  engine<cpu> plain(model, {.cache = {.max_positions = 128, .max_sequences = 4}});
  CHECK(quena_test::code_of([&] { static_cast<void>(plain.add_adapter(strong)); }) == errc::invalid_argument);
  CHECK(quena_test::code_of([&] { static_cast<void>(e.add_adapter(nullptr)); }) == errc::invalid_argument);
}
