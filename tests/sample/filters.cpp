// SPDX-License-Identifier: MIT
#include <quena/sample/filters.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace {

using quena::candidate;

/// Candidates with these shares of the best one's probability, given exactly.
std::vector<candidate> of_shares(const std::vector<double>& shares) {
  std::vector<candidate> list;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const auto logit = static_cast<float>(std::log(shares[i]));
    list.push_back({logit, static_cast<std::int32_t>(i), static_cast<std::uint64_t>(shares[i] * 0x1p40), logit});
  }
  return list;
}

std::vector<std::int32_t> ids(const std::vector<candidate>& list) {
  std::vector<std::int32_t> result;
  for (const candidate& c : list) result.push_back(c.id);
  return result;
}

using kept = std::vector<std::int32_t>;

kept top_p(std::vector<candidate> list, float p) {
  std::vector<candidate> pool;
  quena::keep_top_p(list, p, quena::total_weight(list), pool);
  return ids(list);
}

TEST_CASE("filters: top-p where the sum equals the threshold exactly") {
  // probabilities 0.125, 0.5, 0.125, 0.25
  const auto list = of_shares({0.25, 1, 0.25, 0.5});
  CHECK(top_p(list, 0.75f) == kept{1, 3});
  CHECK(top_p(list, 0.76f) == kept{0, 1, 3});  // of the equal ones the lower id
  CHECK(top_p(list, 0.875f) == kept{0, 1, 3});
  CHECK(top_p(list, 0.0f) == kept{1});
  CHECK(top_p(list, 0.5f) == kept{1});
  CHECK(top_p(list, 0.50001f) == kept{1, 3});
  CHECK(top_p(list, 1.0f) == kept{0, 1, 2, 3});
}

TEST_CASE("filters: top-p always keeps one, and equal tokens go by id") {
  CHECK(top_p(of_shares({1}), 0.0f) == kept{0});
  CHECK(top_p(of_shares({1, 1, 1, 1}), 0.0f) == kept{0});
  CHECK(top_p(of_shares({1, 1, 1, 1}), 0.5f) == kept{0, 1});
  CHECK(top_p(of_shares({1, 1, 1, 1}), 0.51f) == kept{0, 1, 2});
}

TEST_CASE("filters: top-k") {
  std::vector<candidate> pool;
  auto list = of_shares({0.25, 1, 0.25, 0.5});
  quena::keep_top_k(list, 3, pool);
  CHECK(ids(list) == kept{0, 1, 3});
  quena::keep_top_k(list, 7, pool);
  CHECK(ids(list) == kept{0, 1, 3});
  quena::keep_top_k(list, 1, pool);
  CHECK(ids(list) == kept{1});
}

TEST_CASE("filters: min-p keeps what equals the threshold") {
  auto list = of_shares({0.25, 1, 0.125, 0.5});
  quena::keep_min_p(list, 0.25f);
  CHECK(ids(list) == kept{0, 1, 3});
  quena::keep_min_p(list, 0.2501f);
  CHECK(ids(list) == kept{1, 3});
  quena::keep_min_p(list, 1.0f);
  CHECK(ids(list) == kept{1});
}

TEST_CASE("filters: typical prefers the token of expected surprise to the likeliest one") {
  // p = 0.4, 0.2, 0.2, 0.2: H = 1.3322; -log p = 0.916 (deviation 0.416) and 1.609 (deviation 0.277)
  std::vector<candidate> pool;
  auto list = of_shares({1, 0.5, 0.5, 0.5});
  quena::keep_typical(list, 0.2f, 0.0f, 1.0f, pool);
  CHECK(ids(list) == kept{1, 2});  // 0.2 as a float is a little above a fifth, so one more is needed
  list = of_shares({1, 0.5, 0.5, 0.5});
  quena::keep_typical(list, 0.19f, 0.0f, 1.0f, pool);
  CHECK(ids(list) == kept{1});
  list = of_shares({1, 0.5, 0.5, 0.5});
  quena::keep_typical(list, 0.61f, 0.0f, 1.0f, pool);
  CHECK(ids(list) == kept{0, 1, 2, 3});
  list = of_shares({1});
  quena::keep_typical(list, 0.0f, 0.0f, 1.0f, pool);
  CHECK(ids(list) == kept{0});
}

TEST_CASE("filters: pick lays weights end to end by id and never takes a weight of 0") {
  std::vector<candidate> list = of_shares({0.5, 0, 1, 0.25});
  const std::uint64_t unit = quena::unit_weight;
  CHECK(quena::pick(list, 0) == 0);
  CHECK(quena::pick(list, unit / 2 - 1) == 0);
  CHECK(quena::pick(list, unit / 2) == 2);
  CHECK(quena::pick(list, unit / 2 + unit - 1) == 2);
  CHECK(quena::pick(list, unit / 2 + unit) == 3);
  CHECK(quena::pick(list, quena::total_weight(list) - 1) == 3);
}

