// SPDX-License-Identifier: MIT
#include <quena/sample/sampler.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace {

constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();
constexpr float inf = std::numeric_limits<float>::infinity();

using row = std::vector<float>;
using ids = std::vector<std::int32_t>;

row random_logits(std::size_t n, unsigned seed, float spread = 3.0f) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, spread);
  row logits(n);
  for (float& v : logits) v = normal(rng);
  return logits;
}

std::int32_t choose(const quena::sampling_options& options, const row& logits, std::uint32_t position = 0) {
  quena::sampler sampler(options, logits.size());
  return sampler.choose(logits, position).token;
}

template <class F>
std::string message_of(F f, quena::errc code) {
  try {
    f();
  } catch (const quena::error& e) {
    CHECK(e.code() == code);
    return e.what();
  }
  return {};
}

/// The tokens that can be chosen at all, by many draws.
ids reachable(const quena::sampling_options& options, const row& logits, std::uint32_t n_draws = 4000) {
  quena::sampler sampler(options, logits.size());
  ids found;
  for (std::uint32_t position = 0; position < n_draws; ++position) found.push_back(sampler.choose(logits, position).token);
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

// ---- greedy and temperature -------------------------------------------------------------------------------------------------

const row eight{0.2f, -1.0f, 2.9f, 1.1f, -0.4f, 2.8f, 0.0f, 1.7f};

TEST_CASE("sampler: temperature 0 is greedy whatever else is set") {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    CHECK(choose({.temperature = 0, .seed = seed}, eight, static_cast<std::uint32_t>(seed)) == 2);
    CHECK(choose({.temperature = -0.0f, .top_k = 3, .top_p = 0.1f, .min_p = 0.9f, .typical_p = 0.1f, .seed = seed}, eight) == 2);
    CHECK(choose({.temperature = 1e-8f, .seed = seed}, eight) == 2);
    CHECK(choose({.temperature = 1e-45f, .top_p = 0.9f, .seed = seed}, eight) == 2);
    CHECK(choose({.temperature = 1e-45f, .typical_p = 0.5f, .seed = seed}, eight) == 2);
    CHECK(choose({.temperature = 1e-45f, .top_k = 3, .typical_p = 0.5f, .seed = seed}, eight) == 2);
    CHECK(choose({.top_k = 1, .seed = seed}, eight) == 2);
    CHECK(choose({.top_p = 0, .seed = seed}, eight) == 2);
    CHECK(choose({.min_p = 1, .seed = seed}, eight) == 2);
  }
}

TEST_CASE("sampler: a very high temperature is nearly uniform and finite") {
  std::vector<int> count(eight.size());
  quena::sampler sampler({.temperature = 1e8f, .n_logprobs = 0}, eight.size());
  for (std::uint32_t position = 0; position < 8000; ++position) {
    const quena::sampled choice = sampler.choose(eight, position);
    ++count[static_cast<std::size_t>(choice.token)];
    CHECK(std::isfinite(choice.logprob));
  }
  for (const int n : count) CHECK(std::abs(n - 1000) < 150);  // deviation sqrt(8000 * 1/8 * 7/8) = 30
  CHECK(choose({.temperature = 3e38f, .top_p = 0.5f}, row{3e38f, -3e38f}) == 0);
}

TEST_CASE("sampler: top-k at a high temperature keeps the greatest logits, though all weights are equal") {
  CHECK(reachable({.temperature = 1e9f, .top_k = 2}, eight) == ids{2, 5});
}

TEST_CASE("sampler: equal logits go to the lowest id") {
  CHECK(choose({.temperature = 0}, row{1, 3, 3, 3}) == 1);
  CHECK(choose({.top_k = 1}, row{1, 3, 3, 3}) == 1);
  CHECK(reachable({.top_k = 2}, row{1, 3, 3, 3}) == ids{1, 2});
  CHECK(reachable({.top_k = 70}, row(200, 1.0f)).back() == 69);
}

// ---- truncation through logits ----------------------------------------------------------------------------------------------

