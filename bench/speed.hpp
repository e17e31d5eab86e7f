// SPDX-License-Identifier: MIT
// Speed of a session, one measurement at a time, for programs that let several models take turns.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <span>
#include <vector>

#include <quena/backend/cpu/cpu.hpp>
#include <quena/model/session.hpp>

namespace quena_bench {

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// The same ids as the peer's script uses.
inline std::vector<quena::token_id> some_tokens(std::size_t n, std::size_t vocab_size) {
  std::vector<quena::token_id> ids(n);
  for (std::size_t i = 0; i < n; ++i) ids[i] = static_cast<quena::token_id>((1000 + i * 37) % (vocab_size * 15 / 16));
  return ids;
}

/// Tokens per second of a prompt of n tokens.
inline double prefill_speed(quena::session<quena::cpu>& s, std::size_t n) {
  s.rewind(0);
  const auto start = std::chrono::steady_clock::now();
  static_cast<void>(s.feed(some_tokens(n, s.model().config().vocab_size)));
  return static_cast<double>(n) / seconds_since(start);
}

/// Tokens per second of n tokens after a first one, one by one.
inline double decode_speed(quena::session<quena::cpu>& s, std::size_t n) {
  s.rewind(0);
  const std::vector<quena::token_id> ids = some_tokens(n + 1, s.model().config().vocab_size);
  static_cast<void>(s.feed(std::span(ids).first(1)));
  const auto start = std::chrono::steady_clock::now();
  for (std::size_t i = 1; i <= n; ++i) static_cast<void>(s.feed(std::span(ids).subspan(i, 1)));
  return static_cast<double>(n) / seconds_since(start);
}

struct spread {
  double median = 0, lowest = 0, highest = 0;
};
inline spread spread_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values[values.size() / 2], values.front(), values.back()};
}

}  // namespace quena_bench