/// The shortest prefix by a full sort, as the definition says.
std::vector<std::int32_t> sorted_prefix(std::vector<candidate> list, std::uint64_t target, bool by_count) {
  std::sort(list.begin(), list.end(), [](const candidate& a, const candidate& b) { return a.ranks_before(b); });
  std::uint64_t reached = 0;
  std::vector<std::int32_t> result;
  for (const candidate& c : list) {
    result.push_back(c.id);
    if ((reached += by_count ? 1 : c.weight) >= target) break;
  }
  std::sort(result.begin(), result.end());
  return result;
}

TEST_CASE("filters: the selected prefix is that of a full sort, for all sizes, shapes and ties") {
  std::mt19937 rng(11);
  std::vector<candidate> pool;
  for (int round = 0; round < 600; ++round) {
    const std::size_t sizes[] = {1, 2, 3, 47, 48, 49, 50, 97, 256, 257, 258, 700, 3000};
    const std::size_t n = sizes[rng() % 13];
    const int shape = round % 6;
    std::vector<candidate> list;
    for (std::size_t i = 0; i < n; ++i) {
      const double u = static_cast<double>(rng()) / 4294967296.0;
      double x = -10 * u;                                                        // spread out
      if (shape == 1) x = -std::floor(4 * u);                                    // four values
      if (shape == 2) x = 0;                                                     // all the same
      if (shape == 3) x = i == 0 ? 0 : -3e37 * u - 1e37;                         // a far outlier: all others in few bins, weight 0
      if (shape == 4) x = -1e-38 * u;                                            // differences below the normal range
      if (shape == 5) x = i % 2 == 0 ? -3e38 : 3e38 - 1e37 * std::floor(3 * u);  // range above FLT_MAX
      const auto logit = static_cast<float>(x);
      const std::uint64_t weight = shape == 5 ? 1 + rng() % 5 : quena::to_weight(quena::detail::exp_nonpositive(logit));
      list.push_back({logit, static_cast<std::int32_t>(2 * i), weight, logit});
    }
    CAPTURE(round);
    CAPTURE(n);
    const std::size_t k = 1 + rng() % (n + 2);
    auto by_count = list;
    quena::keep_top_k(by_count, k, pool);
    REQUIRE(ids(by_count) == sorted_prefix(list, k, true));

    const float p = static_cast<float>(rng() % 1001) / 1000.0f;
    const std::uint64_t total = quena::total_weight(list);
    if (total == 0) continue;
    auto by_weight = list;
    quena::keep_top_p(by_weight, p, total, pool);
    REQUIRE(ids(by_weight) == sorted_prefix(list, quena::detail::share_of(p, total), false));
  }
}

TEST_CASE("filters: a share of the total that is no whole number is rounded up") {
  std::vector<candidate> list{{0, 0, 1, 0}, {0, 1, 1, 0}, {0, 2, 1, 0}};
  CHECK(top_p(list, 0.5f) == kept{0, 1});
  CHECK(top_p(list, 0.3f) == kept{0});
  CHECK(top_p(list, 0.7f) == kept{0, 1, 2});
}

TEST_CASE("filters: a target above the sum of all keeps everything") {
  std::vector<candidate> pool;
  for (const std::size_t n : {std::size_t{3}, std::size_t{1000}}) {
    std::vector<double> shares;
    for (std::size_t i = 0; i < n; ++i) shares.push_back(1.0 / static_cast<double>(i + 1));
    auto list = of_shares(shares);
    quena::keep_top_p(list, 0.5f, 100 * quena::total_weight(list), pool);
    CHECK(list.size() == n);
  }
  for (int width = 1; width < 500; ++width) {  // for some of these widths rounding leaves the last bin empty
    std::vector<candidate> list;
    for (std::int32_t i = 0; i < 300; ++i) {
      const float logit = -static_cast<float>(width) * 0.37f * static_cast<float>(i) / 299.0f;
      list.push_back({logit, i, 1, logit});
    }
    quena::keep_top_p(list, 1.0f, 1000, pool);
    CHECK(list.size() == 300);
  }
}

TEST_CASE("filters: weights are floors of 2^40 e") {
  CHECK(quena::to_weight(1.0f) == quena::unit_weight);
  CHECK(quena::to_weight(0.0f) == 0);
  CHECK(quena::to_weight(0x1p-40f) == 1);
  CHECK(quena::to_weight(0x1.8p-40f) == 1);
  CHECK(quena::to_weight(0x1p-41f) == 0);
}

}  // namespace
