// SPDX-License-Identifier: MIT
#include <quena/quant/gguf_blocks.hpp>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "../support.hpp"

using namespace quena;

namespace {

template <class Block>
std::vector<float> row_of(dtype type, const Block& b) {
  std::vector<float> y(block_elements(type));
  std::array<std::byte, sizeof(Block) + 1> raw;  // from an odd address
  std::memcpy(raw.data() + 1, &b, sizeof b);
  dequantize_row(type, raw.data() + 1, y.data(), y.size());
  return y;
}

float dot(const std::vector<float>& w, const std::vector<std::pair<std::size_t, float>>& x) {
  float s = 0;
  for (auto [i, v] : x) s += w[i] * v;
  return s;
}

/// Bit j.. of a little-endian bit string, for the independent unpacking below.
int bits(const std::uint8_t* p, std::size_t byte, unsigned shift, int mask) { return p[byte] >> shift & mask; }

}  // namespace

TEST_CASE("gguf blocks: q4_0 nibble order") {
  q4_0_block b{.d = f16(1.0f), .q = {}};
  for (int i = 0; i < 16; ++i) b.q[i] = static_cast<std::uint8_t>(i | (15 - i) << 4);
  const auto y = row_of(dtype::q4_0, b);
  for (int i = 0; i < 16; ++i) {
    CHECK(y[static_cast<std::size_t>(i)] == static_cast<float>(i - 8));
    CHECK(y[static_cast<std::size_t>(16 + i)] == static_cast<float>(7 - i));
  }
  CHECK(dot(y, {{0, 1.f}, {1, 10.f}, {16, 100.f}}) == 622.f);
}

TEST_CASE("gguf blocks: small formats by hand") {
  q8_0_block b8{.d = f16(0.5f), .q = {}};
  b8.q[0] = -128;
  b8.q[31] = 127;
  CHECK(row_of(dtype::q8_0, b8)[0] == -64.f);
  CHECK(row_of(dtype::q8_0, b8)[31] == 63.5f);

  q4_1_block b41{.d = f16(2.f), .m = f16(-3.f), .q = {}};
  b41.q[2] = 0xf1;
  CHECK(row_of(dtype::q4_1, b41)[2] == -1.f);
  CHECK(row_of(dtype::q4_1, b41)[18] == 27.f);
  CHECK(row_of(dtype::q4_1, b41)[0] == -3.f);

  q5_0_block b50{.d = f16(1.f), .high = {0x02, 0, 0, 0x80}, .q = {}};
  b50.q[1] = 0x03;
  b50.q[15] = 0xf0;
  const auto y = row_of(dtype::q5_0, b50);
  CHECK(y[0] == -16.f);
  CHECK(y[1] == 3.f);
  CHECK(y[31] == 15.f);
  CHECK(y[15] == -16.f);

  q5_1_block b51{.d = f16(1.f), .m = f16(0.25f), .high = {0, 0, 1, 0}, .q = {}};
  b51.q[0] = 0x51;
  CHECK(row_of(dtype::q5_1, b51)[0] == 1.25f);
  CHECK(row_of(dtype::q5_1, b51)[16] == 21.25f);
}

TEST_CASE("gguf blocks: packed 6-bit scales") {
  std::uint8_t p[12] = {};
  p[0] = 0x80 | 5, p[4] = 0x40 | 7, p[8] = 0xa3;
  CHECK(sub_block_scales(p, 0).scale == 5);
  CHECK(sub_block_scales(p, 0).minimum == 7);
  CHECK(sub_block_scales(p, 4).scale == (3 | 2 << 4));
  CHECK(sub_block_scales(p, 4).minimum == (10 | 1 << 4));
}

TEST_CASE("gguf blocks: k formats against a bit-by-bit reading") {
  const unsigned seed = 20240;
  INFO("seed ", seed);
  std::mt19937 rng(seed);
  const auto byte = [&] { return static_cast<std::uint8_t>(rng()); };
  for (int repeat = 0; repeat < 50; ++repeat) {
    q4_k_block b4;
    q5_k_block b5;
    q6_k_block b6;
    for (auto& x : b4.scales) x = byte();
    for (auto& x : b4.q) x = byte();
    for (auto& x : b5.scales) x = byte();
    for (auto& x : b5.q) x = byte();
    for (auto& x : b5.high) x = byte();
    for (auto& x : b6.low) x = byte();
    for (auto& x : b6.high) x = byte();
    for (auto& x : b6.scales) x = static_cast<std::int8_t>(byte());
    b4.d = b5.d = b6.d = f16(0.001f * static_cast<float>(1 + repeat));
    b4.dmin = b5.dmin = f16(0.37f / static_cast<float>(1 + repeat));

    const auto scales = [](const std::uint8_t* s, std::size_t i) {  // from ggml's table of the 12 bytes, read as 8 + 8 numbers
      std::array<int, 16> out{};
      for (std::size_t k = 0; k < 4; ++k) {
        out[k] = bits(s, k, 0, 63), out[8 + k] = bits(s, k + 4, 0, 63);
        out[4 + k] = bits(s, k + 8, 0, 15) + 16 * bits(s, k, 6, 3), out[12 + k] = bits(s, k + 8, 4, 15) + 16 * bits(s, k + 4, 6, 3);
      }
      return std::pair(out[i], out[8 + i]);
    };
    const auto y4 = row_of(dtype::q4_k, b4), y5 = row_of(dtype::q5_k, b5), y6 = row_of(dtype::q6_k, b6);
    std::size_t bad4 = 0, bad5 = 0, bad6 = 0;
    for (std::size_t e = 0; e < 256; ++e) {
      const std::size_t s = e / 32, pair_of_sub_blocks = e / 64, in_run = e % 32;
      const int q4 = bits(b4.q, pair_of_sub_blocks * 32 + in_run, s % 2 ? 4 : 0, 15);
      const auto [sc4, m4] = scales(b4.scales, s);
      // Exact products in double, then one rounding: what the header promises.
      const double d = static_cast<float>(b4.d), dmin = static_cast<float>(b4.dmin);
      bad4 += y4[e] != static_cast<float>(d * sc4 * q4 - dmin * m4);
      const int q5 = bits(b5.q, pair_of_sub_blocks * 32 + in_run, s % 2 ? 4 : 0, 15) + 16 * bits(b5.high, in_run, static_cast<unsigned>(s), 1);
      const auto [sc5, m5] = scales(b5.scales, s);
      bad5 += y5[e] != static_cast<float>(d * sc5 * q5 - dmin * m5);
      const std::size_t half = e / 128, r = e % 128 / 32;
      const int q6 = bits(b6.low, half * 64 + (r % 2) * 32 + in_run, r < 2 ? 0 : 4, 15) +
                     16 * bits(b6.high, half * 32 + in_run, static_cast<unsigned>(2 * r), 3) - 32;
      bad6 += y6[e] != static_cast<float>(static_cast<double>(static_cast<float>(b6.d)) * b6.scales[e / 16] * q6);
    }
    CHECK(bad4 == 0);
    CHECK(bad5 == 0);
    CHECK(bad6 == 0);
  }
}

