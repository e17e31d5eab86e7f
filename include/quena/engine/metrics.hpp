// SPDX-License-Identifier: MIT
// What an engine counts, as plain data.
#pragma once

#include <algorithm>
#include <cstddef>

#include "../core/config.hpp"

namespace quena::inline QUENA_ABI {

/// Times of one kind.
struct latency {
  std::size_t count = 0;
  double total_s = 0, longest_s = 0;

  void add(double s) noexcept {
    ++count;
    total_s += s;
    longest_s = (std::max)(longest_s, s);
  }
  [[nodiscard]] double mean_s() const noexcept { return count == 0 ? 0 : total_s / static_cast<double>(count); }
};

/// An engine's state after its last step (queued: now), and what it did since it was made.
struct engine_metrics {
  std::size_t queued = 0;           ///< requests that never ran yet
  std::size_t waiting = 0;          ///< sequences without pages: of new requests, and preempted ones
  std::size_t running = 0;          ///< sequences with pages
  std::size_t pages = 0;            ///< in all
  std::size_t pages_used = 0;       ///< held by sequences or by the prefix cache
  std::size_t pages_shared = 0;     ///< held by more than one
  std::size_t pages_cached = 0;     ///< held by the prefix cache
  std::size_t swapped_bytes = 0;    ///< of preempted sequences, in host memory

  std::size_t requests = 0;         ///< taken up
  std::size_t prompt_tokens = 0;    ///< of them
  std::size_t prefix_tokens = 0;    ///< positions that were found in the prefix cache, not computed
  std::size_t computed_tokens = 0;  ///< rows of forward passes
  std::size_t generated_tokens = 0;
  std::size_t finished = 0;         ///< answers that ended, whatever the reason
  std::size_t preemptions = 0;      ///< sequences that lost their pages while they ran
  std::size_t swaps = 0;            ///< of them, kept in host memory
  std::size_t steps = 0;
  double step_s = 0;                ///< all steps together
  double forward_s = 0;             ///< of that, in the model
  double choose_s = 0;              ///< of that, choosing tokens and delivering events
  latency first_token;              ///< from submit() to an answer's first token
  latency inter_token;              ///< between an answer's tokens
};

}  // namespace quena::inline QUENA_ABI