TEST_CASE("sampler: top-p keeps the documented sets") {
  const row logits{std::log(0.125f), std::log(0.5f), std::log(0.125f), std::log(0.25f)};
  CHECK(reachable({.top_p = 0.74f}, logits) == ids{1, 3});
  CHECK(reachable({.top_p = 0.76f}, logits) == ids{0, 1, 3});
  CHECK(reachable({.top_p = 0}, logits) == ids{1});
  CHECK(reachable({.top_p = 1}, logits) == ids{0, 1, 2, 3});
}

TEST_CASE("sampler: filters apply in turn, each to what the one before it left") {
  const row logits{std::log(0.4f), std::log(0.3f), std::log(0.2f), std::log(0.1f)};
  // after top-k 2: 0.571, 0.429. Over all four tokens 0.55 would need two of them.
  CHECK(reachable({.top_k = 2, .top_p = 0.55f}, logits) == ids{0});
  CHECK(reachable({.top_p = 0.55f}, logits) == ids{0, 1});
  CHECK(reachable({.min_p = 0.6f}, logits) == ids{0, 1});
  CHECK(reachable({.top_k = 3, .min_p = 0.6f}, logits) == ids{0, 1});
  CHECK(reachable({.top_k = 3}, logits) == ids{0, 1, 2});
  CHECK(reachable({.top_k = 4}, logits) == ids{0, 1, 2, 3});
  CHECK(reachable({.top_k = 400}, logits) == ids{0, 1, 2, 3});
  // temperature comes first: at 0.5 the probabilities are 16 : 9 : 4 : 1 of 30
  CHECK(reachable({.temperature = 0.5f, .top_p = 0.8f}, logits) == ids{0, 1});
  CHECK(reachable({.temperature = 2.0f, .top_p = 0.8f}, logits) == ids{0, 1, 2});
}

/// The definition at the top of sampler.hpp in the plainest way: full sorts, no blocks, no bounds. It shares the weights with
/// the sampler (their accuracy is tested in kernels.cpp), so that results must be equal and not merely near.
std::int32_t choose_plainly(const quena::sampling_options& o, const row& logits, std::uint64_t sequence, std::uint32_t position) {
  struct entry {
    std::int32_t id;
    float logit;
    double x;
    std::uint64_t w;
  };
  const float greatest = *std::max_element(logits.begin(), logits.end());
  std::vector<entry> list;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    float e = 0;
    quena::detail::exp_block(&logits[i], 1, greatest, o.temperature, &e);
    list.push_back({static_cast<std::int32_t>(i), logits[i], static_cast<double>((logits[i] - greatest) / o.temperature),
                    quena::to_weight(e)});
  }
  if (o.temperature == 0) {
    return std::max_element(list.begin(), list.end(), [](const entry& a, const entry& b) { return a.logit < b.logit; })->id;
  }
  const auto total = [&] {
    std::uint64_t sum = 0;
    for (const entry& e : list) sum += e.w;
    return sum;
  };
  const auto by_logit = [](const entry& a, const entry& b) { return a.logit > b.logit || (a.logit == b.logit && a.id < b.id); };
  const auto cut = [&](float share) {
    const double target = std::max(1.0, std::ceil(static_cast<double>(share) * static_cast<double>(total())));
    std::uint64_t reached = 0;
    std::size_t n = 0;
    while (n < list.size() && static_cast<double>(reached) < target) reached += list[n++].w;
    list.resize(n);
  };
  if (o.top_k > 0) {
    std::sort(list.begin(), list.end(), by_logit);
    list.resize(std::min(list.size(), static_cast<std::size_t>(o.top_k)));
  }
  if (o.top_p < 1) {
    std::sort(list.begin(), list.end(), by_logit);
    cut(o.top_p);
  }
  if (o.min_p > 0)
    std::erase_if(list, [&](const entry& e) { return static_cast<double>(e.w) < static_cast<double>(o.min_p) * 0x1p40; });
  if (o.typical_p < 1) {
    std::sort(list.begin(), list.end(), [](const entry& a, const entry& b) { return a.id < b.id; });
    double mean = 0;
    for (const entry& e : list) mean += e.w > 0 ? static_cast<double>(e.w) * e.x : 0.0;
    mean /= static_cast<double>(total());
    std::erase_if(list, [](const entry& e) { return e.w == 0; });
    std::sort(list.begin(), list.end(), [&](const entry& a, const entry& b) {
      const auto da = static_cast<float>(std::abs(a.x - mean)), db = static_cast<float>(std::abs(b.x - mean));
      return da < db || (da == db && a.id < b.id);
    });
    cut(o.typical_p);
  }
  std::sort(list.begin(), list.end(), [](const entry& a, const entry& b) { return a.id < b.id; });
  std::uint64_t point = quena::uniform_below(quena::random_bits(o.seed, sequence, position), total());
  for (const entry& e : list) {
    if (point < e.w) return e.id;
    point -= e.w;
  }
  return -1;
}

