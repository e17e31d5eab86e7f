// SPDX-License-Identifier: MIT
// 16-bit storage types: IEEE 754 binary16 (f16) and bfloat16 (bf16). They store; arithmetic is done in float.
#pragma once

#include <bit>
#include <cstdint>

#include "config.hpp"

namespace quena::inline QUENA_ABI {

namespace detail {

/// float -> bits of a narrower format, to nearest, ties to even, in integers only (no rounding mode, no hardware needed).
constexpr std::uint16_t f16_bits(float value) noexcept {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (u >> 16) & 0x8000u, magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x1ffu));  // quiet NaN
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // 65520 and above round to infinity
  if (magnitude >= 0x38800000u) {                                                   // normal: rebias 127 -> 15, drop 13 bits
    const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
  }
  if (magnitude < 0x33000000u) return static_cast<std::uint16_t>(sign);  // below half of the smallest subnormal, 2^-25
  const std::uint32_t shift = 126u - (magnitude >> 23);                  // subnormal: value = mantissa >> shift, in units of 2^-24
  const std::uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
  const std::uint32_t kept = mantissa >> shift, rest = mantissa & ((1u << shift) - 1u), half = 1u << (shift - 1u);
  return static_cast<std::uint16_t>(sign | (kept + (rest > half || (rest == half && (kept & 1u)) ? 1u : 0u)));
}

constexpr float f16_value(std::uint16_t bits) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16, exponent = (bits >> 10) & 31u, mantissa = bits & 0x3ffu;
  if (exponent == 31u) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0u) return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;  // exact, zero and subnormals alike
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
}

constexpr std::uint16_t bf16_bits(float value) noexcept {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(value);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((u >> 16) | 0x40u);  // NaN stays NaN, quiet
  return static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

constexpr float bf16_value(std::uint16_t bits) noexcept { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

}  // namespace detail

/// IEEE 754 binary16: 1 sign, 5 exponent, 10 mantissa bits. Conversion from float rounds to nearest even; back is exact.
struct f16 {
  std::uint16_t bits = 0;

  f16() = default;
  constexpr explicit f16(float value) noexcept : bits(detail::f16_bits(value)) {}
  [[nodiscard]] constexpr explicit operator float() const noexcept { return detail::f16_value(bits); }
  [[nodiscard]] static constexpr f16 from_bits(std::uint16_t b) noexcept {
    f16 x;
    x.bits = b;
    return x;
  }
};

/// bfloat16: the upper half of a float. Conversion from float rounds to nearest even; back is exact.
struct bf16 {
  std::uint16_t bits = 0;

  bf16() = default;
  constexpr explicit bf16(float value) noexcept : bits(detail::bf16_bits(value)) {}
  [[nodiscard]] constexpr explicit operator float() const noexcept { return detail::bf16_value(bits); }
  [[nodiscard]] static constexpr bf16 from_bits(std::uint16_t b) noexcept {
    bf16 x;
    x.bits = b;
    return x;
  }
};

static_assert(sizeof(f16) == 2 && sizeof(bf16) == 2);

}  // namespace quena::inline QUENA_ABI
