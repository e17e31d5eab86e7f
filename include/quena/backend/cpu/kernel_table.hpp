// SPDX-License-Identifier: MIT
// What a set of kernels for one instruction set offers, and the plain structs that its functions take. No code here.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../../core/dtype.hpp"
#include "../../quant/codes.hpp"
#include "cpuid.hpp"

namespace quena::inline QUENA_ABI {
namespace detail {

/// Output rows of a weight matrix that lie side by side: a panel holds 32 rows as [cols][32], and a matrix its panels one after
/// the other, the last one filled up with zeros. Vectors of every width divide 32, so one layout serves every instruction set,
/// and a product walks it in one contiguous stream whether it has one row of activations or many.
inline constexpr std::size_t panel_rows = 32;

/// Every output is the sum, in order, of the partial sums of blocks of this many columns, and each partial sum is one chain of
/// multiply-adds in the order of the columns: in the kernels for one row as in those for many.
inline constexpr std::size_t block_cols = 256;

/// Positions of a sequence that are attended to as one block, counted from 0, whatever the page size. Partial results of the
/// chunks are merged in order.
inline constexpr std::size_t chunk_positions = 256;

/// Keys are kept in blocks of 16 positions, [head_dim][16], values as [16][head_dim]. A page is a whole number of them.
inline constexpr std::size_t block_positions = 16;
inline constexpr std::size_t chunk_blocks = chunk_positions / block_positions;

enum class epilogue : std::uint8_t {
  store,   ///< y = sum + bias
  add,     ///< y += sum + bias
  swiglu,  ///< y = silu(g) * u; a panel holds 16 rows of g, then the same 16 of u
  pair,    ///< of such a panel, y = g, and out_width further on u
};

/// y[i, r] = epilogue(sum_k w[r, k] * x[i, k]) for some panels of w and rows i.
struct matmul_args {
  const void* weights;      ///< panels of f32, f16 or bf16
  const float* bias;        ///< [n_panels * 32], or null
  std::size_t cols;         ///< of w
  std::size_t out_width;    ///< columns of y
  const float* x;           ///< [n_rows, cols]
  std::ptrdiff_t x_stride;  ///< floats from row to row
  std::size_t n_rows;
  float* y;  ///< [n_rows, out_width]
  std::ptrdiff_t y_stride;
  epilogue mode;
  std::size_t ahead;  ///< stream_ahead()
};

/// Rows of activations in one block of a many-row product, panels in one of its groups, and the floats of scratch it needs:
/// copies of the activations [rows][block_cols + 16], sums [panels][rows][32] and a widened piece of weights. Sized so that all
/// of it stays in a 1 MiB second-level cache.
inline constexpr std::size_t many_rows = 240, many_panels = 8;
inline constexpr std::size_t many_x_stride = block_cols + 16;
inline constexpr std::size_t many_scratch = many_rows * many_x_stride + many_panels * many_rows * panel_rows + block_cols * panel_rows;

/// A product with integer weights. The activations are rounded by quantize() first; rows of x come in tiles that the kernels choose.
struct code_args {
  matmul_args product;  ///< weights: panels as in code_layout.hpp
  code_format format;
  std::size_t panel_bytes;
  std::int32_t* x_codes;   ///< [n_rows][n_steps()], four codes each
  float* x_scales;         ///< [n_rows][n_blocks()]
  std::int32_t* x_starts;  ///< [n_rows][n_groups()]: what the integer sums of the groups start from

