// SPDX-License-Identifier: MIT
// How a weight matrix is kept in memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "config.hpp"

namespace quena::inline QUENA_ABI {

/// Storage format of prepared weight matrices. Norm gains and biases are always f32.
enum class format : std::uint8_t {
  automatic,  ///< the file's own type where it is f32, f16 or bf16; f16 for block-quantised files
  f32,
  f16,
  bf16,
};

[[nodiscard]] constexpr std::string_view format_name(format f) noexcept {
  switch (f) {
    case format::automatic: return "auto";
    case format::f32: return "f32";
    case format::f16: return "f16";
    case format::bf16: return "bf16";
  }
  return "unknown";
}

[[nodiscard]] constexpr std::optional<format> parse_format(std::string_view name) noexcept {
  for (const format f : {format::automatic, format::f32, format::f16, format::bf16})
    if (format_name(f) == name) return f;
  return std::nullopt;
}

}  // namespace quena::inline QUENA_ABI
