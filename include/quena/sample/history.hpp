// SPDX-License-Identifier: MIT
// Which tokens a sequence holds, counted, and the repetition, presence and frequency penalties over those counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "../core/config.hpp"

namespace quena::inline QUENA_ABI {

/// Counts of the tokens inside the penalty window, all of them and the generated ones apart. All memory is taken by the
/// constructor, unless the window is longer than 65536 tokens: then its ring grows as it fills. A copy is an independent snapshot.
class token_history {
 public:
  /// `last_n` tokens are looked at, 0 for all; the two flags say which counts will be asked for.
  token_history(std::size_t vocab_size, std::size_t last_n, bool count_all, bool count_generated)
      : last_n_(count_all || count_generated ? last_n : 0) {
    if (count_all) seen_.resize(vocab_size);
    if (count_generated) generated_.resize(vocab_size);
    constexpr std::size_t at_once = 65536;
    ring_.reserve(last_n_ < at_once ? last_n_ : at_once);
  }

  /// Appends one token; requires 0 <= id < vocab_size. O(1).
  void add(std::int32_t id, bool generated) {
    if (last_n_ > 0) {
      const std::int32_t entry = generated ? id : ~id;  // negative: from the prompt
      if (ring_.size() < last_n_) {
        ring_.push_back(entry);
      } else {
        const std::int32_t leaving = ring_[oldest_];
        count(leaving >= 0 ? leaving : ~leaving, leaving >= 0, -1);
        ring_[oldest_] = entry;
        oldest_ = oldest_ + 1 < last_n_ ? oldest_ + 1 : 0;
      }
    }
    count(id, generated, +1);
  }

  /// Forgets everything; keeps the memory.
  void clear() noexcept {
    for (auto& n : seen_) n = 0;
    for (auto& n : generated_) n = 0;
    ring_.clear();
    oldest_ = 0;
  }

  /// Occurrences in the window by token id, in prompt and generated text; empty unless asked for in the constructor.
  [[nodiscard]] std::span<const std::int32_t> seen() const noexcept { return seen_; }
  /// The same of generated tokens alone.
  [[nodiscard]] std::span<const std::int32_t> generated() const noexcept { return generated_; }

 private:
  void count(std::int32_t id, bool generated, std::int32_t amount) noexcept {
    const auto i = static_cast<std::size_t>(id);
    if (!seen_.empty()) seen_[i] += amount;
    if (generated && !generated_.empty()) generated_[i] += amount;
  }

  std::size_t last_n_;
  std::vector<std::int32_t> seen_, generated_;
  std::vector<std::int32_t> ring_;  // the window's tokens; empty when it is unlimited
  std::size_t oldest_ = 0;          // where in the full ring the next token goes
};

namespace detail {

/// Calls f(i) for every i with counts[i] != 0, in order. Dense, because reading a count per logit costs less than keeping a list.
template <class F>
void for_each_counted(std::span<const std::int32_t> counts, F f) {
  constexpr std::size_t stride = 16;
  for (std::size_t begin = 0; begin < counts.size(); begin += stride) {
    const std::size_t end = counts.size() - begin < stride ? counts.size() : begin + stride;
    if (end - begin == stride) {
      std::int32_t any = 0;
      for (std::size_t j = 0; j < stride; ++j) any |= counts[begin + j];
      if (any == 0) continue;
    }
    for (std::size_t i = begin; i < end; ++i)
      if (counts[i] != 0) f(i);
  }
}

}  // namespace detail

/// Divides positive and multiplies negative logits of every token that occurred, once per distinct token however often it did.
/// Shapes   logits: [vocab_size], counts: [vocab_size] or empty. penalty 1 changes no bit.
/// Source   Keskar et al. 2019, arXiv:1909.05858, with the sign rule of Hugging Face's RepetitionPenaltyLogitsProcessor.
inline void apply_repetition_penalty(std::span<float> logits, std::span<const std::int32_t> counts, float penalty) {
  if (penalty == 1.0f) return;
  detail::for_each_counted(counts,
                           [&](std::size_t i) { logits[i] = logits[i] > 0.0f ? logits[i] / penalty : logits[i] * penalty; });
}

/// logit -= frequency * count + presence, for every token with count > 0.
/// Shapes   logits: [vocab_size], counts: [vocab_size] or empty.
/// Source   the definition in OpenAI's API reference, over generated tokens as in vLLM.
inline void apply_presence_frequency_penalty(std::span<float> logits, std::span<const std::int32_t> counts, float presence,
                                             float frequency) {
  if (presence == 0.0f && frequency == 0.0f) return;
  detail::for_each_counted(counts, [&](std::size_t i) { logits[i] -= frequency * static_cast<float>(counts[i]) + presence; });
}

}  // namespace quena::inline QUENA_ABI
