// SPDX-License-Identifier: MIT
// Weights as small integers: which numbers a format keeps for a group of neighbouring columns of a row, how to round weights to
// them, and how to read them from GGUF's blocks. How they lie in memory is the backend's choice.
//
//   symmetric      w = scale * (code - offset)           int8 (offset 128), int4 (8), q8_0 (128), q4_0 (8), q5_0 (16), q6_k (32)
//   with minimums  w = scale * code + minimum            int4z, q4_1, q5_1, q4_k, q5_k
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

#include "../core/dtype.hpp"
#include "../core/float16.hpp"
#include "../core/format.hpp"
#include "gguf_blocks.hpp"

namespace quena::inline QUENA_ABI {

/// How a group's scale and minimum are kept.
enum class scale_kind : std::uint8_t {
  scale,        ///< f16 scale
  scale_zero,   ///< f16 scale, 8-bit zero point: minimum = -scale * zero
  scale_min,    ///< f16 scale, f16 minimum
  sub_scale,    ///< for 256 columns an f16 d, for each group a signed 8-bit s: scale = d * s
  sub_scale_min ///< for 256 columns f16 d and dmin, for each group 8-bit s and m: scale = d * s, minimum = -dmin * m
};

/// What an integer format keeps.
struct code_format {
  std::uint8_t bits = 8;     ///< of a code: 4, 5, 6 or 8
  std::uint8_t offset = 0;   ///< the code that means 0
  std::uint16_t group = 32;  ///< columns with one scale; 256 for row-wise formats, whose blocks all repeat the row's scale
  scale_kind scales = scale_kind::scale;

  [[nodiscard]] constexpr bool has_minimums() const noexcept { return scales != scale_kind::scale && scales != scale_kind::sub_scale; }
  friend constexpr bool operator==(const code_format&, const code_format&) = default;
};

/// Bits in memory for each weight, scales included.
[[nodiscard]] constexpr double bits_per_weight(const code_format& f) noexcept {
  switch (f.scales) {
    case scale_kind::scale: return f.bits + 16.0 / f.group;
    case scale_kind::scale_zero: return f.bits + 24.0 / f.group;
    case scale_kind::scale_min: return f.bits + 32.0 / f.group;
    case scale_kind::sub_scale: return f.bits + 8.0 / f.group + 16.0 / 256;
    case scale_kind::sub_scale_min: return f.bits + 16.0 / f.group + 32.0 / 256;
  }
  return 0;
}

/// Nothing for formats that are not integers.
[[nodiscard]] constexpr std::optional<code_format> codes_of(format f) noexcept {
  switch (f) {
    case format::int8: return code_format{8, 128, 128, scale_kind::scale};
    case format::int8_g64: return code_format{8, 128, 64, scale_kind::scale};
    case format::int8_g32: return code_format{8, 128, 32, scale_kind::scale};
    case format::int8_row: return code_format{8, 128, 256, scale_kind::scale};
    case format::int4: return code_format{4, 8, 32, scale_kind::scale};
    case format::int4_g64: return code_format{4, 8, 64, scale_kind::scale};
    case format::int4_g128: return code_format{4, 8, 128, scale_kind::scale};
    case format::int4z: return code_format{4, 0, 32, scale_kind::scale_zero};
    case format::int4z_g64: return code_format{4, 0, 64, scale_kind::scale_zero};
    case format::int4z_g128: return code_format{4, 0, 128, scale_kind::scale_zero};
    default: return std::nullopt;
  }
}
[[nodiscard]] constexpr std::optional<code_format> codes_of(dtype d) noexcept {
  switch (d) {
    case dtype::q8_0: return code_format{8, 128, 32, scale_kind::scale};
    case dtype::q4_0: return code_format{4, 8, 32, scale_kind::scale};
    case dtype::q5_0: return code_format{5, 16, 32, scale_kind::scale};
    case dtype::q4_1: return code_format{4, 0, 32, scale_kind::scale_min};
    case dtype::q5_1: return code_format{5, 0, 32, scale_kind::scale_min};
    case dtype::q4_k: return code_format{4, 0, 32, scale_kind::sub_scale_min};
    case dtype::q5_k: return code_format{5, 0, 32, scale_kind::sub_scale_min};
    case dtype::q6_k: return code_format{6, 32, 16, scale_kind::sub_scale};
    default: return std::nullopt;
  }
}

/// Columns that are encoded together: the length of a K-quant's block and a multiple of every group.
inline constexpr std::size_t code_block_cols = 256;

/// Up to 256 columns of one row. Which members count depends on the scale_kind.
struct code_block {
  std::uint8_t codes[code_block_cols];
  f16 scale[8], minimum[8];
  std::uint8_t zero[8];
  f16 d, dmin;
  std::uint8_t sub_scale[16], sub_minimum[8];  ///< sub_scale is signed for scale_kind::sub_scale
};

/// The scale of group g.
[[nodiscard]] inline float scale_of(const code_format& f, const code_block& b, std::size_t g) noexcept {
  if (f.scales == scale_kind::sub_scale) return static_cast<float>(b.d) * static_cast<float>(static_cast<std::int8_t>(b.sub_scale[g]));
  if (f.scales == scale_kind::sub_scale_min) return static_cast<float>(b.d) * static_cast<float>(b.sub_scale[g]);
  return static_cast<float>(b.scale[g]);
}
/// The minimum of group g; 0 for symmetric formats.
[[nodiscard]] inline float minimum_of(const code_format& f, const code_block& b, std::size_t g) noexcept {
  switch (f.scales) {
    case scale_kind::scale_zero: return -static_cast<float>(b.scale[g]) * static_cast<float>(b.zero[g]);
    case scale_kind::scale_min: return static_cast<float>(b.minimum[g]);
    case scale_kind::sub_scale_min: return -static_cast<float>(b.dmin) * static_cast<float>(b.sub_minimum[g]);
    default: return 0;
  }
}

/// What n columns of a block mean.
/// Numerics exact but for one rounding where a minimum is added.
inline void decode_block(const code_format& f, const code_block& b, std::size_t n, float* w) noexcept {
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t g = i / f.group;
    w[i] = scale_of(f, b, g) * static_cast<float>(b.codes[i] - f.offset) + minimum_of(f, b, g);
  }
}

