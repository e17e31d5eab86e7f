// SPDX-License-Identifier: MIT
// Keys and values as a cache keeps them: one row of cells, the key or the value of one position and head, in every cell type.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "../core/dtype.hpp"
#include "../core/float16.hpp"
#include "gguf_blocks.hpp"

namespace quena::inline QUENA_ABI {

/// The scale of a row of 8-bit cells whose largest magnitude is `largest`: largest / 127, rounded up to 16 significant bits, so that a
/// cell's value, code * scale, is exact in f32 and rounds to the same code again, but no larger than keeps it finite. 0: all cells are zero (or the scale would be no normal
/// number); NaN if a value is not finite.
[[nodiscard]] inline float cell_scale(float largest) noexcept {
  if (!std::isfinite(largest)) return std::numeric_limits<float>::quiet_NaN();
  if (largest < 256 * (std::numeric_limits<float>::min)()) return 0;
  const auto cut = [](std::uint32_t bits) { return std::bit_cast<float>(bits & ~std::uint32_t{0xff}); };
  return (std::min)(cut(std::bit_cast<std::uint32_t>(largest / 127.0f) + 0xffu), cut(std::bit_cast<std::uint32_t>((std::numeric_limits<float>::max)() / 127.0f)));
}

/// Codes of a row, code[t] = round(x[t] * (1 / scale)) to nearest even, and returns their scale.   x, codes: [n]
/// Numerics   a cell is off by at most scale * 0.5001; all codes are zero where the scale is zero or NaN.
inline float encode_cells(const float* x, std::size_t n, std::int8_t* codes) noexcept {
  float largest = 0;
  for (std::size_t t = 0; t < n; ++t) largest = std::isfinite(x[t]) ? (std::max)(largest, std::fabs(x[t])) : std::numeric_limits<float>::infinity();
  const float scale = cell_scale(largest);
  if (!(scale > 0)) return std::memset(codes, 0, n), scale;
  const float inverse = 1.0f / scale;
  for (std::size_t t = 0; t < n; ++t) codes[t] = static_cast<std::int8_t>(std::nearbyint(x[t] * inverse));
  return scale;
}

/// A row as bytes: n cells, then for i8 their scale.   to: [kv_shape::row_bytes()]
inline void store_cells(const float* x, std::size_t n, dtype cell, std::byte* to) noexcept {
  if (cell == dtype::i8) {
    const float scale = encode_cells(x, n, reinterpret_cast<std::int8_t*>(to));
    std::memcpy(to + n, &scale, sizeof scale);
    return;
  }
  if (cell == dtype::f32) return static_cast<void>(std::memcpy(to, x, n * sizeof(float)));
  for (std::size_t t = 0; t < n; ++t) {
    const std::uint16_t half = cell == dtype::bf16 ? bf16(x[t]).bits : f16(x[t]).bits;
    std::memcpy(to + 2 * t, &half, sizeof half);
  }
}

/// The values that store_cells left.   out: [n]
inline void load_cells(dtype cell, const std::byte* from, float* out, std::size_t n) {
  if (cell != dtype::i8) return dequantize_row(cell, from, out, n);
  float scale;
  std::memcpy(&scale, from + n, sizeof scale);
  for (std::size_t t = 0; t < n; ++t) out[t] = static_cast<float>(static_cast<std::int8_t>(from[t])) * scale;
}

}  // namespace quena::inline QUENA_ABI
