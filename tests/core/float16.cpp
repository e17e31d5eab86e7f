// SPDX-License-Identifier: MIT
#include <quena/core/float16.hpp>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include <doctest/doctest.h>

using quena::bf16;
using quena::f16;

namespace {

// The definitions, written as arithmetic on numbers instead of bits.
double f16_meaning(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  const double sign = (bits >> 15) != 0 ? -1 : 1;
  if (exponent == 31) return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  return sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25));
}

// Round to nearest, ties to even, in double: the spacing of the format around x is 2^step.
double nearest_f16(double x) {
  if (x == 0 || !std::isfinite(x)) return x;
  const int step = (std::max)(std::ilogb(x), -14) - 10;
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(x, -step)), step);
  return std::abs(rounded) >= 65536 ? std::copysign(std::numeric_limits<double>::infinity(), x) : rounded;
}

template <class T>
void check_round_trip(bool is_nan, std::uint16_t bits) {
  const float value = static_cast<float>(T::from_bits(bits));
  CHECK(std::isnan(value) == is_nan);
  const std::uint16_t back = T(value).bits;
  if (is_nan) {
    CHECK(std::isnan(static_cast<float>(T::from_bits(back))));
    CHECK((back >> 15) == (bits >> 15));
  } else {
    CHECK(back == bits);
  }
}

}  // namespace

TEST_CASE("float16: all 65,536 f16 values, both ways") {
  for (std::uint32_t b = 0; b < 65536; ++b) {
    const auto bits = static_cast<std::uint16_t>(b);
    const double meaning = f16_meaning(bits);
    const float value = static_cast<float>(f16::from_bits(bits));
    if (!std::isnan(meaning)) CHECK(double{value} == meaning);
    CHECK(std::signbit(value) == ((bits & 0x8000) != 0));
    check_round_trip<f16>(std::isnan(meaning), bits);
  }
}

TEST_CASE("float16: all 65,536 bf16 values, both ways") {
  for (std::uint32_t b = 0; b < 65536; ++b) {
    const auto bits = static_cast<std::uint16_t>(b);
    CHECK(std::bit_cast<std::uint32_t>(static_cast<float>(bf16::from_bits(bits))) == b << 16);
    check_round_trip<bf16>((bits & 0x7f80) == 0x7f80 && (bits & 0x7f) != 0, bits);
  }
}

TEST_CASE("float16: rounding to nearest even at every f16 midpoint and beside it") {
  for (std::uint16_t bits = 0; bits < 0x7c00; ++bits) {
    const double low = f16_meaning(bits), high = bits == 0x7bff ? 65536 : f16_meaning(static_cast<std::uint16_t>(bits + 1));
    const auto middle = static_cast<float>((low + high) / 2);
    REQUIRE(double{middle} == (low + high) / 2);
    const std::uint16_t even = (bits & 1) != 0 ? static_cast<std::uint16_t>(bits + 1) : bits;
    CHECK(f16(middle).bits == even);
    CHECK(f16(-middle).bits == (even | 0x8000));
    CHECK(f16(std::nextafter(middle, 0.0f)).bits == bits);
    CHECK(f16(std::nextafter(middle, 1e9f)).bits == bits + 1);
  }
}

TEST_CASE("float16: random floats of every exponent against rounding in double") {
  std::mt19937 random(20260101);
  for (int i = 0; i < 200000; ++i) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (std::isnan(x)) continue;
    const double want = nearest_f16(double{x});
    const double got = double{static_cast<float>(f16(x))};
    CHECK(got == want);
    const double step = std::ldexp(1.0, (std::max)(x == 0 || !std::isfinite(x) ? -126 : std::ilogb(x), -126) - 7);
    const double want_b = std::isfinite(x) ? std::nearbyint(double{x} / step) * step : double{x};
    const double got_b = double{static_cast<float>(bf16(x))};
    if (std::abs(want_b) <= double{std::numeric_limits<float>::max()}) CHECK(got_b == want_b);
    else CHECK(std::isinf(got_b));
  }
}

TEST_CASE("float16: infinities, NaN and the largest numbers") {
  const float inf = std::numeric_limits<float>::infinity();
  CHECK(f16(inf).bits == 0x7c00);
  CHECK(f16(-inf).bits == 0xfc00);
  CHECK(f16(65504.0f).bits == 0x7bff);
  CHECK(f16(65519.996f).bits == 0x7bff);
  CHECK(f16(65520.0f).bits == 0x7c00);
  CHECK(f16(1e-8f).bits == 0);
  CHECK(f16(0x1p-24f).bits == 1);
  CHECK(f16(0x1.8p-24f).bits == 2);
  CHECK(f16(0x1p-25f).bits == 0);
  CHECK(f16(0x1.000002p-25f).bits == 1);
  CHECK(bf16(inf).bits == 0x7f80);
  CHECK(bf16(std::numeric_limits<float>::max()).bits == 0x7f80);
  for (const std::uint32_t nan : {0x7f800001u, 0x7fc00000u, 0xff800001u, 0x7fffffffu}) {
    CHECK(std::isnan(static_cast<float>(f16(std::bit_cast<float>(nan)))));
    CHECK(std::isnan(static_cast<float>(bf16(std::bit_cast<float>(nan)))));
  }
  static_assert(f16(1.0f).bits == 0x3c00 && bf16(1.0f).bits == 0x3f80, "usable in constant expressions");
}
