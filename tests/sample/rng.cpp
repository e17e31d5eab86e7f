// SPDX-License-Identifier: MIT
#include <quena/sample/rng.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <set>
#include <vector>

namespace {

// The known-answer vectors for philox4x32 with 10 rounds that the authors publish with Random123.
static_assert(quena::philox4x32({{0, 0, 0, 0}}, {{0, 0}}) ==
              quena::philox_words{{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}});
static_assert(quena::philox4x32({{0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu}}, {{0xffffffffu, 0xffffffffu}}) ==
              quena::philox_words{{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}});
static_assert(quena::philox4x32({{0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}}, {{0xa4093822u, 0x299f31d0u}}) ==
              quena::philox_words{{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}});

TEST_CASE("rng: Philox4x32-10 gives the published answers at run time too") {
  quena::philox_words counter{{0, 0, 0, 0}};
  volatile std::uint32_t zero = 0;  // keeps the compiler from answering with the constants above
  counter.word[0] = zero;
  CHECK(quena::philox4x32(counter, {{zero, 0}}) == quena::philox_words{{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}});
}

TEST_CASE("rng: the layout of key and counter is what the documentation says") {
  const quena::philox_words out = quena::philox4x32({{5, 7, 0x89abcdefu, 0x01234567u}}, {{0x76543210u, 0xfedcba98u}});
  CHECK(quena::random_bits(0xfedcba9876543210u, 0x0123456789abcdefu, 5, 7) == (std::uint64_t{out.word[1]} << 32 | out.word[0]));
}

TEST_CASE("rng: every one of the four arguments matters, in all its bits") {
  std::set<std::uint64_t> seen{quena::random_bits(0, 0, 0, 0)};
  for (int bit = 0; bit < 64; ++bit) seen.insert(quena::random_bits(std::uint64_t{1} << bit, 0, 0, 0));
  for (int bit = 0; bit < 64; ++bit) seen.insert(quena::random_bits(0, std::uint64_t{1} << bit, 0, 0));
  for (int bit = 0; bit < 32; ++bit) seen.insert(quena::random_bits(0, 0, 1u << bit, 0));
  for (int bit = 0; bit < 32; ++bit) seen.insert(quena::random_bits(0, 0, 0, 1u << bit));
  CHECK(seen.size() == 1 + 64 + 64 + 32 + 32);
}

TEST_CASE("rng: uniform_below is the high half of the 128-bit product") {
  CHECK(quena::uniform_below(0, 10) == 0);
  CHECK(quena::uniform_below(~std::uint64_t{0}, 10) == 9);
  CHECK(quena::uniform_below(std::uint64_t{1} << 63, 10) == 5);
  CHECK(quena::uniform_below(~std::uint64_t{0}, 1) == 0);
  CHECK(quena::uniform_below(12345, 0) == 0);
  CHECK(quena::uniform_below(~std::uint64_t{0}, ~std::uint64_t{0}) == ~std::uint64_t{0} - 1);
  // (2^32 + 3)(2^33 + 5) = 2^65 + 5 * 2^32 + 3 * 2^33 + 15: high word 2
  CHECK(quena::uniform_below((std::uint64_t{1} << 32) + 3, (std::uint64_t{1} << 33) + 5) == 2);
  CHECK(quena::uniform_below(0xfedcba9876543210u, 0x0123456789abcdefu) == 0x0121fa00ad77d742u);
}

TEST_CASE("rng: uniform_unit stays below one") {
  CHECK(quena::uniform_unit(0) == 0.0);
  CHECK(quena::uniform_unit(~std::uint64_t{0}) < 1.0);
  CHECK(quena::uniform_unit(std::uint64_t{1} << 63) == 0.5);
}

TEST_CASE("rng: draws are uniform over positions, sequences and seeds alike") {
  constexpr std::size_t n_cells = 64, n_draws = 64000;
  for (int axis = 0; axis < 3; ++axis) {
    std::vector<double> cell(n_cells);
    for (std::uint32_t i = 0; i < n_draws; ++i) {
      const std::uint64_t bits = axis == 0   ? quena::random_bits(42, 1, i)
                                 : axis == 1 ? quena::random_bits(42, i, 1)
                                             : quena::random_bits(i, 42, 1);
      cell[quena::uniform_below(bits, n_cells)] += 1;
    }
    double chi2 = 0;
    for (const double n : cell) chi2 += (n - 1000.0) * (n - 1000.0) / 1000.0;
    CAPTURE(axis);
    CHECK(chi2 <
          63 + 4 * 11.23);  // 63 degrees of freedom: mean 63, deviation sqrt(126); the draws are fixed, so this can't flicker
    CHECK(chi2 > 63 - 4 * 11.23);
  }
}

}  // namespace
