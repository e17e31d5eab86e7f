// SPDX-License-Identifier: MIT
#include <quena/quant/encode_row.hpp>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include "../support.hpp"

using namespace quena;

namespace {

std::vector<float> through(dtype type, const std::vector<float>& w) {
  std::vector<std::byte> bytes(n_bytes(type, w.size()));
  encode_row(type, w.data(), w.size(), bytes.data());
  std::vector<float> out(w.size());
  dequantize_row(type, bytes.data(), out.data(), w.size());
  return out;
}

}  // namespace

TEST_CASE("encode_row: what numbers become") {
  std::vector<float> w(64, 0.0f);
  w[0] = -8, w[1] = 7, w[15] = 3.4f, w[16] = -2, w[31] = 1, w[32] = 127, w[63] = -0.4f;
  std::vector<float> q4 = w, q8 = w;
  q4[15] = 3, q4[32] = 127, q4[63] = 0;
  const std::vector<float> got4 = through(dtype::q4_0, w), got8 = through(dtype::q8_0, w);
  for (std::size_t i = 0; i < 32; ++i) CHECK(got4[i] == q4[i]);
  CHECK(got4[32] == 127);
  CHECK(got8[32] == 127);
  CHECK(got8[63] == 0);
  CHECK(got8[0] == doctest::Approx(-8).epsilon(0.005));
  CHECK(through(dtype::f32, w) == w);
  CHECK(through(dtype::f16, {1, 1 + 0x1p-12f}) == std::vector<float>{1, 1});
  CHECK(through(dtype::bf16, {1, 3.0078125f}) == std::vector<float>{1, 3});
}

TEST_CASE("encode_row: K-quants come back within their steps") {
  std::mt19937 random(5);
  std::vector<float> w(512);
  for (std::size_t i = 0; i < w.size(); ++i)  // sub-blocks of very different ranges, some of one sign
    w[i] = std::normal_distribution<float>(i / 32 % 5 == 3 ? 2.0f : 0.0f, std::ldexp(1.0f, static_cast<int>(i / 32 % 4) - 2))(random);
  for (const dtype type : {dtype::q4_k, dtype::q6_k}) {
    const float part = type == dtype::q4_k ? 1.0f / 15 : 1.0f / 60;
    const std::vector<float> got = through(type, w);
    for (std::size_t block = 0; block < w.size(); block += 32) {
      const auto [low, high] = std::minmax_element(w.begin() + static_cast<std::ptrdiff_t>(block), w.begin() + static_cast<std::ptrdiff_t>(block) + 32);
      const float range = (std::max)(*high, 0.0f) - (std::min)(*low, 0.0f);
      double error = 0;
      for (std::size_t i = block; i < block + 32; ++i) error += std::pow(static_cast<double>(got[i] - w[i]), 2);
      CAPTURE(dtype_name(type));
      CAPTURE(block);
      CHECK(std::sqrt(error / 32) < static_cast<double>(range * part));  // a uniform error of half a step, and the scales' own rounding
    }
  }
  const std::vector<float> zeros(256, 0.0f), ones(256, 1.0f), tiny(256, 1e-30f);
  for (const dtype type : {dtype::q4_k, dtype::q6_k}) {
    CHECK(through(type, zeros) == zeros);
    CHECK(through(type, tiny) == zeros);
    for (const float x : through(type, ones)) CHECK(x == doctest::Approx(1).epsilon(0.02));
  }
}

TEST_CASE("encode_row: refuses what it can't write") {
  const std::vector<float> w(33, 1.0f);
  std::vector<std::byte> out(1000);
  CHECK(quena_test::code_of([&] { encode_row(dtype::q8_0, w.data(), 33, out.data()); }) == errc::invalid_argument);
  CHECK(quena_test::code_of([&] { encode_row(dtype::q5_k, w.data(), 32, out.data()); }) == errc::unsupported);
  CHECK(quena_test::code_of([&] { encode_row(dtype::q6_k, w.data(), 32, out.data()); }) == errc::invalid_argument);
}