TEST_CASE("sampler: equals the plain definition for random options, sizes and shapes of logits") {
  std::mt19937 rng(2024);
  const auto one_in = [&](unsigned n) { return rng() % n == 0; };
  const auto unit = [&] { return static_cast<float>(rng() % 1001) / 1000.0f; };
  const std::size_t sizes[] = {1, 2, 5, 63, 64, 65, 127, 512, 1000, 2500};
  quena::sampling_scratch scratch;  // shared by all of them: nothing may leak from one to the next
  for (unsigned round = 0; round < 3000; ++round) {
    const std::size_t n = sizes[rng() % 10];
    row logits = random_logits(n, round, one_in(4) ? 0.01f : one_in(3) ? 12.0f : 3.0f);
    if (one_in(3))
      for (float& v : logits) v = std::round(v);  // many ties
    if (one_in(4))
      for (float& v : logits) v = one_in(3) ? -inf : v;
    logits[rng() % n] = 1.5f;  // never all banned

    quena::sampling_options o;
    const float temperatures[] = {1.0f, 0.7f, 0.0f, 0.05f, 2.5f, 1e8f, 1e-8f};
    o.temperature = temperatures[rng() % 7];
    if (one_in(2)) o.top_k = static_cast<std::int32_t>(1 + rng() % (n + 3));
    if (one_in(3)) o.top_k = static_cast<std::int32_t>(1 + rng() % 8);
    if (one_in(2)) o.top_p = unit();
    if (one_in(3)) o.min_p = one_in(2) ? unit() : unit() * 0.01f;
    if (one_in(3)) o.typical_p = unit();
    o.seed = rng();
    const std::uint64_t sequence = rng();
    const quena::sampler sampler(o, n, sequence);
    CAPTURE(round);
    CAPTURE(n);
    CAPTURE(o.temperature);
    CAPTURE(o.top_k);
    CAPTURE(o.top_p);
    CAPTURE(o.min_p);
    CAPTURE(o.typical_p);
    for (std::uint32_t position = 0; position < 5; ++position)
      REQUIRE(sampler.choose(logits, position, scratch).token == choose_plainly(o, logits, sequence, position));
  }
}

TEST_CASE("sampler: the draw from all tokens gives each its exact interval") {
  // Two blocks: 0.5, 0, 1 (of 2^40) at 0, 1 and 63, and 0.25 at 64.
  quena::sampling_scratch s;
  s.exps.assign(70, 0.0f);
  s.exps[0] = 0.5f;
  s.exps[63] = 1.0f;
  s.exps[64] = 0.25f;
  const std::uint64_t unit = quena::unit_weight;
  s.block_weight = {unit / 2 + unit, unit / 4};
  CHECK(quena::detail::pick_from_all(0, s) == 0);
  CHECK(quena::detail::pick_from_all(unit / 2 - 1, s) == 0);
  CHECK(quena::detail::pick_from_all(unit / 2, s) == 63);
  CHECK(quena::detail::pick_from_all(unit / 2 + unit - 1, s) == 63);
  CHECK(quena::detail::pick_from_all(unit / 2 + unit, s) == 64);
  CHECK(quena::detail::pick_from_all(unit / 2 + unit + unit / 4 - 1, s) == 64);
}

