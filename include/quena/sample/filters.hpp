// SPDX-License-Identifier: MIT
// The truncation filters (top-k, top-p, min-p, typical) over a list of candidate tokens, and the draw from it.
//
// Weights are integers: w = floor(2^40 e^x) for x = (logit - greatest) / temperature <= 0, so the best token has 2^40 and
// whatever is 2^40 times less likely than it has 0 and is never chosen. Integer sums have no rounding and therefore no order:
// a filter keeps the same set and a draw gives the same token however the sum was split over blocks, lanes or devices.
//
// Nothing here sorts a vocabulary. A filter finds the last member of the prefix it keeps (histogram, then selection) and drops
// what ranks behind it; a list stays in ascending order of ids throughout.
#pragma once

#include "kernels.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace quena::inline QUENA_ABI {

/// A token that may still be chosen.
struct candidate {
  float logit;  ///< after bias and penalties, before temperature
  std::int32_t id;
  std::uint64_t weight;  ///< proportional to its probability
  float rank;            ///< what filters order by, greatest first; equal ranks by ascending id

  /// Rank order: the fixed total order of all filters.
  [[nodiscard]] bool ranks_before(const candidate& other) const noexcept {
    return rank > other.rank || (rank == other.rank && id < other.id);
  }
};

/// Weight of the best token: weights are multiples of 2^-40 of it.
inline constexpr std::uint64_t unit_weight = std::uint64_t{1} << 40;

/// The integer weight of e in [0, 1].
[[nodiscard]] constexpr std::uint64_t to_weight(float e) noexcept {
  return static_cast<std::uint64_t>(static_cast<std::int64_t>(e * 0x1p40f));  // via signed: one instruction on x86-64
}

[[nodiscard]] inline std::uint64_t total_weight(std::span<const candidate> list) noexcept {
  std::uint64_t sum = 0;
  for (const candidate& c : list) sum += c.weight;
  return sum;
}

namespace detail {

/// The last member of the shortest prefix of rank order whose measure reaches `target`; the last of all when none does.
/// A candidate's measure is its weight, or 1 where candidates are `counted` (top-k). Linear time but for the final handful.
inline candidate prefix_end(std::span<const candidate> list, std::uint64_t target, bool counted, std::vector<candidate>& pool) {
  const auto measure = [counted](const candidate& c) { return counted ? 1 : c.weight; };
  constexpr std::size_t n_bins = 512;
  constexpr std::ptrdiff_t few = 48;  // below it a sort is cheaper than another selection
  const auto before = [](const candidate& a, const candidate& b) { return a.ranks_before(b); };
  std::uint64_t reached = 0;
  pool.clear();

  // Bins of equal width between the extreme ranks, best first: only the bin where the target is crossed needs a closer look.
  float low = list.front().rank, high = low;
  for (const candidate& c : list) {
    low = c.rank < low ? c.rank : low;
    high = c.rank > high ? c.rank : high;
  }
  if (list.size() > n_bins / 2 && low < high) {
    const double scale = (n_bins - 1) / (static_cast<double>(high) - static_cast<double>(low));  // double: no overflow
    const auto bin_of = [&](const candidate& c) {
      const auto bin = static_cast<std::size_t>((static_cast<double>(high) - static_cast<double>(c.rank)) * scale);
      return bin < n_bins ? bin : n_bins - 1;
    };
    std::uint64_t bins[n_bins] = {};
    for (const candidate& c : list) bins[bin_of(c)] += measure(c);
    std::size_t bin = 0;
    while (bin + 1 < n_bins && reached + bins[bin] < target) reached += bins[bin++];
    for (const candidate& c : list)
      if (bin_of(c) == bin) pool.push_back(c);
    if (pool.empty()) {  // the target is above the sum of all measures, and rounding left nobody in the last bin
      const auto last = std::max_element(list.begin(), list.end(), before);
      return *last;
    }
  } else {
    pool.assign(list.begin(), list.end());
  }

  auto first = pool.begin(), end = pool.end();
  while (end - first > few) {
    const auto middle = first + (end - first) / 2;
    std::nth_element(first, middle, end, before);
    std::uint64_t half = 0;
    for (auto c = first; c != middle; ++c) half += measure(*c);
    if (reached + half >= target) {
      end = middle;
    } else {
      reached += half;
      first = middle;
    }
  }
  std::sort(first, end, before);
  for (auto c = first; c != end; ++c)
    if ((reached += measure(*c)) >= target) return *c;
  return *(end - 1);
}

inline void drop_behind(std::vector<candidate>& list, const candidate& last) {
  std::erase_if(list, [&](const candidate& c) { return last.ranks_before(c); });
}

/// The smallest integer >= share * total, at least 1: what a prefix has to reach.
inline std::uint64_t share_of(float share, std::uint64_t total) noexcept {
  const double target = std::ceil(static_cast<double>(share) * static_cast<double>(total));
  return target < 1.0 ? 1 : static_cast<std::uint64_t>(target);
}

}  // namespace detail