namespace detail {

/// 0 where dividing by x would not give a finite number.
[[nodiscard]] inline float inverse_or_zero(float x) noexcept {
  const float inverse = 1 / x;
  return std::isfinite(inverse) ? inverse : 0.0f;
}
/// To the nearest integer, ties to even: adding 1.5 * 2^23 leaves no bits for a fraction. |x| < 2^22.
[[nodiscard]] constexpr int nearest(float x) noexcept { return static_cast<int>((x + 12582912.0f) - 12582912.0f); }
[[nodiscard]] constexpr std::uint8_t nearest_code(float x, int offset, int highest) noexcept {
  const float low = static_cast<float>(-offset), high = static_cast<float>(highest - offset);
  return static_cast<std::uint8_t>(nearest(x > low ? (x < high ? x : high) : low) + offset);
}

}  // namespace detail

/// Rounds n <= 256 finite weights to the nearest codes of one of our own formats.
///   int8: scale = max |w| / 127.  int4: scale = w* / -8 where w* is the weight of largest magnitude.  int4z: scale = (max - min) / 15
///   over the group and 0.
/// `peak`   for int8_row (group 256): max |w| of the whole row.
/// Numerics |decoded - w| <= scale / 2, up to the rounding of the scale to f16: codes at the end of the range may be off by 2^-10 of
///          the range more. Scales below 2^-25 become zero, so weights below 127 * 2^-25 (int8) or 8 * 2^-25 (int4) may become 0.
///          The weight of largest magnitude must be below 65504 * 8.
/// Source   the usual round-to-nearest; the signed scale of int4 as in ggml's Q4_0.
inline void encode_block(const code_format& f, const float* w, std::size_t n, float peak, code_block& b) noexcept {
  const std::size_t n_groups = (n + f.group - 1) / f.group;
  for (std::size_t g = 0; g < n_groups; ++g) {
    const std::size_t first = g * f.group, last = n < first + f.group ? n : first + f.group;
    float low = 0, high = 0;
    for (std::size_t i = first; i < last; ++i) low = w[i] < low ? w[i] : low, high = w[i] > high ? w[i] : high;
    const float largest = f.group == code_block_cols ? peak : (high > -low ? high : -low);
    const int highest = (1 << f.bits) - 1;
    float scale = f.bits == 8 ? largest / 127 : (high > -low ? high : low) / -8, zero = 0;
    if (f.scales == scale_kind::scale_zero) scale = (high - low) / static_cast<float>(highest);
    b.scale[g] = f16(scale);
    const float inverse = detail::inverse_or_zero(static_cast<float>(b.scale[g]));
    if (f.scales == scale_kind::scale_zero) {
      b.zero[g] = detail::nearest_code(-low * inverse, 0, highest);
      zero = static_cast<float>(b.zero[g]);
    }
    for (std::size_t i = first; i < last; ++i) b.codes[i] = detail::nearest_code(w[i] * inverse + zero, f.offset, highest);
  }
}