  [[nodiscard]] constexpr std::size_t n_steps() const noexcept { return (product.cols + 31) / 32 * 8; }
  [[nodiscard]] constexpr std::size_t n_blocks() const noexcept { return (product.cols + code_block_cols - 1) / code_block_cols; }
  [[nodiscard]] constexpr std::size_t n_groups() const noexcept { return (4 * n_steps() + format.group - 1) / format.group; }
};

/// C rows of rounded activations and one block of a panel: what the innermost loop works on.
struct code_tile {
  const std::int32_t* x;           ///< [steps][C], four codes each
  const std::int32_t* starts;      ///< [groups][C]
  const float* x_scales;           ///< [C]
  const float *scales, *minimums;  ///< [groups][32]
  std::size_t steps, group_steps;
  float* sums;  ///< [C][32]
  bool first;   ///< the block is the panel's first: nothing to add to
  std::size_t ahead;  ///< stream_ahead()
};

/// Rows in one call of matmul_codes, a whole number of tiles of every kernel; quantize is called for multiples of code_rows_step rows.
/// And the floats of scratch: sums [rows][32], scales, minimums and the codes of a block, unpacked.
inline constexpr std::size_t code_rows = 240, code_rows_step = 12;
inline constexpr std::size_t code_scratch = code_rows * panel_rows + 24 * panel_rows + code_block_cols * panel_rows;
/// Bytes that quantize() needs for each row of so many columns.
constexpr std::size_t code_row_bytes(std::size_t cols) noexcept { return (cols + 31) / 32 * 32 + (cols + 255) / 256 * sizeof(float) + (cols + 31) / 32 * 2 * sizeof(std::int32_t); }

/// The query heads of some rows of one sequence that share one KV head: "lanes" (row, head) in row-major order.
struct attend_args {
  const float* q;  ///< row i, head g at q + i * q_stride + g * head_dim
  std::ptrdiff_t q_stride;
  std::size_t n_rows, group, head_dim;
  const std::uint32_t* positions;  ///< [n_rows], ascending: row i attends to 0 … positions[i]
  const std::byte* pages;          ///< of this layer and head: page p at pages + p * page_bytes, keys first, as in kv_pool.hpp
  std::size_t page_bytes, value_offset, page_size;
  const std::uint32_t* page_table;
  float* scratch;   ///< attend_scratch() floats
  float* partials;  ///< null, or where the result of each chunk goes: [n_chunks][n_rows * group][head_dim + 2] (max, sum, values)
  float* out;       ///< if partials is null: row i, head g at out + i * out_stride + g * head_dim
  std::ptrdiff_t out_stride;
};

/// Rows times heads of one attend call; more rows are cut into several calls.
inline constexpr std::size_t attend_lanes = 128;

/// Floats of scratch for attend: queries, keys, values, scores, sums of one chunk and running sums.
constexpr std::size_t attend_scratch(std::size_t head_dim) noexcept {
  const std::size_t padded = (head_dim + 15) / 16 * 16 + 16;
  return attend_lanes * padded + 2 * chunk_positions * padded + 8 * chunk_positions + 8 * padded + attend_lanes * (padded + 2) + 64;
}

/// Kernels that exist for each floating-point type, in the order f32, f16, bf16 of dtype.
template <class Function>
struct by_type {
  Function f32, f16, bf16;
  [[nodiscard]] constexpr Function operator[](dtype t) const noexcept { return t == dtype::f16 ? f16 : t == dtype::bf16 ? bf16 : f32; }
};

/// And for each cell type.
template <class Function>
struct by_cell {
  by_type<Function> floats;
  Function i8;
  [[nodiscard]] constexpr Function operator[](dtype t) const noexcept { return t == dtype::i8 ? i8 : floats[t]; }
};

/// Rows that matmul_few takes at most.
inline constexpr std::size_t few_rows_limit = 64;

struct kernel_table {
  isa level;
  std::size_t lanes;              ///< floats in a vector
  by_type<std::size_t> few_rows;  ///< up to so many rows matmul_few is the faster one

  by_type<void (*)(const matmul_args&, std::size_t first_panel, std::size_t last_panel) noexcept> matmul_few;
  by_type<void (*)(const matmul_args&, std::size_t first_panel, std::size_t last_panel, std::size_t first_row, std::size_t last_row,
                   float* scratch) noexcept> matmul_many;
  void (*quantize)(const code_args&, std::size_t first_row, std::size_t last_row) noexcept;
  void (*matmul_codes)(const code_args&, std::size_t first_panel, std::size_t last_panel, std::size_t first_row, std::size_t last_row, float* scratch) noexcept;
  by_cell<void (*)(const attend_args&, std::size_t first_chunk, std::size_t last_chunk) noexcept> attend;
  void (*merge)(const float* partials, std::size_t n_chunks, std::size_t chunk_stride, std::size_t head_dim, float* out) noexcept;
  /// One key (or value) into the cache: element d at to[step * d]. Keys lie in blocks of 16 positions: step 16. Returns the scale of i8.
  by_cell<float (*)(const float* x, std::size_t head_dim, void* to, std::size_t step) noexcept> append;
  void (*rotate)(float* heads, std::size_t n_heads, std::size_t head_dim, const float* cos, const float* sin) noexcept;
  void (*rmsnorm)(const float* x, const float* gain, float eps, std::size_t n, float* y) noexcept;
  void (*softmax)(float* x, std::size_t n) noexcept;
  void (*exp)(const float* x, float* y, std::size_t n) noexcept;
  void (*swiglu)(const float* gate, const float* up, float* y, std::size_t n) noexcept;
  by_type<void (*)(const float* x, void* y, std::size_t n) noexcept> narrow;
  by_type<void (*)(const void* x, float* y, std::size_t n) noexcept> widen;
};

}  // namespace detail
}  // namespace quena::inline QUENA_ABI
