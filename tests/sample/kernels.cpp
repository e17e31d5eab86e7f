// SPDX-License-Identifier: MIT
#include <quena/sample/kernels.hpp>

#include <doctest/doctest.h>

#include "../support.hpp"

#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace {

constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();
constexpr float inf = std::numeric_limits<float>::infinity();

TEST_CASE("kernels: argmax takes the lowest of equal logits, at any length and place") {
  CHECK(quena::argmax(std::vector<float>{3.0f}) == 0);
  CHECK(quena::argmax(std::vector<float>{-0.0f, 0.0f}) == 0);
  CHECK(quena::argmax(std::vector<float>{0.0f, -0.0f}) == 0);
  CHECK(quena::argmax(std::vector<float>{-inf, -3e38f, -inf}) == 1);
  for (const std::size_t n : std::initializer_list<std::size_t>{1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 511, 1000}) {
    std::vector<float> logits(n, -1.0f);
    CHECK(quena::argmax(logits) == 0);
    for (std::size_t i = 0; i < n; ++i) {
      logits[i] = 2.0f;
      CHECK(quena::argmax(logits) == i);
      logits[n - 1] = 2.0f;  // a tie further on
      CHECK(quena::argmax(logits) == i);
      logits[n - 1] = logits[i] = -1.0f;
    }
  }
}

TEST_CASE("kernels: argmax reports NaN and +infinity wherever they are, and a row of nothing") {
  for (const std::size_t n : std::initializer_list<std::size_t>{1, 16, 17, 64, 65, 200}) {
    for (std::size_t i = 0; i < n; ++i) {
      std::vector<float> logits(n, 1.0f);
      for (const float bad : {nan_value, -nan_value, inf}) {
        logits[i] = bad;
        CHECK(quena_test::code_of([&] { (void)quena::argmax(logits); }) == quena::errc::non_finite);
      }
    }
  }
  CHECK(quena_test::code_of([] { (void)quena::argmax(std::vector<float>(5, -inf)); }) == quena::errc::non_finite);
  CHECK(quena_test::code_of([] { (void)quena::argmax({}); }) == quena::errc::invalid_argument);
}

TEST_CASE("kernels: exp is within about a unit in the last place, exact at 0 and 0 far below") {
  using quena::detail::exp_nonpositive;
  CHECK(exp_nonpositive(0.0f) == 1.0f);
  CHECK(exp_nonpositive(-0.0f) == 1.0f);
  CHECK(exp_nonpositive(-inf) == 0.0f);
  CHECK(exp_nonpositive(-87.5f) == 0.0f);
  CHECK(exp_nonpositive(-3e38f) == 0.0f);
  CHECK(exp_nonpositive(-1e-40f) == 1.0f);
  double worst = 0.0;
  for (int i = 0; i <= 870000; ++i) {
    const float x = -static_cast<float>(i) * 1e-4f;
    const double right = std::exp(static_cast<double>(x));
    const double unit = std::ldexp(1.0, std::ilogb(right) - 23);
    worst = std::fmax(worst, std::abs(static_cast<double>(exp_nonpositive(x)) - right) / unit);
  }
  MESSAGE("worst error of exp: " << worst << " units in the last place");
  CHECK(worst < 1.2);
}

TEST_CASE("kernels: exp_block agrees with exp one by one, bit for bit, and writes no further") {
  std::mt19937 rng(7);
  std::uniform_real_distribution<float> below(-40.0f, 0.0f);
  for (const std::size_t n :
       {std::size_t{1}, std::size_t{15}, std::size_t{16}, std::size_t{17}, std::size_t{63}, std::size_t{64}}) {
    std::vector<float> x(n), y(n + 1, 42.0f);
    for (float& v : x) v = below(rng);
    quena::detail::exp_block(x.data(), n, 0.0f, 0.7f, y.data());
    for (std::size_t i = 0; i < n; ++i) CHECK(y[i] == doctest::Approx(std::exp(static_cast<double>(x[i]) / 0.7)).epsilon(4e-6));
    CHECK(y[n] == 42.0f);
  }
}

TEST_CASE("kernels: log_sum_exp against double precision") {
  std::mt19937 rng(3);
  std::normal_distribution<float> normal(0.0f, 4.0f);
  for (const std::size_t n : std::initializer_list<std::size_t>{1, 7, 8, 9, 64, 65, 5000, 128256}) {
    std::vector<float> x(n);
    for (float& v : x) v = normal(rng);
    x[n / 2] = n > 1 ? -inf : x[0];
    double sum = 0.0;
    for (const float v : x) sum += std::exp(static_cast<double>(v));
    CAPTURE(n);
    CHECK(std::abs(quena::log_sum_exp(x) - std::log(sum)) < 1e-6);
  }
  CHECK(quena::log_sum_exp(std::vector<float>{1000.0f, 1000.0f}) == doctest::Approx(1000.0 + std::log(2.0)));
  CHECK(quena::log_sum_exp(std::vector<float>{-inf, -inf}) == -std::numeric_limits<double>::infinity());
  CHECK(quena::log_sum_exp({}) == -std::numeric_limits<double>::infinity());
  CHECK(std::isnan(quena::log_sum_exp(std::vector<float>{0.0f, nan_value})));
  CHECK(std::isnan(quena::log_sum_exp(std::vector<float>{0.0f, inf})));
}

TEST_CASE("kernels: softmax sums to one, masks to zero, works in place") {
  std::vector<float> x{std::log(1.0f), std::log(2.0f), -inf, std::log(5.0f)};
  std::vector<float> p(4);
  quena::softmax(x, p);
  CHECK(p[0] == doctest::Approx(0.125f));
  CHECK(p[1] == doctest::Approx(0.25f));
  CHECK(p[2] == 0.0f);
  CHECK(p[3] == doctest::Approx(0.625f));
  quena::softmax(x, x);
  CHECK(std::memcmp(x.data(), p.data(), sizeof(float) * 4) == 0);
  std::vector<float> hot{1.0f, 2.0f, 3.0f};
  quena::softmax(hot, hot, 1e8f);
  for (const float v : hot) CHECK(v == doctest::Approx(1.0f / 3.0f));
  std::vector<float> cold{1.0f, 2.0f, 1.5f};
  quena::softmax(cold, cold, 1e-45f);
  CHECK(cold == std::vector<float>{0.0f, 1.0f, 0.0f});
  std::vector<float> masked(70, -inf);
  quena::softmax(masked, masked);
  for (const float v : masked) CHECK(v == 0.0f);
  quena::softmax({}, {});
}

TEST_CASE("kernels: softmax errors") {
  std::vector<float> p(2);
  CHECK(quena_test::code_of([&] { quena::softmax(std::vector<float>{1, 2, 3}, p); }) == quena::errc::invalid_argument);
  CHECK(quena_test::code_of([&] { quena::softmax(std::vector<float>{1, nan_value}, p); }) == quena::errc::non_finite);
  CHECK(quena_test::code_of([&] { quena::softmax(std::vector<float>{1, inf}, p); }) == quena::errc::non_finite);
  CHECK(quena_test::code_of([&] { quena::softmax(std::vector<float>{1, 2}, p, 0.0f); }) == quena::errc::invalid_argument);
  CHECK(quena_test::code_of([&] { quena::softmax(std::vector<float>{1, 2}, p, nan_value); }) == quena::errc::invalid_argument);
}

}  // namespace
