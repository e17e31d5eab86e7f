// SPDX-License-Identifier: MIT
#include <quena/model/rope.hpp>

#include <cmath>
#include <limits>
#include <vector>

#include "../support.hpp"

using namespace quena;

namespace {

void near_to(const std::vector<double>& f, const std::vector<double>& want, double tolerance = 1e-8) {
  REQUIRE(f.size() == want.size());
  for (std::size_t i = 0; i < f.size(); ++i) {
    INFO(i, ": ", f[i], " for ", want[i]);
    CHECK(std::abs(f[i] - want[i]) <= tolerance * std::abs(want[i]));
  }
}

rope_config llama3(double theta, double factor, std::uint64_t original) {
  rope_config r;
  r.type = rope_type::llama3;
  r.theta = theta;
  r.factor = factor;
  r.original_max_position_embeddings = original;
  return r;
}

}  // namespace

TEST_CASE("rope: default and linear") {
  rope_config r;
  r.theta = 100;
  near_to(inv_freq(r, 4), {1, 0.1}, 1e-15);
  r.type = rope_type::linear;
  r.factor = 2;
  near_to(inv_freq(r, 4), {0.5, 0.05}, 1e-15);
}

TEST_CASE("rope: llama3") {
  near_to(inv_freq(llama3(10000, 4, 64), 16), {1, 0.254647909, 0.0254647909, 0.00790569415, 0.0025, 0.000790569415, 0.00025, 7.90569415e-05}, 2e-9);

  rope_config plain;
  plain.theta = 5e5;
  const std::vector<double> base = inv_freq(plain, 128), f = inv_freq(llama3(5e5, 8, 8192), 128);
  for (std::size_t i = 0; i <= 28; ++i) CHECK(f[i] == base[i]);
  CHECK(std::abs(f[29] / 0.00216657076 - 1) < 5e-9);
  CHECK(std::abs(f[34] / 0.000178507813 - 1) < 5e-9);
  for (std::size_t i = 35; i < 64; ++i) CHECK(f[i] == base[i] / 8);
  CHECK(std::abs(f[63] / 3.06892599e-07 - 1) < 5e-9);

  const std::vector<double> base64 = inv_freq(plain, 64), g = inv_freq(llama3(5e5, 32, 8192), 64);
  for (std::size_t i = 0; i <= 14; ++i) CHECK(g[i] == base64[i]);
  CHECK(std::abs(g[15] / 0.00129054793 - 1) < 5e-9);
  CHECK(std::abs(g[16] / 0.000429556797 - 1) < 5e-9);
  CHECK(std::abs(g[17] / 9.7082878e-05 - 1) < 5e-9);
  for (std::size_t i = 18; i < 32; ++i) CHECK(g[i] == base64[i] / 32);

  rope_config step = llama3(10000, 4, 64);  // equal limits: a step, no division by zero
  step.low_freq_factor = step.high_freq_factor = 2;
  for (const double x : inv_freq(step, 16)) CHECK(std::isfinite(x));
  CHECK(inv_freq(step, 16)[0] == 1);
  CHECK(std::abs(inv_freq(step, 16)[7] / 7.90569415e-05 - 1) < 5e-9);
  step.low_freq_factor = step.high_freq_factor = 64 / (2 * std::numbers::pi);  // exactly where pair 0 is
  CHECK(inv_freq(step, 16)[0] == 1);
}

TEST_CASE("rope: dynamic depends on the context only beyond the model's own") {
  rope_config r;
  r.type = rope_type::dynamic;
  r.factor = 2;
  r.max_position_embeddings = 100;
  rope_config plain;
  near_to(inv_freq(r, 8), inv_freq(plain, 8), 1e-15);
  near_to(inv_freq(r, 8, 100), inv_freq(plain, 8), 1e-15);
  plain.theta = 10000 * std::pow(2 * 150.0 / 100 - 1, 8.0 / 6);
  near_to(inv_freq(r, 8, 150), inv_freq(plain, 8), 1e-14);
}

TEST_CASE("rope: yarn") {
  rope_config r;
  r.type = rope_type::yarn;
  r.factor = 4;
  r.original_max_position_embeddings = 64;
  // Expected numbers: the same formulas in Python. By hand: 32 turns lie at pair 16 ln(64 / 64 pi) / (2 ln 10000) < 0, one turn at
  // 2.016, so the ramp goes from pair 0 to pair 3.
  near_to(inv_freq(r, 16), {1, 0.237170824513, 0.05, 0.00790569415042, 0.0025, 0.000790569415042, 0.00025, 7.90569415042e-05}, 1e-11);
  rope_config real = r;  // Qwen-like numbers
  real.theta = 1e6;
  real.original_max_position_embeddings = 32768;
  near_to(inv_freq(real, 16), {1, 0.177827941004, 0.0316227766017, 0.00421755993893, 0.0005, 4.4456985251e-05, 7.90569415042e-06, 1.40585331298e-06}, 1e-11);
  real.truncate = false;
  near_to(inv_freq(real, 16), {1, 0.177827941004, 0.0316227766017, 0.00551727047513, 0.00060740793788, 4.4456985251e-05, 7.90569415042e-06, 1.40585331298e-06}, 1e-11);
  rope_config step = r;  // one turn needs more than the original context: the ramp is a step after pair 0
  step.original_max_position_embeddings = 6;
  near_to(inv_freq(step, 4), {1, 0.01 / 4}, 1e-14);
  CHECK(std::abs(rope_attention_factor(r) - (0.1 * std::log(4.0) + 1)) < 1e-15);
  r.mscale = 2, r.mscale_all_dim = 1;
  CHECK(std::abs(rope_attention_factor(r) - (0.2 * std::log(4.0) + 1) / (0.1 * std::log(4.0) + 1)) < 1e-15);
  r.attention_factor = 0.75;
  CHECK(rope_attention_factor(r) == 0.75);
}

TEST_CASE("rope: divisors, names, errors") {
  rope_config r;
  r.divisors = {1, 2};
  near_to(inv_freq(r, 4), {1, 0.005}, 1e-15);
  r.divisors = {1, 2, 3};
  CHECK_THROWS_WITH_AS((void)inv_freq(r, 4), "[rope] expected 2 divisors for head_dim 4, got 3", error);
  r.divisors.clear();
  CHECK_THROWS_AS((void)inv_freq(r, 5), error);
  CHECK_THROWS_AS((void)inv_freq(r, 0), error);
  r.theta = std::numeric_limits<double>::quiet_NaN();
  CHECK_THROWS_AS((void)inv_freq(r, 4), error);
  CHECK(parse_rope_type("default") == rope_type::standard);
  CHECK(parse_rope_type("llama3") == rope_type::llama3);
  CHECK_FALSE(parse_rope_type("longrope"));
}

TEST_CASE("rope: angles far out") {
  rope_config r;
  r.theta = 5e5;
  const rope_table table(r, 4);
  float cos[2], sin[2];
  table.angles(1'000'000, cos, sin);
  CHECK(cos[0] == static_cast<float>(std::cos(1e6)));
  CHECK(sin[1] == static_cast<float>(std::sin(1e6 / std::sqrt(5e5))));
}
