// SPDX-License-Identifier: MIT
#include <quena/backend/cpu/kernels.hpp>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

using namespace quena;

namespace {

constexpr float inf = std::numeric_limits<float>::infinity(), not_a_number = std::numeric_limits<float>::quiet_NaN();

std::vector<isa> levels() {
  std::vector<isa> all;
  for (const isa level : {isa::portable, isa::avx2, isa::avx512})
    if (best_isa(level) == level) all.push_back(level);
  return all;
}

/// Exactly n floats, nothing behind them, so that the address sanitizer sees one too many.
std::vector<float> random_floats(std::size_t n, unsigned seed, float scale = 1) {
  std::mt19937 gen(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> v(n);
  for (float& x : v) x = normal(gen);
  v.shrink_to_fit();
  return v;
}

std::vector<std::size_t> sizes(const cpu_kernels& k) {
  const std::size_t lanes = k.level() == isa::avx512 ? 16 : k.level() == isa::avx2 ? 8 : 4;
  return {0, 1, lanes - 1, lanes, lanes + 1, 2 * lanes + 3, 4 * lanes - 1, 4 * lanes, 4 * lanes + 1, 300};
}

double ulps(float got, double right) {
  if (std::isnan(right)) return std::isnan(got) ? 0 : 1e9;
  const float rounded = static_cast<float>(right);
  if (got == rounded) return 0;
  if (std::isinf(rounded) || std::isinf(got)) return 1e9;
  const float up = std::nextafter(std::abs(rounded), inf);
  return std::abs(double{got} - right) / (double{up} - std::abs(double{rounded}));
}

}  // namespace

TEST_CASE("cpu kernels: exp within 2 ulp everywhere, exact at the borders") {
  for (const isa level : levels()) {
    const cpu_kernels k(level);
    CAPTURE(isa_name(k.level()));
    std::vector<float> x, y;
    for (std::uint32_t bits = 0; bits < 0x43000000u; bits += 7919) {  // 0 … 128, both signs
      x.push_back(std::bit_cast<float>(bits));
      x.push_back(-std::bit_cast<float>(bits));
    }
    y.resize(x.size());
    k.exp(x, y);
    double worst = 0;
    for (std::size_t i = 0; i < x.size(); ++i) worst = std::max(worst, ulps(y[i], std::exp(double{x[i]})));
    CHECK(worst <= 2);
    MESSAGE("exp, " << isa_name(level) << ": worst " << worst << " ulp");
    std::vector<float> special{0, -0.0f, inf, -inf, not_a_number, 200, -200, 88.7228f, 88.73f, -103.9f, -104.1f, 1}, out(special.size());
    k.exp(special, out);
    CHECK(out[0] == 1);
    CHECK(out[1] == 1);
    CHECK(out[2] == inf);
    CHECK(out[3] == 0);
    CHECK(std::isnan(out[4]));
    CHECK(out[5] == inf);
    CHECK(out[6] == 0);
    CHECK(std::isfinite(out[7]));
    CHECK(out[8] == inf);
    CHECK(out[9] == std::numeric_limits<float>::denorm_min());
    CHECK(out[10] == 0);
    for (std::size_t n = 0; n < 40; ++n) {  // the place of a number in the array does not matter
      const std::vector<float> in(n, 0.3f);
      std::vector<float> each(n);
      k.exp(in, each);
      for (const float e : each) CHECK(e == each[0]);
    }
  }
}

TEST_CASE("cpu kernels: softmax sums to one, whatever is added, and takes -inf and huge scores") {
  for (const isa level : levels()) {
    const cpu_kernels k(level);
    for (const std::size_t n : sizes(k)) {
      std::vector<float> x = random_floats(n, 3, 5);
      const std::vector<float> in = x;
      k.softmax(x);
      if (n == 0) continue;
      double largest = -1e300, total = 0, sum = 0;
      for (const float v : in) largest = std::max(largest, double{v});
      for (const float v : in) total += std::exp(double{v} - largest);
      for (std::size_t i = 0; i < n; ++i) {
        CHECK(x[i] == doctest::Approx(std::exp(double{in[i]} - largest) / total).epsilon(1e-6));
        sum += double{x[i]};
      }
      CHECK(sum == doctest::Approx(1).epsilon(1e-6));
    }
    std::vector<float> masked{-inf, 3e38f, -inf, 3e38f};
    k.softmax(masked);
    CHECK(masked == std::vector<float>{0, 0.5f, 0, 0.5f});
  }
}

TEST_CASE("cpu kernels: swiglu, rmsnorm and rotate against double loops") {
  for (const isa level : levels()) {
    const cpu_kernels k(level);
    CAPTURE(isa_name(k.level()));
    for (const std::size_t n : sizes(k)) {
      CAPTURE(n);
      const std::vector<float> a = random_floats(n, 4, 3), b = random_floats(n, 5);
      std::vector<float> y(n);
      k.swiglu(a, b, y);
      for (std::size_t i = 0; i < n; ++i) CHECK(y[i] == doctest::Approx(double{a[i]} / (1 + std::exp(-double{a[i]})) * double{b[i]}).epsilon(1e-6));
      k.rmsnorm(a, b, 1e-5f, y);
      double squares = 0;
      for (const float v : a) squares += double{v} * double{v};
      for (std::size_t i = 0; i < n; ++i)
        CHECK(y[i] == doctest::Approx(double{a[i]} * double{b[i]} / std::sqrt(squares / static_cast<double>(n) + 1e-5)).epsilon(1e-6));

      std::vector<float> cos(n), sin(n), head = random_floats(2 * n, 6);
      for (std::size_t t = 0; t < n; ++t) cos[t] = std::cos(0.3f * static_cast<float>(t)), sin[t] = std::sin(0.3f * static_cast<float>(t));
      const std::vector<float> before = head;
      k.rotate(head, cos, sin);
      for (std::size_t t = 0; t < n; ++t) {
        const double p = double{before[t]}, q = double{before[n + t]}, c = double{cos[t]}, s = double{sin[t]};
        CHECK(double{head[t]} == doctest::Approx(p * c - q * s).epsilon(1e-5));
        CHECK(double{head[n + t]} == doctest::Approx(q * c + p * s).epsilon(1e-5));
      }
    }
    std::vector<float> gate{-200, 200, -inf, inf, not_a_number}, up(5, 2), y(5);
    k.swiglu(gate, up, y);
    CHECK(y[0] == 0);
    CHECK(y[1] == 400);
    CHECK(y[3] == inf);
    CHECK(std::isnan(y[4]));
  }
}

TEST_CASE("cpu kernels: conversions are those of f16 and bf16, bit for bit") {
  for (const isa level : levels()) {
    const cpu_kernels k(level);
    CAPTURE(isa_name(k.level()));
    std::vector<f16> h(65536), h2(65536);
    std::vector<bf16> b(65536), b2(65536);
    std::vector<float> wide(65536);
    for (std::uint32_t i = 0; i < 65536; ++i) h[i] = f16::from_bits(static_cast<std::uint16_t>(i)), b[i] = bf16::from_bits(static_cast<std::uint16_t>(i));
    const auto same = [](float x, float y) { return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y) || (std::isnan(x) && std::isnan(y)); };
    k.convert(std::span<const f16>(h), wide);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < h.size(); ++i) wrong += same(wide[i], static_cast<float>(h[i])) ? 0 : 1;
    CHECK(wrong == 0);
    k.convert(std::span<const bf16>(b), wide);
    for (std::size_t i = 0; i < b.size(); ++i) wrong += same(wide[i], static_cast<float>(b[i])) ? 0 : 1;
    CHECK(wrong == 0);
    std::mt19937 gen(9);
    for (float& x : wide) x = std::bit_cast<float>(static_cast<std::uint32_t>(gen()));
    wide[0] = 0x1.001p0f, wide[1] = 0x1.003p0f, wide[2] = 65520, wide[3] = 0x1p-25f, wide[4] = 0x1.8p-24f, wide[5] = not_a_number, wide[6] = -inf, wide[7] = 0x1.01p0f, wide[8] = 0x1.03p0f;
    k.convert(wide, std::span<f16>(h2));
    k.convert(wide, std::span<bf16>(b2));
    for (std::size_t i = 0; i < wide.size(); ++i) {
      wrong += std::isnan(wide[i]) ? (std::isnan(static_cast<float>(h2[i])) ? 0 : 1) : (h2[i].bits == f16(wide[i]).bits ? 0 : 1);
      wrong += std::isnan(wide[i]) ? (std::isnan(static_cast<float>(b2[i])) ? 0 : 1) : (b2[i].bits == bf16(wide[i]).bits ? 0 : 1);
    }
    CHECK(wrong == 0);
    for (const std::size_t n : sizes(k)) {  // tails
      const std::vector<float> x = random_floats(n, 10);
      std::vector<f16> y(n);
      std::vector<float> back(n);
      k.convert(x, std::span<f16>(y));
      k.convert(std::span<const f16>(y), back);
      for (std::size_t i = 0; i < n; ++i) CHECK(back[i] == static_cast<float>(f16(x[i])));
    }
  }
}

