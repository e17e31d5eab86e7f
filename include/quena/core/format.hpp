// SPDX-License-Identifier: MIT
// How a weight matrix is kept in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "config.hpp"

namespace quena::inline QUENA_ABI {

/// Storage format of prepared weight matrices. Norm gains and biases are always f32. The integer formats keep codes with a scale for
/// each group of neighbouring columns of a row, and multiply them with activations that are rounded to 8 bits (quant/codes.hpp).
enum class format : std::uint8_t {
  automatic,  ///< the file's own type
  f32,
  f16,
  bf16,
  int8,      ///< 8 bits, symmetric, groups of 128
  int8_g64,  ///< groups of 64
  int8_g32,
  int8_row,  ///< one scale for each row
  int4,      ///< 4 bits, symmetric, groups of 32
  int4_g64,
  int4_g128,
  int4z,  ///< 4 bits with a zero point, groups of 32
  int4z_g64,
  int4z_g128,
};

namespace detail {

/// In the order of the enumeration.
inline constexpr std::string_view format_names[] = {"auto", "f32", "f16", "bf16", "int8", "int8_g64", "int8_g32", "int8_row", "int4", "int4_g64", "int4_g128", "int4z", "int4z_g64", "int4z_g128"};

}  // namespace detail

[[nodiscard]] constexpr std::string_view format_name(format f) noexcept { return detail::format_names[static_cast<std::size_t>(f)]; }

[[nodiscard]] constexpr std::optional<format> parse_format(std::string_view name) noexcept {
  std::uint8_t i = 0;
  for (const std::string_view known : detail::format_names) {
    if (known == name) return static_cast<format>(i);
    ++i;
  }
  return std::nullopt;
}

}  // namespace quena::inline QUENA_ABI