// ---- distribution -----------------------------------------------------------------------------------------------------------

/// Chi-square of many draws against probabilities given by other means; cells of small expectation are pooled.
void check_distribution(const quena::sampling_options& options, const row& logits, const std::vector<double>& p) {
  constexpr std::uint32_t n_draws = 60000;
  std::vector<double> count(p.size());
  quena::sampler sampler(options, logits.size(), 3);
  for (std::uint32_t position = 0; position < n_draws; ++position)
    count[static_cast<std::size_t>(sampler.choose(logits, position).token)] += 1;
  double chi2 = 0, pooled_count = 0, pooled_expected = 0;
  int cells = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    const double expected = p[i] * n_draws;
    if (p[i] == 0) {
      CHECK(count[i] == 0);
    } else if (expected < 10) {
      pooled_count += count[i];
      pooled_expected += expected;
    } else {
      chi2 += (count[i] - expected) * (count[i] - expected) / expected;
      ++cells;
    }
  }
  if (pooled_expected >= 5) {
    chi2 += (pooled_count - pooled_expected) * (pooled_count - pooled_expected) / pooled_expected;
    ++cells;
  } else {
    CHECK(pooled_count < pooled_expected + 20);
  }
  const double freedom = cells - 1;
  CAPTURE(chi2);
  CAPTURE(freedom);
  CHECK(chi2 < freedom + 4 * std::sqrt(2 * freedom) + 4);  // draws are fixed, so this cannot flicker
}

std::vector<double> softmax64(const row& logits, double temperature) {
  const double greatest = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  std::vector<double> p;
  for (const float v : logits) p.push_back(std::exp((static_cast<double>(v) - greatest) / temperature));
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& v : p) v /= sum;
  return p;
}

/// Sets all but the best tokens to 0 as long as `keep(rank, mass before it)` holds, and renormalises.
template <class Keep>
void truncate(std::vector<double>& p, Keep keep) {
  std::vector<std::size_t> order(p.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return p[a] > p[b]; });
  double before = 0;
  for (std::size_t rank = 0; rank < order.size(); ++rank) {
    const double mass = p[order[rank]];
    if (!keep(rank, before)) p[order[rank]] = 0;
    before += mass;
  }
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& v : p) v /= sum;
}

TEST_CASE("sampler: draws follow the distribution of the definition") {
  const row logits = random_logits(100, 9, 2.0f);
  SUBCASE("plain") { check_distribution({}, logits, softmax64(logits, 1)); }
  SUBCASE("temperature") { check_distribution({.temperature = 0.6f, .seed = 5}, logits, softmax64(logits, 0.6f)); }
  SUBCASE("top-k") {
    auto p = softmax64(logits, 1);
    truncate(p, [](std::size_t rank, double) { return rank < 12; });
    check_distribution({.top_k = 12, .seed = 6}, logits, p);
  }
  SUBCASE("temperature and top-p") {
    auto p = softmax64(logits, 1.5);
    truncate(p, [](std::size_t, double before) { return before < 0.8; });
    check_distribution({.temperature = 1.5f, .top_p = 0.8f, .seed = 7}, logits, p);
  }
  SUBCASE("top-k, top-p and min-p") {
    auto p = softmax64(logits, 1);
    truncate(p, [](std::size_t rank, double) { return rank < 30; });
    truncate(p, [](std::size_t, double before) { return before < 0.9; });
    const double best = *std::max_element(p.begin(), p.end());
    for (double& v : p) v = v < 0.05 * best ? 0 : v;
    truncate(p, [](std::size_t, double) { return true; });
    check_distribution({.top_k = 30, .top_p = 0.9f, .min_p = 0.05f, .seed = 8}, logits, p);
  }
  SUBCASE("typical") {
    auto p = softmax64(logits, 1);
    double entropy = 0;
    for (const double v : p) entropy -= v * std::log(v);
    std::vector<std::size_t> order(p.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    const auto deviation = [&](std::size_t i) { return std::abs(-std::log(p[i]) - entropy); };
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return deviation(a) < deviation(b); });
    std::vector<double> kept(p.size());
    double mass = 0;
    for (const std::size_t i : order) {
      if (mass >= 0.7) break;
      kept[i] = p[i];
      mass += p[i];
    }
    for (double& v : kept) v /= mass;
    check_distribution({.typical_p = 0.7f, .seed = 9}, logits, kept);
  }
  SUBCASE("bias") {
    row biased = logits;
    biased[4] += 3.0f;
    auto p = softmax64(biased, 1);
    p[5] = 0;
    truncate(p, [](std::size_t, double) { return true; });
    check_distribution({.logit_bias = {{4, 3.0f}}, .banned_tokens = {5}, .seed = 10}, logits, p);
  }
}