TEST_CASE("gguf blocks: plain types and errors") {
  const float x[3] = {1.5f, -0.0f, 3e38f};
  float y[3];
  dequantize_row(dtype::f32, reinterpret_cast<const std::byte*>(x), y, 3);
  CHECK(std::memcmp(x, y, sizeof x) == 0);
  const bf16 h[2] = {bf16(2.5f), bf16(-1.f)};
  dequantize_row(dtype::bf16, reinterpret_cast<const std::byte*>(h), y, 2);
  CHECK(y[0] == 2.5f);
  CHECK(y[1] == -1.f);
  dequantize_row(dtype::f32, nullptr, nullptr, 0);
  CHECK_THROWS_WITH_AS(dequantize_row(dtype::q4_0, nullptr, y, 3), "[dequantize] expected a multiple of 32 weights of q4_0, got 3", error);
  CHECK_THROWS_WITH_AS(dequantize_row(dtype::i32, nullptr, y, 1), "[dequantize] expected a type that weights may have, got i32", error);
}

TEST_CASE("gguf blocks: NaN and infinity are found") {
  std::vector<q8_0_block> row(5, q8_0_block{.d = f16(1.f), .q = {}});
  const auto* raw = reinterpret_cast<const std::byte*>(row.data());
  CHECK(find_non_finite(dtype::q8_0, raw, 160) == 160);
  row[3].d = f16(std::numeric_limits<float>::quiet_NaN());
  CHECK(find_non_finite(dtype::q8_0, raw, 160) == 96);
  q5_1_block b{.d = f16(1.f), .m = f16(std::numeric_limits<float>::infinity()), .high = {}, .q = {}};
  CHECK(find_non_finite(dtype::q5_1, reinterpret_cast<const std::byte*>(&b), 32) == 0);
  q4_k_block k{};
  k.dmin = f16::from_bits(0xfc00);
  CHECK(find_non_finite(dtype::q4_k, reinterpret_cast<const std::byte*>(&k), 256) == 0);
  std::vector<float> f(3000, 1.f);
  CHECK(find_non_finite(dtype::f32, reinterpret_cast<const std::byte*>(f.data()), f.size()) == 3000);
  f[2999] = std::numeric_limits<float>::infinity();
  CHECK(find_non_finite(dtype::f32, reinterpret_cast<const std::byte*>(f.data()), f.size()) == 2999);
  CHECK(find_non_finite(dtype::i32, nullptr, 7) == 7);
  for (std::size_t n : {1u, 3u, 4u, 5u, 9u})  // every value of 16 bits, at every place in a word
    for (std::size_t at = 0; at < n; ++at) {
      std::size_t wrong = 0;
      for (std::uint32_t bits16 = 0; bits16 < 65536; bits16 += n == 5 ? 1 : 97) {
        std::vector<std::uint16_t> v(n, 0x3bff);
        v[at] = static_cast<std::uint16_t>(bits16);
        const auto* p = reinterpret_cast<const std::byte*>(v.data());
        wrong += find_non_finite(dtype::f16, p, n) != (std::isfinite(static_cast<float>(f16::from_bits(v[at]))) ? n : at);
        wrong += find_non_finite(dtype::bf16, p, n) != (std::isfinite(static_cast<float>(bf16::from_bits(v[at]))) ? n : at);
      }
      CHECK(wrong == 0);
    }
  const double doubles[2] = {1e300, std::numeric_limits<double>::quiet_NaN()};
  CHECK(find_non_finite(dtype::f64, reinterpret_cast<const std::byte*>(doubles), 2) == 1);
  CHECK(find_non_finite(dtype::f64, reinterpret_cast<const std::byte*>(doubles), 1) == 1);
}
