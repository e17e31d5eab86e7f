// SPDX-License-Identifier: MIT
#include <quena/sample/history.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <random>
#include <utility>
#include <vector>

namespace {

TEST_CASE("history: counts equal those of the window, whatever its length") {
  constexpr std::size_t vocab = 5;
  for (const std::size_t last_n : {std::size_t{0}, std::size_t{1}, std::size_t{2}, std::size_t{7}, std::size_t{1000}}) {
    std::mt19937 rng(1);
    quena::token_history history(vocab, last_n, true, true);
    std::deque<std::pair<std::int32_t, bool>> all;
    for (int step = 0; step < 200; ++step) {
      const auto id = static_cast<std::int32_t>(rng() % vocab);
      const bool generated = rng() % 2 == 0;
      history.add(id, generated);
      all.emplace_back(id, generated);
      if (last_n > 0 && all.size() > last_n) all.pop_front();
      std::vector<std::int32_t> seen(vocab), mine(vocab);
      for (const auto& [token, is_generated] : all) {
        ++seen[static_cast<std::size_t>(token)];
        if (is_generated) ++mine[static_cast<std::size_t>(token)];
      }
      REQUIRE(std::equal(seen.begin(), seen.end(), history.seen().begin()));
      REQUIRE(std::equal(mine.begin(), mine.end(), history.generated().begin()));
    }
    history.clear();
    for (const auto n : history.seen()) CHECK(n == 0);
    // A window is as good as new: what leaves it first is what came first.
    for (const std::int32_t id : {0, 1, 2, 3, 4, 0, 1, 2, 3}) history.add(id, true);
    if (last_n == 2) {
      CHECK(std::vector<std::int32_t>(history.seen().begin(), history.seen().end()) == std::vector<std::int32_t>{0, 0, 1, 1, 0});
    }
    if (last_n == 7) {
      CHECK(std::vector<std::int32_t>(history.seen().begin(), history.seen().end()) == std::vector<std::int32_t>{1, 1, 2, 2, 1});
    }
  }
}

TEST_CASE("history: token 0 of the prompt leaves the window as a token of the prompt") {
  quena::token_history history(2, 1, true, true);
  history.add(0, false);
  history.add(0, true);
  CHECK(history.seen()[0] == 1);
  CHECK(history.generated()[0] == 1);
  history.add(0, false);
  CHECK(history.generated()[0] == 0);
}

TEST_CASE("history: no memory for counts nobody asks for") {
  quena::token_history history(1000, 0, false, false);
  history.add(999, true);
  CHECK(history.seen().empty());
  CHECK(history.generated().empty());
}

TEST_CASE("history: repetition penalty divides positive, multiplies negative logits, once per distinct token") {
  std::vector<float> logits{2.0f, -2.0f, 0.5f};
  const std::vector<std::int32_t> counts{1, 3, 0};
  quena::apply_repetition_penalty(logits, counts, 1.5f);
  CHECK(logits[0] == doctest::Approx(1.3333333f));
  CHECK(logits[1] == -3.0f);
  CHECK(logits[2] == 0.5f);
}

TEST_CASE("history: penalties at their neutral value change no bit") {
  std::vector<float> logits{0.1f, -0.0f, 1e-40f, -3e38f};
  const std::vector<float> before = logits;
  const std::vector<std::int32_t> counts{1, 2, 3, 4};
  quena::apply_repetition_penalty(logits, counts, 1.0f);
  quena::apply_presence_frequency_penalty(logits, counts, 0.0f, 0.0f);
  CHECK(std::memcmp(logits.data(), before.data(), before.size() * sizeof(float)) == 0);
}

TEST_CASE("history: presence counts once, frequency per occurrence") {
  std::vector<float> logits(40, 1.0f);
  std::vector<std::int32_t> counts(40);
  counts[0] = 1;
  counts[17] = 3;
  counts[39] = 2;  // in the tail behind the last whole stride
  quena::apply_presence_frequency_penalty(logits, counts, 0.5f, 0.25f);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    CAPTURE(i);
    CHECK(logits[i] == (counts[i] == 0 ? 1.0f : 1.0f - 0.5f - 0.25f * static_cast<float>(counts[i])));
  }
}

}  // namespace
