// SPDX-License-Identifier: MIT
// Products of sizes that come from files and callers.
#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "error.hpp"

namespace quena::inline QUENA_ABI {

namespace detail {

/// a * b, or nothing if it does not fit.
[[nodiscard]] constexpr std::optional<std::size_t> checked_mul(std::size_t a, std::size_t b) noexcept {
  if (a != 0 && b > (std::numeric_limits<std::size_t>::max)() / a) return std::nullopt;
  return a * b;
}

}  // namespace detail

/// a * b, or quena::error (out_of_memory) if it does not fit.
[[nodiscard]] inline std::size_t checked_product(std::size_t a, std::size_t b, std::string_view where) {
  if (const std::optional<std::size_t> n = detail::checked_mul(a, b)) return *n;
  fail(errc::out_of_memory, where, {"expected a size that memory can have, got ", a, " x ", b});
}

}  // namespace quena::inline QUENA_ABI