// ---- determinism ------------------------------------------------------------------------------------------------------------

TEST_CASE("sampler: a draw depends on seed, sequence and position, on nothing else") {
  const row logits = random_logits(300, 1);
  const auto tokens = [&](std::uint64_t seed, std::uint64_t sequence) {
    quena::sampler sampler({.seed = seed}, logits.size(), sequence);
    ids result;
    for (std::uint32_t position = 0; position < 50; ++position) result.push_back(sampler.choose(logits, position).token);
    return result;
  };
  CHECK(tokens(1, 0) == tokens(1, 0));
  CHECK(tokens(1, 0) != tokens(2, 0));
  CHECK(tokens(1, 0) != tokens(1, 1));

  // Backwards, twice, with other history and a foreign scratch.
  quena::sampler sampler({.seed = 1}, logits.size());
  quena::sampling_scratch scratch;
  const ids forward = tokens(1, 0);
  for (std::uint32_t position = 50; position-- > 0;) {
    CHECK(sampler.choose(logits, position).token == forward[position]);
    CHECK(sampler.choose(logits, position, scratch).token == forward[position]);
    sampler.accept(7);
  }
  // The position defaults to the number of accepted tokens.
  sampler.reset();
  sampler.accept_prompt(ids{1, 2, 3});
  CHECK(sampler.choose(logits).token == forward[3]);
  sampler.accept(4);
  CHECK(sampler.choose(logits).token == forward[4]);
}

TEST_CASE("sampler: a copy is a fork") {
  const row logits = random_logits(50, 2);
  quena::sampler first({.repetition_penalty = 1.3f, .presence_penalty = 0.5f, .penalty_last_n = 4, .seed = 3}, logits.size());
  first.accept_prompt(ids{1, 2, 3, 4, 5, 6});
  (void)first.choose(logits);
  quena::sampler second = first;
  const auto run = [&](quena::sampler& sampler) {
    ids result;
    for (int i = 0; i < 30; ++i) {
      result.push_back(sampler.choose(logits).token);
      sampler.accept(result.back());
    }
    return result;
  };
  const ids once = run(first);
  CHECK(run(second) == once);
  first.reset();
  first.accept_prompt(ids{1, 2, 3, 4, 5, 6});
  CHECK(run(first) == once);
}

// ---- penalties, bias, bans --------------------------------------------------------------------------------------------------

row processed(const quena::sampler& sampler, const row& logits) {
  quena::sampling_scratch scratch;
  const auto result = sampler.process(logits, scratch);
  return row(result.begin(), result.end());
}

TEST_CASE("sampler: repetition penalty never rewards a negative logit") {
  quena::sampler sampler({.repetition_penalty = 1.5f}, 3);
  sampler.accept_prompt(ids{0, 1});
  sampler.accept(1);
  sampler.accept(1);
  const row result = processed(sampler, row{2.0f, -2.0f, 0.5f});
  CHECK(result[0] == doctest::Approx(1.3333333f));
  CHECK(result[1] == -3.0f);
  CHECK(result[2] == 0.5f);
}

TEST_CASE("sampler: neutral options give the caller's logits back, bit for bit and uncopied") {
  quena::sampler sampler({.repetition_penalty = 1.0f}, 3);
  sampler.accept(1);
  const row logits{0.1f, -0.2f, 0.3f};
  quena::sampling_scratch scratch;
  CHECK(sampler.process(logits, scratch).data() == logits.data());
}

