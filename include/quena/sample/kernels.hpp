// SPDX-License-Identifier: MIT
// The loops over a whole row of logits: argmax, exp, softmax, log-sum-exp. Each can be used alone.
#pragma once

#include "../core/error.hpp"

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>

namespace quena::inline QUENA_ABI {

namespace detail {

inline constexpr float infinity = std::numeric_limits<float>::infinity();

/// Rows are walked in blocks of so many logits; one maximum per block is what lets later passes skip most blocks.
inline constexpr std::size_t logit_block = 64;
/// Width of the inner loops. A constant trip count over local arrays is what compilers turn into vector code at -O2.
inline constexpr std::size_t logit_lanes = 16;

/// Greatest of n values and whether all of them are legal logits (finite or -infinity).
struct block_range {
  float greatest;
  bool legal;
};

inline block_range scan_block(const float* x, std::size_t n) noexcept {
  float top[logit_lanes];
  std::int32_t bad[logit_lanes];
  for (std::size_t j = 0; j < logit_lanes; ++j) {
    top[j] = -infinity;
    bad[j] = 0;
  }
  std::size_t i = 0;
  for (; i + logit_lanes <= n; i += logit_lanes)
    for (std::size_t j = 0; j < logit_lanes; ++j) {
      const float v = x[i + j];
      top[j] = v > top[j] ? v : top[j];
      bad[j] |= v < infinity ? 0 : 1;  // false for NaN and for +infinity
    }
  for (std::size_t j = 0; i + j < n; ++j) {
    const float v = x[i + j];
    top[j] = v > top[j] ? v : top[j];
    bad[j] |= v < infinity ? 0 : 1;
  }
  block_range range{top[0], bad[0] == 0};
  for (std::size_t j = 1; j < logit_lanes; ++j) {
    range.greatest = top[j] > range.greatest ? top[j] : range.greatest;
    range.legal = range.legal && bad[j] == 0;
  }
  return range;
}

/// What one pass over a row of logits tells.
struct logits_scan {
  float greatest = -infinity;  ///< -infinity: no token can be chosen
  std::size_t argmax = 0;      ///< lowest index of the greatest logit
  bool legal = true;           ///< no NaN, no +infinity
};

/// Scans a row; `block_max`, when not null, receives the greatest logit of each block.
inline logits_scan scan_logits(std::span<const float> logits, float* block_max) noexcept {
  logits_scan scan;
  std::size_t best_block = 0;
  for (std::size_t begin = 0; begin < logits.size(); begin += logit_block) {
    const std::size_t n = logits.size() - begin < logit_block ? logits.size() - begin : logit_block;
    const block_range range = scan_block(logits.data() + begin, n);
    if (block_max) block_max[begin / logit_block] = range.greatest;
    scan.legal = scan.legal && range.legal;
    if (range.greatest > scan.greatest) {  // strictly: the first block keeps a tie
      scan.greatest = range.greatest;
      best_block = begin;
    }
  }
  if (scan.greatest == -infinity) return scan;
  for (scan.argmax = best_block; logits[scan.argmax] != scan.greatest;) ++scan.argmax;
  return scan;
}

/// e^x for x <= 0 (also -infinity): 0 below -87, exactly 1 at 0, else within 1 unit in the last place (measured:
/// 0.96; 0.995 where the compiler fuses multiplications into additions).
/// Our own, because the C library's is not vectorised and differs from one to the next. e^x = 2^n e^r, |r| <= ln(2)/2, and
/// e^r = 1 + r + r^2 q(r) with a minimax q.
inline float exp_nonpositive(float x) noexcept {
  constexpr float lowest = -87.0f;
  // Selections by mask: g++ 12 does not vectorise the conditional operator here, because a comparison may trap.
  const std::int32_t keep = -static_cast<std::int32_t>(x >= lowest);
  const float clamped =
      std::bit_cast<float>((std::bit_cast<std::int32_t>(x) & keep) | (std::bit_cast<std::int32_t>(lowest) & ~keep));
  const float shifted = clamped * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: the sum's low mantissa bits are round(x / ln 2)
  const float n = shifted - 12582912.0f;
  const float r = (clamped - n * 0.693145752f) - n * 1.42860677e-6f;  // ln 2 in two parts; n times the first is exact
  const float q = (((0.0013814539f * r + 0.008368745f) * r + 0.04166839f) * r + 0.16666521f) * r + 0.49999994f;
  const float y = 1.0f + (r + r * r * q);
  const float scale = std::bit_cast<float>(((static_cast<std::int32_t>(n) + 127) << 23) & keep);
  return y * scale;
}

/// y[i] = e^((x[i] - shift) / temperature), n <= logit_block. shift is the greatest x, so that nothing overflows; the division
/// is not a multiplication by a reciprocal, which would be infinite for tiny temperatures and make 0 * infinity of the best.
inline void exp_block(const float* x, std::size_t n, float shift, float temperature, float* y) noexcept {
  float v[logit_block];
  for (std::size_t i = 0; i < n; ++i) v[i] = x[i];
  for (std::size_t i = n; i < logit_block; ++i) v[i] = -infinity;
  for (std::size_t i = 0; i < logit_block; i += logit_lanes)
    for (std::size_t j = 0; j < logit_lanes; ++j) v[i + j] = exp_nonpositive((v[i + j] - shift) / temperature);
  for (std::size_t i = 0; i < n; ++i) y[i] = v[i];
}

/// Sum of e^(x[i] - shift): eight double sums, index modulo eight, within a block; then in order; then the blocks in order.
inline double sum_exp(std::span<const float> x, float shift) noexcept {
  double total = 0.0;
  float e[logit_block];
  for (std::size_t begin = 0; begin < x.size(); begin += logit_block) {
    const std::size_t n = x.size() - begin < logit_block ? x.size() - begin : logit_block;
    for (std::size_t i = n; i < logit_block; ++i) e[i] = 0.0f;
    exp_block(x.data() + begin, n, shift, 1.0f, e);
    double lane[8] = {};
    for (std::size_t i = 0; i < logit_block; i += 8)
      for (std::size_t j = 0; j < 8; ++j) lane[j] += static_cast<double>(e[i + j]);
    double sum = 0.0;
    for (const double s : lane) sum += s;
    total += sum;
  }
  return total;
}

}  // namespace detail

/// Index of the greatest logit; of equal ones the lowest index.
/// Shapes   logits: [vocab_size], at least one.
/// Errors   [argmax] NaN, +infinity, or nothing above -infinity -> quena::error, errc::non_finite; an empty row ->
/// invalid_argument. Cost     one pass, vectorised.
[[nodiscard]] inline std::size_t argmax(std::span<const float> logits) {
  if (logits.empty()) fail(errc::invalid_argument, "argmax", "expected at least one logit, got none");
  const detail::logits_scan scan = detail::scan_logits(logits, nullptr);
  if (!scan.legal) fail(errc::non_finite, "argmax", "expected finite logits or -infinity, got NaN or +infinity");
  if (scan.greatest == -detail::infinity) fail(errc::non_finite, "argmax", "expected a logit above -infinity, got none");
  return scan.argmax;
}

/// log(sum_i e^x[i]), the normaliser of log-probabilities: log p[i] = x[i] - log_sum_exp(x). -infinity when no x is above it;
/// NaN when any x is NaN or +infinity.
/// Numerics e^(x - greatest) in f32, sums in double in a fixed order; absolute error below 1e-6 for up to 2^22 logits.
[[nodiscard]] inline double log_sum_exp(std::span<const float> x) noexcept {
  const detail::logits_scan scan = detail::scan_logits(x, nullptr);
  if (!scan.legal) return std::numeric_limits<double>::quiet_NaN();
  if (scan.greatest == -detail::infinity) return -std::numeric_limits<double>::infinity();
  return static_cast<double>(scan.greatest) + std::log(detail::sum_exp(x, scan.greatest));
}

/// p[i] = e^(x[i] / temperature) / sum_j e^(x[j] / temperature).
/// Shapes   x, p: [n]; p may alias x. A row of -infinity gives zeros, as a fully masked row should.
/// Errors   [softmax] sizes differ, temperature not finite or not > 0 -> invalid_argument; NaN or +infinity in x -> non_finite.
inline void softmax(std::span<const float> x, std::span<float> p, float temperature = 1.0f) {
  if (x.size() != p.size())
    fail(errc::invalid_argument, "softmax",
         {"expected as many outputs as inputs, got ", p.size(), " and ", x.size()});
  if (!(temperature > 0.0f && temperature < detail::infinity))
    fail(errc::invalid_argument, "softmax", "expected a finite temperature > 0");
  const detail::logits_scan scan = detail::scan_logits(x, nullptr);
  if (!scan.legal) fail(errc::non_finite, "softmax", "expected finite numbers or -infinity, got NaN or +infinity");
  if (scan.greatest == -detail::infinity) {
    for (float& v : p) v = 0.0f;
    return;
  }
  double total = 0.0;
  for (std::size_t begin = 0; begin < x.size(); begin += detail::logit_block) {
    const std::size_t n = x.size() - begin < detail::logit_block ? x.size() - begin : detail::logit_block;
    detail::exp_block(x.data() + begin, n, scan.greatest, temperature, p.data() + begin);
    for (std::size_t i = 0; i < n; ++i) total += static_cast<double>(p[begin + i]);
  }
  for (float& v : p) v = static_cast<float>(static_cast<double>(v) / total);
}

}  // namespace quena::inline QUENA_ABI
