// SPDX-License-Identifier: MIT
// Element types of tensors in files and in memory: numbers one by one, and GGUF's blocks of quantised numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "checked.hpp"
#include "error.hpp"

namespace quena::inline QUENA_ABI {

/// What a tensor's bytes mean. The types from q8_0 on are stored in blocks that share a scale (quant/gguf_blocks.hpp).
enum class dtype : std::uint8_t { f32, f16, bf16, f64, i8, u8, i16, u16, i32, u32, i64, u64, boolean, q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k, q6_k };

inline constexpr std::size_t n_dtypes = 21;

namespace detail {

struct dtype_layout {
  std::string_view name;       ///< as in llm files, lower case
  std::uint16_t elements = 1;  ///< per block
  std::uint16_t bytes = 0;     ///< per block
};

/// In the order of the enumeration.
inline constexpr dtype_layout dtype_table[n_dtypes] = {
    {"f32", 1, 4},    {"f16", 1, 2},    {"bf16", 1, 2},   {"f64", 1, 8},    {"i8", 1, 1},       {"u8", 1, 1},       {"i16", 1, 2},
    {"u16", 1, 2},    {"i32", 1, 4},    {"u32", 1, 4},    {"i64", 1, 8},    {"u64", 1, 8},      {"bool", 1, 1},     {"q8_0", 32, 34},
    {"q4_0", 32, 18}, {"q4_1", 32, 20}, {"q5_0", 32, 22}, {"q5_1", 32, 24}, {"q4_k", 256, 144}, {"q5_k", 256, 176}, {"q6_k", 256, 210}};

}  // namespace detail

[[nodiscard]] constexpr std::string_view dtype_name(dtype d) noexcept { return detail::dtype_table[static_cast<std::size_t>(d)].name; }

/// Elements that are stored together: 1, or 32 or 256 for block types. A row must be a whole number of blocks.
[[nodiscard]] constexpr std::size_t block_elements(dtype d) noexcept { return detail::dtype_table[static_cast<std::size_t>(d)].elements; }

/// Bytes of one block (of one element, for the plain types).
[[nodiscard]] constexpr std::size_t block_bytes(dtype d) noexcept { return detail::dtype_table[static_cast<std::size_t>(d)].bytes; }

[[nodiscard]] constexpr bool is_block_type(dtype d) noexcept { return block_elements(d) > 1; }

/// The types that weights may have: dequantize_row() reads them.
[[nodiscard]] constexpr bool is_weight_type(dtype d) noexcept { return d <= dtype::bf16 || is_block_type(d); }

/// Bytes of `n_elements`, or nothing if they are not whole blocks or the product does not fit.
[[nodiscard]] constexpr std::optional<std::size_t> checked_n_bytes(dtype d, std::size_t n_elements) noexcept {
  if (n_elements % block_elements(d) != 0) return std::nullopt;
  return detail::checked_mul(n_elements / block_elements(d), block_bytes(d));
}

/// Bytes of `n_elements` of type `d`.
/// Errors   invalid_argument: not a whole number of blocks, or more bytes than can be counted.
[[nodiscard]] inline std::size_t n_bytes(dtype d, std::size_t n_elements) {
  const std::optional<std::size_t> n = checked_n_bytes(d, n_elements);
  if (!n)
    fail(errc::invalid_argument, "dtype", {"expected a multiple of ", block_elements(d), " elements of ", dtype_name(d), " that fits in memory, got ", n_elements});
  return *n;
}

}  // namespace quena::inline QUENA_ABI