TEST_CASE("sampler: presence and frequency look at generated tokens only, repetition at the prompt too") {
  quena::sampler sampler({.presence_penalty = 0.5f, .frequency_penalty = 0.25f}, 4);
  sampler.accept_prompt(ids{0, 0, 1});
  CHECK(processed(sampler, row{1, 1, 1, 1}) == row{1, 1, 1, 1});
  sampler.accept(1);
  sampler.accept(2);
  sampler.accept(2);
  CHECK(processed(sampler, row{1, 1, 1, 1}) == row{1, 0.25f, 0, 1});

  quena::sampler repetition({.repetition_penalty = 2.0f}, 4);
  repetition.accept_prompt(ids{0});
  repetition.accept(2);
  CHECK(processed(repetition, row{1, 1, -1, 1}) == row{0.5f, 1, -2, 1});
}

TEST_CASE("sampler: penalties see the last n tokens only") {
  quena::sampler sampler({.repetition_penalty = 2.0f, .frequency_penalty = 1.0f, .penalty_last_n = 2}, 4);
  sampler.accept_prompt(ids{0, 1});
  CHECK(processed(sampler, row{4, 4, 4, 4}) == row{2, 2, 4, 4});
  sampler.accept(2);
  CHECK(processed(sampler, row{4, 4, 4, 4}) == row{4, 2, 1, 4});
  sampler.accept(2);
  CHECK(processed(sampler, row{4, 4, 4, 4}) == row{4, 4, 0, 4});
  sampler.accept(3);
  CHECK(processed(sampler, row{4, 4, 4, 4}) == row{4, 4, 1, 1});
}

TEST_CASE("sampler: bias adds, bans ban, greedy obeys both") {
  CHECK(choose({.temperature = 0, .logit_bias = {{1, 100.0f}}}, eight) == 1);
  CHECK(choose({.temperature = 0, .logit_bias = {{2, -inf}}}, eight) == 5);
  CHECK(choose({.temperature = 0, .banned_tokens = {2, 5}}, eight) == 7);
  CHECK(choose({.temperature = 0, .logit_bias = {{1, 50.0f}, {1, -50.0f}}}, eight) == 2);  // entries add up
  CHECK(choose({.temperature = 0, .logit_bias = {{2, 100.0f}}, .banned_tokens = {2}}, eight) == 5);
  // bias before penalty: (2.9 + 1.1) / 2
  quena::sampler sampler({.repetition_penalty = 2.0f, .logit_bias = {{2, 1.1f}}}, eight.size());
  sampler.accept(2);
  CHECK(processed(sampler, eight)[2] == doctest::Approx(2.0f));
}

TEST_CASE("sampler: end tokens are masked until min_tokens, and stop unless ignored") {
  quena::sampler sampler({.temperature = 0, .end_tokens = {2, 5, 128001, -7}, .min_tokens = 2}, eight.size());
  sampler.accept_prompt(ids{1, 1, 1});  // the prompt does not count
  CHECK(sampler.choose(eight).token == 7);
  sampler.accept(7);
  CHECK(sampler.choose(eight).token == 7);
  sampler.accept(7);
  CHECK(sampler.choose(eight).token == 2);
  CHECK(sampler.n_generated() == 2);
  CHECK(sampler.n_prompt() == 3);
  for (const std::int32_t id : {2, 5, 128001}) CHECK(sampler.is_end(id));
  CHECK_FALSE(sampler.is_end(7));

  quena::sampler ignoring({.temperature = 0, .end_tokens = {2, 5}, .min_tokens = 2, .ignore_eos = true}, eight.size());
  CHECK(ignoring.choose(eight).token == 2);
  CHECK_FALSE(ignoring.is_end(2));
}

