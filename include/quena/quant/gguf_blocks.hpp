// SPDX-License-Identifier: MIT
// The block formats of GGUF files: what the bytes of 32 or 256 quantised weights mean, and how to read a row of them as f32.
//
// Exactness  d and m below are f16, the other factors small integers. d times a sub-block scale times a code needs at most 24
//            significant bits, so every product is exact in f32 and at most one rounding happens (the subtraction or addition of
//            the minimum). Results are the same for any order of factors and with or without fused multiply-add.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "../core/dtype.hpp"
#include "../core/error.hpp"
#include "../core/float16.hpp"

namespace quena::inline QUENA_ABI {

/// 32 weights: d * q.
struct q8_0_block {
  f16 d;
  std::int8_t q[32];
};

/// 32 weights: d * (q - 8). Byte i holds element i in its low and element i + 16 in its high nibble.
struct q4_0_block {
  f16 d;
  std::uint8_t q[16];
};

/// 32 weights: d * q + m. Nibbles as in q4_0.
struct q4_1_block {
  f16 d, m;
  std::uint8_t q[16];
};

/// 32 weights: d * (q - 16). The low 4 bits of q as in q4_0, the fifth of element i is bit i of `high` (little-endian).
struct q5_0_block {
  f16 d;
  std::uint8_t high[4];
  std::uint8_t q[16];
};

/// 32 weights: d * q + m. Bits as in q5_0.
struct q5_1_block {
  f16 d, m;
  std::uint8_t high[4];
  std::uint8_t q[16];
};

/// 256 weights in 8 sub-blocks of 32: (d * scale) * q - (dmin * minimum). Scales and minimums have 6 bits, see sub_block_scales().
/// Each 32 bytes of q hold two sub-blocks: the first in the low, the second in the high nibbles.
struct q4_k_block {
  f16 d, dmin;
  std::uint8_t scales[12];
  std::uint8_t q[128];
};

/// As q4_k with a fifth bit: bit s of high[i] belongs to element i of sub-block s.
struct q5_k_block {
  f16 d, dmin;
  std::uint8_t scales[12];
  std::uint8_t high[32];
  std::uint8_t q[128];
};

/// 256 weights in 16 sub-blocks of 16: (d * scale) * (q - 32). Each half of the block (128 weights) has 64 bytes of low nibbles
/// and 32 bytes of upper bit pairs: of its four runs of 32 weights, runs 0 and 1 are the low nibbles of the first and second 32
/// bytes, 2 and 3 their high nibbles; run r takes bits 2r and 2r + 1 of the upper bytes.
struct q6_k_block {
  std::uint8_t low[128];
  std::uint8_t high[64];
  std::int8_t scales[16];
  f16 d;
};

static_assert(sizeof(q8_0_block) == 34 && sizeof(q4_0_block) == 18 && sizeof(q4_1_block) == 20 && sizeof(q5_0_block) == 22);
static_assert(sizeof(q5_1_block) == 24 && sizeof(q4_k_block) == 144 && sizeof(q5_k_block) == 176 && sizeof(q6_k_block) == 210);

/// The 6-bit scale and minimum of sub-block s of a q4_k or q5_k block. Of the 12 bytes, 0–3 hold the scales of sub-blocks 0–3 in
/// their low 6 bits, 4–7 the minimums; bytes 8–11 hold the low nibbles of scale (low) and minimum (high) of sub-blocks 4–7, whose
/// upper 2 bits fill the tops of bytes 0–3 and 4–7.
struct sub_block_scale {
  std::uint8_t scale, minimum;
};
[[nodiscard]] constexpr sub_block_scale sub_block_scales(const std::uint8_t (&packed)[12], std::size_t s) noexcept {
  if (s < 4) return {static_cast<std::uint8_t>(packed[s] & 63), static_cast<std::uint8_t>(packed[s + 4] & 63)};
  return {static_cast<std::uint8_t>((packed[s + 4] & 15) | (packed[s - 4] >> 6 << 4)),
          static_cast<std::uint8_t>((packed[s + 4] >> 4) | (packed[s] >> 6 << 4))};
}

namespace detail {

static_assert(std::endian::native == std::endian::little, "the block structs mirror little-endian files");

inline void dequantize_block(const q8_0_block& b, float* y) noexcept {
  const float d = static_cast<float>(b.d);
  for (std::size_t i = 0; i < 32; ++i) y[i] = d * static_cast<float>(b.q[i]);
}

inline void dequantize_block(const q4_0_block& b, float* y) noexcept {
  const float d = static_cast<float>(b.d);
  for (std::size_t i = 0; i < 16; ++i) {
    y[i] = d * static_cast<float>((b.q[i] & 15) - 8);
    y[i + 16] = d * static_cast<float>((b.q[i] >> 4) - 8);
  }
}

inline void dequantize_block(const q4_1_block& b, float* y) noexcept {
  const float d = static_cast<float>(b.d), m = static_cast<float>(b.m);
  for (std::size_t i = 0; i < 16; ++i) {
    y[i] = d * static_cast<float>(b.q[i] & 15) + m;
    y[i + 16] = d * static_cast<float>(b.q[i] >> 4) + m;
  }
}

/// The fifth bit of element i, in place.
[[nodiscard]] constexpr int fifth_bit(const std::uint8_t (&high)[4], std::size_t i) noexcept { return (high[i / 8] >> (i % 8) & 1) << 4; }

inline void dequantize_block(const q5_0_block& b, float* y) noexcept {
  const float d = static_cast<float>(b.d);
  for (std::size_t i = 0; i < 16; ++i) {
    y[i] = d * static_cast<float>(((b.q[i] & 15) | fifth_bit(b.high, i)) - 16);
    y[i + 16] = d * static_cast<float>(((b.q[i] >> 4) | fifth_bit(b.high, i + 16)) - 16);
  }
}

inline void dequantize_block(const q5_1_block& b, float* y) noexcept {
  const float d = static_cast<float>(b.d), m = static_cast<float>(b.m);
  for (std::size_t i = 0; i < 16; ++i) {
    y[i] = d * static_cast<float>((b.q[i] & 15) | fifth_bit(b.high, i)) + m;
    y[i + 16] = d * static_cast<float>((b.q[i] >> 4) | fifth_bit(b.high, i + 16)) + m;
  }
}

inline void dequantize_block(const q4_k_block& b, float* y) noexcept {
  const float d = static_cast<float>(b.d), dmin = static_cast<float>(b.dmin);
  for (std::size_t s = 0; s < 8; ++s) {
    const auto [scale, minimum] = sub_block_scales(b.scales, s);
    const float step = d * scale, offset = dmin * minimum;
    const std::uint8_t* q = b.q + s / 2 * 32;
    const std::size_t shift = s % 2 * 4;
    for (std::size_t i = 0; i < 32; ++i) y[s * 32 + i] = step * static_cast<float>(q[i] >> shift & 15) - offset;
  }
}

inline void dequantize_block(const q5_k_block& b, float* y) noexcept {
  const float d = static_cast<float>(b.d), dmin = static_cast<float>(b.dmin);
  for (std::size_t s = 0; s < 8; ++s) {
    const auto [scale, minimum] = sub_block_scales(b.scales, s);
    const float step = d * scale, offset = dmin * minimum;
    const std::uint8_t* q = b.q + s / 2 * 32;
    const std::size_t shift = s % 2 * 4;
    for (std::size_t i = 0; i < 32; ++i)
      y[s * 32 + i] = step * static_cast<float>((q[i] >> shift & 15) | (b.high[i] >> s & 1) << 4) - offset;
  }
}

inline void dequantize_block(const q6_k_block& b, float* y) noexcept {
  const float d = static_cast<float>(b.d);
  for (std::size_t run = 0; run < 8; ++run) {  // four in each half of the block
    const std::size_t half = run / 4, r = run % 4;
    const std::uint8_t* low = b.low + half * 64 + r % 2 * 32;
    const std::uint8_t* high = b.high + half * 32;
    const std::size_t low_shift = r / 2 * 4, high_shift = r * 2;
    for (std::size_t part = 0; part < 2; ++part) {  // of 16 weights with one scale
      const float step = d * static_cast<float>(b.scales[run * 2 + part]);
      for (std::size_t i = part * 16; i < part * 16 + 16; ++i)
        y[run * 32 + i] = step * static_cast<float>(((low[i] >> low_shift & 15) | (high[i] >> high_shift & 3) << 4) - 32);
    }
  }
}

template <class Block>
void dequantize_blocks(const std::byte* src, float* dst, std::size_t n_blocks, std::size_t elements) noexcept {
  for (std::size_t i = 0; i < n_blocks; ++i) {
    Block b;  // copied, because a file's bytes have no alignment
    std::memcpy(&b, src + i * sizeof(Block), sizeof(Block));
    dequantize_block(b, dst + i * elements);
  }
}

template <class T>
void widen_elements(const std::byte* src, float* dst, std::size_t n) noexcept {
  for (std::size_t i = 0; i < n; ++i) {
    T x;
    std::memcpy(&x, src + i * sizeof(T), sizeof(T));
    dst[i] = static_cast<float>(x);
  }
}

/// Calls f(pointer to Block's type as a null pointer) for a block type.
template <class F>
decltype(auto) with_block_type(dtype d, F&& f) {
  switch (d) {
    case dtype::q8_0: return f(static_cast<const q8_0_block*>(nullptr));
    case dtype::q4_0: return f(static_cast<const q4_0_block*>(nullptr));
    case dtype::q4_1: return f(static_cast<const q4_1_block*>(nullptr));
    case dtype::q5_0: return f(static_cast<const q5_0_block*>(nullptr));
    case dtype::q5_1: return f(static_cast<const q5_1_block*>(nullptr));
    case dtype::q4_k: return f(static_cast<const q4_k_block*>(nullptr));
    case dtype::q5_k: return f(static_cast<const q5_k_block*>(nullptr));
    case dtype::q6_k: return f(static_cast<const q6_k_block*>(nullptr));
    default: fail(errc::unsupported, "dequantize", {"expected a type that weights may have, got ", dtype_name(d)});
  }
}

}  // namespace detail

/// n weights of a file as f32: blocks are dequantised, f16 and bf16 widened, f32 copied. src may have any alignment.
/// Shapes   src: [n_bytes(type, n)], dst: [n]; n is a whole number of blocks.
/// Numerics exact but for one rounding to f32 where a minimum is added (q4_1, q5_1, q4_k, q5_k): bit for bit what ggml computes.
/// Errors   invalid_argument: n is not a whole number of blocks; unsupported: an integer type or f64.
/// Cost     one pass.
inline void dequantize_row(dtype type, const std::byte* src, float* dst, std::size_t n) {
  if (type == dtype::f32) {
    if (n != 0) std::memcpy(dst, src, n * sizeof(float));
  } else if (type == dtype::f16) {
    detail::widen_elements<f16>(src, dst, n);
  } else if (type == dtype::bf16) {
    detail::widen_elements<bf16>(src, dst, n);
  } else {
    const std::size_t elements = block_elements(type);
    if (n % elements != 0)
      fail(errc::invalid_argument, "dequantize",
           {"expected a multiple of ", elements, " weights of ", dtype_name(type), ", got ", n});
    detail::with_block_type(type, [&]<class Block>(const Block*) { detail::dequantize_blocks<Block>(src, dst, n / elements, elements); });
  }
}

namespace detail {

[[nodiscard]] constexpr bool is_finite(f16 x) noexcept { return (x.bits & 0x7c00u) != 0x7c00u; }

template <class Block>
[[nodiscard]] bool scales_finite(const Block& b) noexcept {
  bool good = is_finite(b.d);
  if constexpr (requires { b.m; }) good = good && is_finite(b.m);
  if constexpr (requires { b.dmin; }) good = good && is_finite(b.dmin);
  return good;
}

/// Index of the first word whose exponent bits are all set (that is NaN or infinity), or n. `exponent` stands just below the sign.
template <class Word>
[[nodiscard]] std::size_t find_non_finite_word(const std::byte* src, std::size_t n, Word exponent) noexcept {
  const auto is_bad = [&](std::size_t i) {
    Word w;
    std::memcpy(&w, src + i * sizeof(Word), sizeof(Word));
    return (w & exponent) == exponent;
  };
  // Eight bytes at a time: adding the exponent's lowest bit carries into the place of the sign exactly if all its bits are set.
  constexpr std::size_t lanes = sizeof(std::uint64_t) / sizeof(Word);
  constexpr std::uint64_t ones = lanes == 4 ? 0x0001000100010001u : lanes == 2 ? 0x0000000100000001u : 1u;
  const std::uint64_t mask = ones * exponent, low = ones * static_cast<Word>(exponent & (~exponent + 1u)), sign = ones << (sizeof(Word) * 8 - 1);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    std::uint64_t w;
    std::memcpy(&w, src + i * sizeof(Word), sizeof w);
    if ((((w & mask) + low) & sign) != 0) break;
  }
  while (i < n && !is_bad(i)) ++i;
  return i;
}

}  // namespace detail

