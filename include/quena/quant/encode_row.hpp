// SPDX-License-Identifier: MIT
// Rows of weights rounded to a type of tensor files.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "../core/dtype.hpp"
#include "../core/error.hpp"
#include "../core/float16.hpp"
#include "codes.hpp"
#include "rounding.hpp"

namespace quena::inline QUENA_ABI {

/// The types that encode_row() writes.
[[nodiscard]] constexpr bool is_encodable(dtype d) noexcept {
  switch (d) {
    case dtype::f32: case dtype::f16: case dtype::bf16: case dtype::q8_0: case dtype::q4_0: case dtype::q4_k: case dtype::q6_k: return true;
    default: return false;
  }
}
/// Their names, for messages.
inline constexpr std::string_view encodable_types = "f32, f16, bf16, q8_0, q4_0, q4_k or q6_k";

namespace detail {

inline q8_0_block make_q8_0(const float* w) noexcept {
  code_block b;
  encode_block(*codes_of(dtype::q8_0), w, 32, 0, b);
  q8_0_block out{b.scale[0], {}};
  for (std::size_t j = 0; j < 32; ++j) out.q[j] = static_cast<std::int8_t>(b.codes[j] - 128);
  return out;
}

inline q4_0_block make_q4_0(const float* w) noexcept {
  code_block b;
  encode_block(*codes_of(dtype::q4_0), w, 32, 0, b);
  q4_0_block out{b.scale[0], {}};
  for (std::size_t j = 0; j < 16; ++j) out.q[j] = static_cast<std::uint8_t>(b.codes[j] | b.codes[j + 16] << 4);
  return out;
}

/// scale >= 0 and minimum <= 0 of least squares for 32 weights in 4 bits: from several widths of the range, each with the best line
/// through its own codes.
struct line_fit {
  float scale = 0, minimum = 0;
};
inline line_fit fit_line(const float* w) noexcept {
  constexpr std::size_t n = 32;
  float low = 0, high = 0;
  for (std::size_t j = 0; j < n; ++j) low = (std::min)(low, w[j]), high = (std::max)(high, w[j]);
  line_fit best;
  float least = -1;
  for (int step = 0; step < 8; ++step) {
    line_fit fit{(high - low) / (15 + 0.25f * static_cast<float>(step) - 0.5f), low};
    for (int round = 0; round < 2; ++round) {
      const float inverse = inverse_or_zero(fit.scale);
      float error = 0, q1 = 0, q2 = 0, wq = 0, w1 = 0;
      for (std::size_t j = 0; j < n; ++j) {
        const float q = nearest_code((w[j] - fit.minimum) * inverse, 0, 15), off = w[j] - fit.scale * q - fit.minimum;
        error += off * off, q1 += q, q2 += q * q, wq += w[j] * q, w1 += w[j];
      }
      if (least < 0 || error < least) least = error, best = fit;
      const float det = static_cast<float>(n) * q2 - q1 * q1;
      if (!(det > 0)) break;
      fit = {(static_cast<float>(n) * wq - q1 * w1) / det, (q2 * w1 - q1 * wq) / det};
      if (fit.minimum > 0) fit = {wq / q2, 0};
      if (!(fit.scale > 0)) break;
    }
  }
  return best;
}

inline q4_k_block make_q4_k(const float* w) noexcept {
  q4_k_block out{};
  line_fit fits[8];
  float scale = 0, minimum = 0;
  for (std::size_t s = 0; s < 8; ++s) {
    fits[s] = fit_line(w + s * 32);
    scale = (std::max)(scale, fits[s].scale), minimum = (std::max)(minimum, -fits[s].minimum);
  }
  out.d = f16(scale / 63), out.dmin = f16(minimum / 63);
  const float d = static_cast<float>(out.d), dmin = static_cast<float>(out.dmin), by_d = inverse_or_zero(d), by_dmin = inverse_or_zero(dmin);
  for (std::size_t s = 0; s < 8; ++s) {
    const std::uint8_t sc = nearest_code(fits[s].scale * by_d, 0, 63), m = nearest_code(-fits[s].minimum * by_dmin, 0, 63);
    if (s < 4) {  // the inverse of sub_block_scales()
      out.scales[s] |= sc, out.scales[s + 4] |= m;
    } else {
      out.scales[s + 4] = static_cast<std::uint8_t>((sc & 15) | (m & 15) << 4);
      out.scales[s - 4] = static_cast<std::uint8_t>(out.scales[s - 4] | sc >> 4 << 6), out.scales[s] = static_cast<std::uint8_t>(out.scales[s] | m >> 4 << 6);
    }
    const float inverse = inverse_or_zero(d * sc), offset = dmin * m;
    for (std::size_t j = 0; j < 32; ++j) {
      std::uint8_t& q = out.q[s / 2 * 32 + j];
      q = static_cast<std::uint8_t>(q | nearest_code((w[s * 32 + j] + offset) * inverse, 0, 15) << (s % 2 * 4));
    }
  }
  return out;
}

inline q6_k_block make_q6_k(const float* w) noexcept {
  constexpr code_format f{6, 32, 16, scale_kind::scale};
  q6_k_block out{};
  float scales[16], largest = 0;
  for (std::size_t g = 0; g < 16; ++g) {
    scales[g] = search_fit(f, {w + g * 16, 16}, nullptr).scale;
    largest = (std::max)(largest, std::fabs(scales[g]));
  }
  out.d = f16(largest / 127);
  const float d = static_cast<float>(out.d), by_d = inverse_or_zero(d);
  for (std::size_t g = 0; g < 16; ++g) {
    out.scales[g] = static_cast<std::int8_t>(nearest_code(scales[g] * by_d, 127, 254) - 127);
    const float inverse = inverse_or_zero(d * static_cast<float>(out.scales[g]));
    for (std::size_t j = g * 16; j < g * 16 + 16; ++j) {
      const std::size_t half = j / 128, run = j / 32 % 4, i = j % 32;
      const int code = nearest_code(w[j] * inverse, 32, 63);
      std::uint8_t &low = out.low[half * 64 + run % 2 * 32 + i], &high = out.high[half * 32 + i];
      low = static_cast<std::uint8_t>(low | (code & 15) << (run / 2 * 4)), high = static_cast<std::uint8_t>(high | code >> 4 << (2 * run));
    }
  }
  return out;
}

}  // namespace detail

/// n finite weights as a type that is_encodable(). q8_0 and q4_0 are rounded to nearest (encode_block says how the scales are chosen); for
/// q4_k and q6_k each sub-block's scale (and minimum) is searched for the least squared error.
/// Shapes   w: [n], n a whole number of blocks; to: [n_bytes(type, n)], any alignment
/// Errors   unsupported: another type; invalid_argument: not whole blocks.
/// Cost     one pass; q4_k and q6_k some hundred operations for each weight.
inline void encode_row(dtype type, const float* w, std::size_t n, std::byte* to) {
  if (!is_encodable(type)) fail(errc::unsupported, "quantize", {"expected ", encodable_types, ", got ", dtype_name(type)});
  if (n % block_elements(type) != 0) fail(errc::invalid_argument, "quantize", {"expected a multiple of ", block_elements(type), " weights of ", dtype_name(type), ", got ", n});
  const auto put = [&](auto value) {
    std::memcpy(to, &value, sizeof value);
    to += sizeof value;
  };
  for (std::size_t i = 0; i < n; i += block_elements(type)) {
    switch (type) {
      case dtype::f32: put(w[i]); break;
      case dtype::f16: put(f16(w[i])); break;
      case dtype::bf16: put(bf16(w[i])); break;
      case dtype::q8_0: put(detail::make_q8_0(w + i)); break;
      case dtype::q4_0: put(detail::make_q4_0(w + i)); break;
      case dtype::q4_k: put(detail::make_q4_k(w + i)); break;
      default: put(detail::make_q6_k(w + i)); break;
    }
  }
}

}  // namespace quena::inline QUENA_ABI
