// SPDX-License-Identifier: MIT
// Random numbers as a pure function of (seed, sequence, position): Philox4x32-10 and what the sampler draws from it.
#pragma once

#include <cstdint>

#include "../core/config.hpp"

namespace quena::inline QUENA_ABI {

/// Four 32-bit words: the counter and the output of one Philox block.
struct philox_words {
  std::uint32_t word[4];
  friend constexpr bool operator==(const philox_words&, const philox_words&) = default;
};

/// The key of a Philox stream.
struct philox_key {
  std::uint32_t word[2];
};

/// Philox4x32-10: 128 random bits from a 128-bit counter and a 64-bit key, with no state at all.
/// Errors   none; constexpr and free of 128-bit types, so that device code can call it as it stands.
/// Cost     20 widening multiplications.
/// Source   Salmon, Moraes, Dror & Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC'11; tested against the
///          known-answer vectors of the authors' Random123.
[[nodiscard]] constexpr philox_words philox4x32(philox_words counter, philox_key key) noexcept {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t even = std::uint64_t{0xD2511F53u} * counter.word[0];
    const std::uint64_t odd = std::uint64_t{0xCD9E8D57u} * counter.word[2];
    counter = {{static_cast<std::uint32_t>(odd >> 32) ^ counter.word[1] ^ key.word[0], static_cast<std::uint32_t>(odd),
                static_cast<std::uint32_t>(even >> 32) ^ counter.word[3] ^ key.word[1], static_cast<std::uint32_t>(even)}};
    key.word[0] += 0x9E3779B9u;  // the Weyl sequences of the paper: golden ratio and sqrt(3) - 1
    key.word[1] += 0xBB67AE85u;
  }
  return counter;
}

/// The 64 random bits that belong to one draw. They depend on these four numbers and on nothing else: not on the draws made
/// before, the batch, the thread or the machine.
///   key = seed; counter = {position, draw, low and high half of sequence}
/// `position` is that of the token being chosen; `draw` tells several draws for one position apart (0: the sampler's choice).
[[nodiscard]] constexpr std::uint64_t random_bits(std::uint64_t seed, std::uint64_t sequence, std::uint32_t position,
                                                  std::uint32_t draw = 0) noexcept {
  const auto low = [](std::uint64_t v) { return static_cast<std::uint32_t>(v & 0xffffffffu); };
  const philox_words out = philox4x32({{position, draw, low(sequence), low(sequence >> 32)}}, {{low(seed), low(seed >> 32)}});
  return std::uint64_t{out.word[1]} << 32 | out.word[0];
}

/// floor(bits * bound / 2^64): a number in [0, bound) out of 64 uniform bits. Every result has a probability within 2^-64 of
/// 1 / bound. 0 when bound is 0. Source: Lemire 2019, arXiv:1805.10941 (without its rejection step).
[[nodiscard]] constexpr std::uint64_t uniform_below(std::uint64_t bits, std::uint64_t bound) noexcept {
  const std::uint64_t a_low = bits & 0xffffffffu, a_high = bits >> 32, b_low = bound & 0xffffffffu, b_high = bound >> 32;
  const std::uint64_t mid = a_high * b_low + (a_low * b_low >> 32);  // cannot overflow: (2^32-1)^2 + 2^32-1 < 2^64
  const std::uint64_t mid2 = a_low * b_high + (mid & 0xffffffffu);
  return a_high * b_high + (mid >> 32) + (mid2 >> 32);
}

/// 64 uniform bits as a double in [0, 1): the top 53 of them.
[[nodiscard]] constexpr double uniform_unit(std::uint64_t bits) noexcept { return static_cast<double>(bits >> 11) * 0x1p-53; }

}  // namespace quena::inline QUENA_ABI