/// Keeps the k candidates that rank first. Requires list not empty, k >= 1, rank == logit.
inline void keep_top_k(std::vector<candidate>& list, std::size_t k, std::vector<candidate>& pool) {
  if (list.size() <= k) return;
  const candidate last = detail::prefix_end(list, k, true, pool);
  detail::drop_behind(list, last);
}

/// Keeps the shortest prefix of rank order whose weights sum to at least top_p * total; where the sum equals the threshold, no
/// further token; at least one token always. `total` is that of all tokens the probabilities are taken over: the list must hold
/// the prefix, but may lack tokens behind it.
/// Source   Holtzman et al. 2019, arXiv:1904.09751 (nucleus sampling).
inline void keep_top_p(std::vector<candidate>& list, float top_p, std::uint64_t total, std::vector<candidate>& pool) {
  const candidate last = detail::prefix_end(list, detail::share_of(top_p, total), false, pool);
  detail::drop_behind(list, last);
}

/// Keeps candidates whose probability is at least min_p times the best one's. Requires the best token, of unit_weight, in the list.
/// Source   Nguyen et al. 2024, arXiv:2407.01082.
inline void keep_min_p(std::vector<candidate>& list, float min_p) {
  const std::uint64_t least = detail::share_of(min_p, unit_weight);
  std::erase_if(list, [&](const candidate& c) { return c.weight < least; });
}

/// Keeps the tokens whose information is nearest to the expected one: with p over the list, H its entropy, the shortest prefix
/// by ascending |-log p - H|, ties by ascending id, whose weights sum to at least typical_p of the list's; at least one.
/// With x = (logit - greatest) / temperature, log p = x - log Z, so that |-log p - H| = |x - sum(p x)| and Z cancels out; the
/// sum is in double in the order of ids. Requires every weight > 0 (x is finite then); ranks hold the negated deviation afterwards.
/// Source   Meister et al. 2022, arXiv:2202.00666; as Hugging Face's TypicalLogitsWarper but for the order of ties.
inline void keep_typical(std::vector<candidate>& list, float typical_p, float greatest, float temperature,
                         std::vector<candidate>& pool) {
  const std::uint64_t total = total_weight(list);
  const auto x_of = [&](const candidate& c) { return static_cast<double>((c.logit - greatest) / temperature); };
  double expected = 0.0;
  for (const candidate& c : list) expected += static_cast<double>(c.weight) * x_of(c);
  expected /= static_cast<double>(total);
  for (candidate& c : list) c.rank = -static_cast<float>(std::abs(x_of(c) - expected));
  const candidate last = detail::prefix_end(list, detail::share_of(typical_p, total), false, pool);
  detail::drop_behind(list, last);
}

/// The token at `point` in [0, total weight) when the weights are laid end to end in the order of the list (ascending ids).
[[nodiscard]] inline std::int32_t pick(std::span<const candidate> list, std::uint64_t point) noexcept {
  for (const candidate& c : list) {
    if (point < c.weight) return c.id;
    point -= c.weight;
  }
  return list.back().id;  // not reached for a point within the total
}

}  // namespace quena::inline QUENA_ABI