namespace detail {

template <class Block>
void read_small_block(const Block& from, std::size_t i, code_block& b) noexcept {  // the i-th 32 columns
  b.scale[i] = from.d;
  if constexpr (requires { from.m; }) b.minimum[i] = from.m;
  std::uint8_t* const codes = b.codes + i * 32;
  for (std::size_t j = 0; j < 32; ++j) {
    if constexpr (sizeof(from.q) == 32) {
      codes[j] = static_cast<std::uint8_t>(from.q[j] + 128);
    } else {
      int code = j < 16 ? from.q[j] & 15 : from.q[j - 16] >> 4;
      if constexpr (requires { from.high; }) code |= fifth_bit(from.high, j);
      codes[j] = static_cast<std::uint8_t>(code);
    }
  }
}
template <class Block>
void read_k_block(const Block& from, code_block& b) noexcept {  // q4_k, q5_k
  b.d = from.d, b.dmin = from.dmin;
  for (std::size_t s = 0; s < 8; ++s) {
    const auto [scale, minimum] = sub_block_scales(from.scales, s);
    b.sub_scale[s] = scale, b.sub_minimum[s] = minimum;
    for (std::size_t j = 0; j < 32; ++j) {
      int code = from.q[s / 2 * 32 + j] >> (s % 2 * 4) & 15;
      if constexpr (requires { from.high; }) code |= (from.high[j] >> s & 1) << 4;
      b.codes[s * 32 + j] = static_cast<std::uint8_t>(code);
    }
  }
}
inline void read_k_block(const q6_k_block& from, code_block& b) noexcept {
  b.d = from.d;
  std::memcpy(b.sub_scale, from.scales, sizeof b.sub_scale);
  for (std::size_t run = 0; run < 8; ++run)
    for (std::size_t j = 0; j < 32; ++j) {
      const std::size_t half = run / 4, r = run % 4;
      const int low = from.low[half * 64 + r % 2 * 32 + j] >> (r / 2 * 4) & 15, high = from.high[half * 32 + j] >> (r * 2) & 3;
      b.codes[run * 32 + j] = static_cast<std::uint8_t>(low | high << 4);
    }
}

}  // namespace detail

/// n <= 256 columns of a GGUF block type, without loss.   src: the blocks of these columns
/// Errors   unsupported: not a block type.
inline void read_block(dtype type, const std::byte* src, std::size_t n, code_block& b) {
  detail::with_block_type(type, [&]<class Block>(const Block*) {
    for (std::size_t i = 0; i < n / block_elements(type); ++i) {
      Block from;
      std::memcpy(&from, src + i * sizeof(Block), sizeof(Block));
      if constexpr (requires { from.scales; }) detail::read_k_block(from, b);
      else detail::read_small_block(from, i, b);
    }
  });
}

}  // namespace quena::inline QUENA_ABI
