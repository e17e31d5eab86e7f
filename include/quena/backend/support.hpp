// SPDX-License-Identifier: MIT
// For those who write a backend: the checks of arguments that the concept asks for, and rounding through storage types.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "../core/checked.hpp"
#include "../core/float16.hpp"
#include "../quant/cells.hpp"
#include "../quant/codes.hpp"
#include "backend.hpp"

namespace quena::inline QUENA_ABI {

namespace detail {

[[noreturn]] inline void expected(std::string_view where, const error_message& what, const error_message& got) {
  fail(errc::invalid_argument, where, {"expected ", what, ", got ", got});
}
inline void check_below(std::string_view where, std::string_view what, std::size_t value, std::size_t limit) {
  if (value >= limit) expected(where, {what, " below ", limit}, std::to_string(value));
}

}  // namespace detail

// Each throws quena::error (invalid_argument) and is called before anything is written. rows and cols are those of the matrix.

/// Rows of neighbouring floats, of this shape.
inline void check_rows(std::string_view where, tensor_view<const float, 2> v, std::size_t rows, std::size_t cols) {
  if (v.extent(0) != rows || v.extent(1) != cols) detail::expected(where, detail::shape_text<2>({rows, cols}), detail::shape_text(v.shape()));
  if (v.stride(1) != 1 && v.extent(1) > 1) detail::expected(where, "rows of neighbouring floats", {"a column stride of ", v.stride(1)});
}
inline void check_source(std::string_view where, std::size_t cols, const matrix_source& source) {
  if (source.cols != cols) detail::expected(where, {cols, " columns"}, {source.cols, " in ", source.name});
}
inline void check_embed(std::size_t rows, std::size_t cols, const batch& b, tensor_view<const float, 2> x) {
  check_rows("embed", x, b.n_rows(), cols);
  for (const token_id token : b.tokens)
    if (token < 0 || static_cast<std::size_t>(token) >= rows) detail::expected("embed", {"a token below ", rows}, std::to_string(token));
}
inline void check_rmsnorm(std::size_t size, tensor_view<const float, 2> x, tensor_view<const float, 2> y) {
  check_rows("rmsnorm", x, x.extent(0), size);
  check_rows("rmsnorm", y, x.extent(0), size);
}
inline void check_product(std::string_view where, std::size_t rows, std::size_t cols, tensor_view<const float, 2> x, tensor_view<const float, 2> y) {
  check_rows(where, x, x.extent(0), cols);
  check_rows(where, y, x.extent(0), rows);
}
inline void check_swiglu(tensor_view<const float, 2> gate_up, tensor_view<const float, 2> y) {
  check_rows("swiglu", gate_up, y.extent(0), 2 * y.extent(1));
  check_rows("swiglu", y, y.extent(0), y.extent(1));
}
inline void check_select(tensor_view<const float, 2> x, const batch& b, tensor_view<const float, 2> y) {
  check_rows("select", y, b.selected_rows.size(), x.extent(1));
  for (const std::uint32_t r : b.selected_rows) detail::check_below("select", "a row", r, x.extent(0));
}
inline void check_read(tensor_view<const float, 2> view, std::size_t n_floats) {
  if (n_floats != view.size()) detail::expected("read", {view.size(), " floats"}, std::to_string(n_floats));
}
inline void check_page(std::string_view where, const kv_shape& shape, page_id page) { detail::check_below(where, "a page", page, shape.n_pages); }
inline void check_page(std::string_view where, const kv_shape& shape, page_id page, std::size_t n_bytes) {
  check_page(where, shape, page);
  if (n_bytes != shape.page_bytes()) detail::expected(where, {shape.page_bytes(), " bytes"}, std::to_string(n_bytes));
}

/// Checks the arguments of rope_append and attend against the pool, and returns the number of query heads.
inline std::size_t checked_query_heads(std::string_view where, tensor_view<const float, 2> qkv, const batch& b, std::size_t layer, const kv_shape& shape) {
  const std::size_t all_heads = qkv.extent(1) / shape.head_dim;
  if (all_heads <= 2 * shape.n_kv_heads || all_heads % shape.n_kv_heads != 0)
    detail::expected(where, {"a multiple of ", shape.n_kv_heads, " query heads and ", 2 * shape.n_kv_heads, " for keys and values"},
                     {all_heads, " heads"});
  check_rows(where, qkv, b.n_rows(), all_heads * shape.head_dim);
  detail::check_below(where, "a layer", layer, shape.n_layers);
  if (b.positions.size() != b.n_rows() || b.sequences.size() != b.n_rows())
    detail::expected(where, {"positions and sequences of ", b.n_rows(), " rows"}, {b.positions.size(), " and ", b.sequences.size()});
  for (std::size_t i = 0; i < b.n_rows(); ++i) {
    detail::check_below(where, "a sequence", b.sequences[i], b.page_tables.size());
    const std::span<const page_id> table = b.page_tables[b.sequences[i]];
    const std::size_t n = b.positions[i] / shape.page_size + 1;
    if (table.size() < n)
      detail::expected(where, {n, " pages for position ", b.positions[i], " of row ", i}, std::to_string(table.size()));
    const bool last_of_its_run = i + 1 == b.n_rows() || b.sequences[i + 1] != b.sequences[i];  // which has the pages of the others, too
    for (std::size_t p = last_of_its_run ? 0 : n - 1; p < n; ++p) check_page(where, shape, table[p]);
  }
  return all_heads - 2 * shape.n_kv_heads;
}

/// Checks a pool's shape and returns how many cells it has; the bytes of all its pages are then known to be a number that fits.
/// Errors   invalid_argument; out_of_memory: more bytes than can be counted.
inline std::size_t checked_cells(const kv_shape& shape) {
  if (shape.n_layers == 0 || shape.n_kv_heads == 0 || shape.page_size == 0 || shape.head_dim == 0 || shape.head_dim % 2 != 0)
    detail::expected("make_kv_pool", "layers, KV heads, positions per page, and an even head_dim", {"head_dim ", shape.head_dim});
  if (shape.cell != dtype::f32 && shape.cell != dtype::f16 && shape.cell != dtype::bf16 && shape.cell != dtype::i8)
    detail::expected("make_kv_pool", "cells of f32, f16, bf16 or i8", std::string(dtype_name(shape.cell)));
  std::size_t n = 2 * sizeof(float);
  for (const std::size_t factor : {shape.n_layers, shape.n_kv_heads, shape.page_size, shape.head_dim, shape.n_pages}) n = checked_product(n, factor, "make_kv_pool");
  return n / sizeof(float);
}

/// What is left of a value that was stored as f16 or bf16; any other type: the value.
[[nodiscard]] constexpr float rounded(float value, dtype type) noexcept {
  return type == dtype::f16 ? static_cast<float>(f16(value)) : type == dtype::bf16 ? static_cast<float>(bf16(value)) : value;
}
/// Row r of a source as it is after rounding to a format: what a backend's matrix must hold. A block type that has the format's own kind of codes stays as it is.   out: [source.cols]
inline void rounded_row(const matrix_source& source, std::size_t r, format f, std::span<float> out) {
  source.row_f32(r, out.data());
  const std::optional<code_format> codes = codes_of(f);
  if (!codes) {
    for (float& value : out) value = rounded(value, f == format::f16 ? dtype::f16 : f == format::bf16 ? dtype::bf16 : dtype::f32);
    return;
  }
  if (source.deltas.empty() && codes == codes_of(source.type)) return;  // the file's own codes are kept
  float peak = 0;
  for (const float value : out) peak = (std::max)(peak, std::fabs(value));
  code_block block{};
  for (std::size_t k = 0; k < out.size(); k += code_block_cols) {
    const std::size_t n = (std::min)(code_block_cols, out.size() - k);
    encode_block(*codes, out.data() + k, n, peak, block);
    decode_block(*codes, block, n, out.data() + k);
  }
}

}  // namespace quena::inline QUENA_ABI
