// SPDX-License-Identifier: MIT
// Rows of keys and values in every cell type.
#include <quena/quant/cells.hpp>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <doctest/doctest.h>

using namespace quena;

namespace {

std::vector<float> through(dtype cell, const std::vector<float>& x, std::vector<std::byte>* bytes = nullptr) {
  std::vector<std::byte> stored(x.size() * block_bytes(cell) + (cell == dtype::i8 ? 4 : 0));
  store_cells(x.data(), x.size(), cell, stored.data());
  std::vector<float> back(x.size());
  load_cells(cell, stored.data(), back.data(), back.size());
  if (bytes) *bytes = stored;
  return back;
}

}  // namespace

TEST_CASE("cells: a row by hand") {
  std::int8_t codes[4];
  const float x[4] = {127, -63.5f, 0.49f, -127};
  CHECK(encode_cells(x, 4, codes) == 1.0f);
  CHECK(codes[0] == 127);
  CHECK(codes[1] == -64);  // to even
  CHECK(codes[2] == 0);
  CHECK(codes[3] == -127);
  CHECK(through(dtype::f32, {0.1f, -3}) == std::vector<float>{0.1f, -3});
  CHECK(through(dtype::f16, {0.1f}) == std::vector<float>{static_cast<float>(f16(0.1f))});
  CHECK(through(dtype::bf16, {0.1f}) == std::vector<float>{static_cast<float>(bf16(0.1f))});
}

TEST_CASE("cells: 8 bits are off by half a scale at most, and what was stored is stored again as it is") {
  std::mt19937 random(7);
  std::uniform_real_distribution<float> exponent(-100, 120), fraction(-1, 1);
  for (int turn = 0; turn < 2000; ++turn) {
    const float size = std::exp2(exponent(random));
    std::vector<float> x(1 + static_cast<std::size_t>(turn) % 130);
    for (float& v : x) v = fraction(random) * size;
    std::vector<std::byte> first, second;
    const std::vector<float> y = through(dtype::i8, x, &first);
    CHECK(through(dtype::i8, y, &second) == y);
    CHECK(first == second);
    float largest = 0;
    for (const float v : x) largest = (std::max)(largest, std::fabs(v));
    const float scale = cell_scale(largest);
    CHECK(scale >= largest / 127);
    CHECK(scale <= largest / 127 * (1 + 0x1p-15f));
    for (std::size_t t = 0; t < x.size(); ++t) CHECK(std::fabs(x[t] - y[t]) <= 0.5001f * scale);
  }
}

TEST_CASE("cells: nothing, tiny numbers, and numbers that are none") {
  CHECK(through(dtype::i8, {}).empty());
  CHECK(through(dtype::i8, {0, -0.0f, 0}) == std::vector<float>{0, 0, 0});
  CHECK(through(dtype::i8, {std::numeric_limits<float>::denorm_min(), 1e-38f}) == std::vector<float>{0, 0});
  const float huge = (std::numeric_limits<float>::max)();
  CHECK(through(dtype::i8, {huge, -huge})[0] == doctest::Approx(huge).epsilon(1e-4));
  for (const float odd : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
    for (const float v : through(dtype::i8, {1, odd, 2})) CHECK(std::isnan(v));
}
