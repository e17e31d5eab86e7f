// SPDX-License-Identifier: MIT
#include <quena/quant/codes.hpp>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include <doctest/doctest.h>

using namespace quena;

namespace {

std::vector<float> through(format f, const std::vector<float>& w) {
  float peak = 0;
  for (const float x : w) peak = std::max(peak, std::fabs(x));
  code_block b{};
  encode_block(*codes_of(f), w.data(), w.size(), peak, b);
  std::vector<float> out(w.size());
  decode_block(*codes_of(f), b, w.size(), out.data());
  return out;
}

}  // namespace

TEST_CASE("codes: what a few weights become, by hand") {
  CHECK(through(format::int8, {127, -127, 1, 0.4f, 0}) == std::vector<float>{127, -127, 1, 0, 0});       // scale 1
  CHECK(through(format::int4, {-8, 7, 3.4f, 0, -0.6f}) == std::vector<float>{-8, 7, 3, 0, -1});           // scale 1
  CHECK(through(format::int4, {8, -7, -3.4f, 0, 0.6f}) == std::vector<float>{8, -7, -3, 0, 1});           // scale -1
  CHECK(through(format::int4z, {-5, 10, 0, 2.4f}) == std::vector<float>{-5, 10, 0, 2});                   // scale 1, zero point 5
  CHECK(through(format::int4z, {15, 3, 0.2f}) == std::vector<float>{15, 3, 0});                           // zero point 0
  CHECK(through(format::int4z, {-15, -3, -0.2f}) == std::vector<float>{-15, -3, 0});                      // zero point 15
}

TEST_CASE("codes: decoded weights are within half a step, whatever the length (known failure A15)") {
  std::mt19937 gen(1);
  std::normal_distribution<float> normal(0, 0.02f);
  for (const format f : {format::int8, format::int8_g64, format::int8_g32, format::int8_row, format::int4, format::int4_g64, format::int4_g128, format::int4z, format::int4z_g64, format::int4z_g128}) {
    const code_format codes = *codes_of(f);
    for (const std::size_t n : {1u, 4u, 31u, 32u, 33u, 100u, 128u, 129u, 255u, 256u}) {
      std::vector<float> w(n);
      for (float& x : w) x = normal(gen);
      const std::vector<float> out = through(f, w);
      for (std::size_t first = 0; first < n; first += codes.group) {
        const std::size_t last = std::min<std::size_t>(n, first + codes.group);
        float low = 0, high = 0;
        for (std::size_t i = first; i < last; ++i) low = std::min(low, w[i]), high = std::max(high, w[i]);
        const float largest = std::max(-low, high), range = codes.has_minimums() ? high - low : largest;
        const float step = codes.bits == 8 ? largest / 127 : codes.has_minimums() ? range / 15 : largest / 8;
        // int4 has no code for the negative of its extreme weight: 7 steps on that side, so up to one step less half is lost there.
        for (std::size_t i = first; i < last; ++i) CHECK(std::fabs(out[i] - w[i]) <= step * (codes.bits == 4 && !codes.has_minimums() ? 1.0f : 0.5f) + range * 0x1p-9f + 1e-6f);
      }
    }
  }
}

TEST_CASE("codes: zeros and weights too small for a scale become zeros") {
  for (const float size : {0.0f, 1e-8f, 1e-38f})
    for (const format f : {format::int8, format::int8_row, format::int4, format::int4z})
      for (const float x : through(f, std::vector<float>(64, size))) CHECK(std::fabs(x) <= 1e-7f);
}

TEST_CASE("formats have names and back") {
  for (std::uint8_t i = 0; i <= static_cast<std::uint8_t>(format::int4z_g128); ++i) CHECK(parse_format(format_name(static_cast<format>(i))) == static_cast<format>(i));
  CHECK(!parse_format("int5"));
  CHECK(!parse_format(""));
}