TEST_CASE("cpu kernels: matmul of small whole numbers is exact") {
  for (const isa level : levels()) {
    const cpu_kernels k(level);
    for (const format f : {format::automatic, format::f16, format::bf16})
      for (const auto& [rows, cols, n] : {std::array<std::size_t, 3>{0, 5, 2}, {1, 1, 1}, {31, 7, 3}, {32, 256, 13}, {33, 257, 70}, {64, 0, 2}, {5, 600, 12}}) {
        std::mt19937 gen(11);
        std::vector<float> w(rows * cols), x(n * cols), y(n * rows, not_a_number);
        for (float& v : w) v = static_cast<float>(static_cast<int>(gen() % 17) - 8);
        for (float& v : x) v = static_cast<float>(static_cast<int>(gen() % 9) - 4);
        const cpu_matrix m = k.pack({w.data(), {rows, cols}}, f);
        k.matmul(m, {x.data(), {n, cols}}, {y.data(), {n, rows}});
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < n; ++i)
          for (std::size_t r = 0; r < rows; ++r) {
            float sum = 0;
            for (std::size_t c = 0; c < cols; ++c) sum += w[r * cols + c] * x[i * cols + c];
            wrong += y[i * rows + r] == sum ? 0 : 1;
          }
        CHECK(wrong == 0);
      }
  }
}

TEST_CASE("cpu kernels: lengths that don't match are errors") {
  const cpu_kernels k;
  std::vector<float> a(3), b(4);
  CHECK_THROWS_WITH_AS(k.rmsnorm(a, b, 0, a), "[rmsnorm] expected spans of one length, got 3 and 4", error);
  CHECK_THROWS_AS(k.exp(a, b), error);
  CHECK_THROWS_AS(k.swiglu(a, a, b), error);
  CHECK_THROWS_AS(k.rotate(a, a, a), error);
  const cpu_matrix m = k.pack({b.data(), {2, 2}});
  CHECK_THROWS_WITH_AS(k.matmul(m, {a.data(), {1, 3}}, {b.data(), {1, 2}}), "[matmul] expected [1, 2], got [1, 3]", error);
}