TEST_CASE("sampler: any token a bias forces is chosen, at any temperature") {
  for (std::int32_t id = 0; id < 8; ++id) {
    CHECK(choose({.temperature = 0, .logit_bias = {{id, 100.0f}}}, eight) == id);
    CHECK(choose({.logit_bias = {{id, 100.0f}}}, eight) == id);
  }
}

// ---- log-probabilities ------------------------------------------------------------------------------------------------------

TEST_CASE("sampler: log-probabilities are those of the logits as they came") {
  const row logits = random_logits(1000, 4);
  const auto p = softmax64(logits, 1);
  quena::sampler sampler({.temperature = 0.3f, .repetition_penalty = 1.7f, .logit_bias = {{3, 9.0f}}, .n_logprobs = 5},
                         logits.size());
  sampler.accept_prompt(ids{1, 2, 3});
  const quena::sampled choice = sampler.choose(logits);
  CHECK(choice.logprob == doctest::Approx(std::log(p[static_cast<std::size_t>(choice.token)])).epsilon(1e-6));
  REQUIRE(choice.top.size() == 5);
  std::vector<std::size_t> order(p.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  for (std::size_t i = 0; i < 5; ++i) {
    CHECK(choice.top[i].token == static_cast<std::int32_t>(order[i]));
    CHECK(choice.top[i].logprob == doctest::Approx(std::log(p[order[i]])).epsilon(1e-6));
  }
}

TEST_CASE("sampler: a banned token still has the model's log-probability") {
  row logits = random_logits(1000, 5);
  logits[500] = 40.0f;
  quena::sampler sampler({.temperature = 0, .banned_tokens = {500}, .n_logprobs = 2}, logits.size());
  const quena::sampled choice = sampler.choose(logits);
  CHECK(choice.token != 500);
  REQUIRE(choice.top.size() == 2);
  CHECK(choice.top[0].token == 500);
  CHECK(choice.top[0].logprob == doctest::Approx(0.0));
  CHECK(choice.top[1].token == choice.token);
  CHECK(choice.top[1].logprob == choice.logprob);
  CHECK(choice.logprob == doctest::Approx(logits[static_cast<std::size_t>(choice.token)] - 40.0f));
}

TEST_CASE("sampler: log-probabilities on demand only, none of -infinity, ties by id") {
  quena::sampler none({.temperature = 0}, eight.size());
  CHECK(std::isnan(none.choose(eight).logprob));
  CHECK(none.choose(eight).top.empty());

  quena::sampler own({.temperature = 0, .n_logprobs = 0}, 2);
  const quena::sampled half = own.choose(row{1, 1});
  CHECK(half.logprob == doctest::Approx(std::log(0.5)));
  CHECK(half.top.empty());

  quena::sampler all({.temperature = 0, .n_logprobs = 4}, 4);
  const quena::sampled two = all.choose(row{1, -inf, 1, -inf});
  REQUIRE(two.top.size() == 2);
  CHECK(two.top[0].token == 0);
  CHECK(two.top[1].token == 2);

  // Greedy and sampled, with a filter: the same numbers.
  quena::sampler filtered({.top_k = 3, .top_p = 0.5f, .n_logprobs = 2}, eight.size());
  const auto p = softmax64(eight, 1);
  const quena::sampled choice = filtered.choose(eight);
  REQUIRE(choice.top.size() == 2);
  CHECK(choice.top[0].token == 2);
  CHECK(choice.top[1].logprob == doctest::Approx(std::log(p[5])));
}

// ---- errors -----------------------------------------------------------------------------------------------------------------

TEST_CASE("sampler: NaN or +infinity is an error with the step, and the sampler lives on") {
  const std::vector<row> hostile{{1, nan_value, 3, 2}, {nan_value, 1, 2, 3}, {1, inf, 2, 0}, row(4, nan_value), row(4, inf)};
  for (const quena::sampling_options& options :
       {quena::sampling_options{.temperature = 0}, quena::sampling_options{}, quena::sampling_options{.top_k = 2},
        quena::sampling_options{.top_p = 0.5f}, quena::sampling_options{.banned_tokens = {0, 1}},
        quena::sampling_options{.repetition_penalty = 1.5f}, quena::sampling_options{.n_logprobs = 2}}) {
    quena::sampler sampler(options, 4);
    sampler.accept_prompt(ids{0, 1, 2, 3});
    sampler.accept(1);
    for (const row& logits : hostile) {
      const std::string message = message_of([&] { (void)sampler.choose(logits); }, quena::errc::non_finite);
      CHECK(message.find("[sampler] non-finite logits at step 1 (position 5): expected numbers, got ") == 0);
    }
    CHECK(sampler.choose(row{0, 0, 9, 0}).token >= 0);
  }
  quena::sampler sampler({.temperature = 0}, 4);
  CHECK(message_of([&] { (void)sampler.choose(hostile[0]); }, quena::errc::non_finite) ==
        "[sampler] non-finite logits at step 0 (position 0): expected numbers, got nan for token 1");
  CHECK(message_of([&] { (void)sampler.choose(hostile[2]); }, quena::errc::non_finite) ==
        "[sampler] non-finite logits at step 0 (position 0): expected numbers, got inf for token 1");
}

TEST_CASE("sampler: nothing to choose from is an error, one -infinity is not") {
  quena::sampler sampler({.temperature = 0}, 3);
  CHECK(message_of([&] { (void)sampler.choose(row(3, -inf)); }, quena::errc::non_finite) ==
        "[sampler] non-finite logits at step 0 (position 0): expected a token above -infinity, got none");
  CHECK(sampler.choose(row{-inf, -inf, -5}).token == 2);
  quena::sampler drawing({.top_k = 2, .top_p = 0.9f}, 3);
  CHECK(drawing.choose(row{-inf, -inf, -5}).token == 2);
  quena::sampler banned({.banned_tokens = {0, 1, 2}}, 3);
  CHECK(message_of([&] { (void)banned.choose(row(3, 1.0f)); }, quena::errc::non_finite) ==
        "[sampler] non-finite logits at step 0 (position 0): expected a token above -infinity, got none after bias, bans and "
        "penalties");
}

TEST_CASE("sampler: an overflow through bias or penalty is an error too") {
  quena::sampler bias({.logit_bias = {{0, 3e38f}}}, 2);
  CHECK(message_of(
            [&] {
              (void)bias.choose(row{3e38f, 0});
            },
            quena::errc::non_finite)
            .find("after bias and penalties at step 0") != std::string::npos);
  quena::sampler penalty({.repetition_penalty = 1e-30f}, 2);
  penalty.accept(0);
  CHECK_FALSE(message_of([&] { (void)penalty.choose(row{1e20f, 0}); }, quena::errc::non_finite).empty());
}

TEST_CASE("sampler: ids outside the vocabulary never index memory") {
  quena::sampler sampler({.repetition_penalty = 1.5f, .presence_penalty = 1.0f, .penalty_last_n = 3}, 4);
  CHECK(message_of([&] { sampler.accept(4); }, quena::errc::invalid_argument) == "[sampler] expected a token id in [0, 4), got 4");
  CHECK_FALSE(message_of([&] { sampler.accept(-1); }, quena::errc::invalid_argument).empty());
  CHECK_FALSE(message_of([&] { sampler.accept_prompt(ids{0, 1, 2147483647}); }, quena::errc::invalid_argument).empty());
  CHECK(sampler.n_prompt() == 0);  // none of the three was taken
  CHECK(processed(sampler, row{1, 1, 1, 1}) == row{1, 1, 1, 1});
}

TEST_CASE("sampler: wrong number of logits, wrong options") {
  quena::sampler sampler({}, 4);
  CHECK(message_of(
            [&] {
              (void)sampler.choose(row{1, 2});
            },
            quena::errc::invalid_argument) == "[sampler] expected 4 logits, got 2");
  CHECK(message_of([&] { (void)sampler.choose({}); }, quena::errc::invalid_argument) == "[sampler] expected 4 logits, got 0");
  CHECK_FALSE(message_of([] { quena::sampler bad({.top_p = 2}, 4); }, quena::errc::invalid_argument).empty());
}

}  // namespace