/// The first element (of plain types) or the first element of the first block (of block types, by its f16 scales) that is NaN or
/// infinite; n if there is none. Integer types are always finite.
/// Cost     block types: only the scales are read; plain types: one pass, memory bound.
[[nodiscard]] inline std::size_t find_non_finite(dtype type, const std::byte* src, std::size_t n) {
  if (type == dtype::f32) return detail::find_non_finite_word<std::uint32_t>(src, n, 0x7f800000u);
  if (type == dtype::f16) return detail::find_non_finite_word<std::uint16_t>(src, n, 0x7c00u);
  if (type == dtype::bf16) return detail::find_non_finite_word<std::uint16_t>(src, n, 0x7f80u);
  if (type == dtype::f64) return detail::find_non_finite_word<std::uint64_t>(src, n, 0x7ff0000000000000u);
  if (!is_block_type(type)) return n;
  return detail::with_block_type(type, [&]<class Block>(const Block*) -> std::size_t {
    const std::size_t elements = block_elements(type);
    for (std::size_t i = 0; i < n / elements; ++i) {
      Block b;
      std::memcpy(&b, src + i * sizeof(Block), sizeof(Block));
      if (!detail::scales_finite(b)) return i * elements;
    }
    return n;
  });
}

}  // namespace quena::inline QUENA_ABI
