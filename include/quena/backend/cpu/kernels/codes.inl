// SPDX-License-Identifier: MIT
// Products of integer weights (quant/codes.hpp) with activations that are rounded to 8 bits: one scale for each row and 256 columns.
//
// For each output: within a group of columns the products of codes are summed as integers, exactly; the groups of a block of 256
// columns are added in f32 in their order, sum = fma(group, weight scale, sum), then the blocks, total = fma(sum, row scale, total).
// One row or many, direct or unpacked codes: the same operations in the same order.
//
// Rows are taken in tiles of at most code_columns. A tile of C rows lies as [columns / 4][C][4 codes], so that a multiply-add reads
// its broadcast operands from one place.

/// Calls f(std::integral_constant<int, C>, first) for tiles of C rows that cover `n`, largest first.
template <class F>
QUENA_INLINE void for_tiles(std::size_t n, F f) {
  std::size_t i = 0;
  for (; n - i >= static_cast<std::size_t>(code_columns); i += static_cast<std::size_t>(code_columns)) f(std::integral_constant<int, code_columns>{}, i);
  if constexpr (code_columns > 4)
    if (n - i >= 4) f(std::integral_constant<int, 4>{}, i), i += 4;
  if (n - i >= 2) f(std::integral_constant<int, 2>{}, i), i += 2;
  if (n - i >= 1) f(std::integral_constant<int, 1>{}, i);
}

/// Rounds `n` <= 256 activations to codes[256] (the rest zero) and returns their scale. NaN if one is not finite.
inline float round_activations(const float* x, std::size_t n, std::int8_t* codes) {
  const float largest = largest_magnitude(x, n), inverse = 127.0f / largest;
  __builtin_memset(codes, 0, code_block_cols);
  if (largest != largest) return largest;
  if (!(inverse <= 3.402823466e38f)) return 0;  // all zero, or so small that the scale would be no normal number
  const vec factor = set1(inverse);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) store_bytes(codes + i, round(mul(load(x + i), factor)));
  if (i < n) store_bytes(codes + i, round(mul(load_first(x + i, n - i), factor)));
  return largest / 127.0f;
}

/// Rounds rows [first_row, last_row) of x, where both are multiples of code_rows_step or the end.
inline void quantize(const code_args& a, std::size_t first_row, std::size_t last_row) noexcept {
  const std::size_t n_steps = a.n_steps(), n_blocks = a.n_blocks(), n_groups = a.n_groups(), group_cols = a.format.group;
  // What the sum of a group starts from: codes are stored without a sign. With minimums it is the sum of the activations itself.
  const std::int32_t factor = a.format.has_minimums() ? 1 : signed_bytes && a.format.bits == 8 ? 0 : -std::int32_t{a.format.offset};
  for_tiles(last_row - first_row, [&](auto columns, std::size_t tile) {
    constexpr std::size_t C = decltype(columns)::value;
    const std::size_t row = first_row + tile;
    for (std::size_t c = 0; c < C; ++c) {
      std::int32_t* const codes = a.x_codes + row * n_steps + c;
      for (std::size_t b = 0; b < n_blocks; ++b) {
        alignas(64) std::int8_t bytes[code_block_cols];
        const std::size_t k = b * code_block_cols, n = a.product.cols - k < code_block_cols ? a.product.cols - k : code_block_cols;
        a.x_scales[row * n_blocks + b * C + c] = round_activations(a.product.x + static_cast<std::ptrdiff_t>(row + c) * a.product.x_stride + k, n, bytes);
        const std::size_t padded = (n + 31) / 32 * 32;
        for (std::size_t step = 0; step < padded / 4; ++step) __builtin_memcpy(codes + (k / 4 + step) * C, bytes + 4 * step, 4);
        for (std::size_t j = 0; j < padded; j += group_cols) {
          std::int32_t sum = 0;
          for (std::size_t end = j + group_cols < padded ? j + group_cols : padded, i = j; i < end; i += 16)
            for (std::size_t l = 0; l < 16; ++l) sum += bytes[i + l];
          a.x_starts[row * n_groups + (k + j) / group_cols * C + c] = factor * sum;
        }
      }
    }
  });
}

/// The scales of a block as f32 [groups][32], and the minimums of formats that have them.
inline void read_scales(const code_format& f, const std::byte* from, std::size_t n_groups, float* scales, float* minimums) noexcept {
  const std::size_t n = n_groups * panel_rows;
  const f16* const halves = reinterpret_cast<const f16*>(from);
  const bool sub_min = f.scales == scale_kind::sub_scale_min;
  if (sub_min || f.scales == scale_kind::sub_scale) {
    const std::byte* const bytes = from + (sub_min ? 2 : 1) * panel_rows * sizeof(f16);
    for (std::size_t part = 0; part < panel_rows; part += lanes) {
      const vec d = load(halves + part), dmin = sub_min ? sub(set1(0.0f), load(halves + panel_rows + part)) : d;
      for (std::size_t j = part; j < n; j += panel_rows) {
        if (sub_min) {
          store(scales + j, mul(d, load(reinterpret_cast<const std::uint8_t*>(bytes + j))));
          store(minimums + j, mul(dmin, load(reinterpret_cast<const std::uint8_t*>(bytes + n + j))));
        } else {
          store(scales + j, mul(d, load(reinterpret_cast<const std::int8_t*>(bytes + j))));
        }
      }
    }
    return;
  }
  for (std::size_t j = 0; j < n; j += lanes) {
    const vec scale = load(halves + j);
    store(scales + j, scale);
    if (f.scales == scale_kind::scale_min) store(minimums + j, load(halves + n + j));
    if (f.scales == scale_kind::scale_zero) store(minimums + j, mul(sub(set1(0.0f), scale), load(reinterpret_cast<const std::uint8_t*>(halves + n) + j)));
  }
}

/// Panels [first, last) for rows [first_row, last_row) of x, at most code_rows of them.
inline void matmul_codes(const code_args& a, std::size_t first, std::size_t last, std::size_t first_row, std::size_t last_row, float* scratch) noexcept {
  const code_format& f = a.format;
  const std::size_t n_rows = last_row - first_row, n_steps = a.n_steps(), n_blocks = a.n_blocks(), n_groups = a.n_groups();
  float* const sums = scratch;                                 // [rows][32]
  float* const scales = sums + code_rows * panel_rows;         // [16][32]
  float* const minimums = scales + 16 * panel_rows;            // [8][32]
  float* const unpacked = minimums + 8 * panel_rows;           // [64][32][4] of bytes or floats
  if (n_blocks == 0) __builtin_memset(sums, 0, n_rows * panel_rows * sizeof(float));
  for (std::size_t p = first; p < last; ++p) {
    const std::byte* block = static_cast<const std::byte*>(a.product.weights) + p * a.panel_bytes;
    for (std::size_t b = 0; b < n_blocks; ++b) {
      const std::size_t left = n_steps - b * (code_block_cols / 4), steps = left < code_block_cols / 4 ? left : code_block_cols / 4;
      const std::size_t groups = (4 * steps + f.group - 1) / f.group, group = b * code_block_cols / f.group;
      const std::byte* const codes = block + scale_bytes(f, groups);
      read_scales(f, block, groups, scales, minimums);
      const auto weights = ready_codes(f, codes, steps / 8, n_rows, a.product.ahead, unpacked);
      for_tiles(n_rows, [&](auto columns, std::size_t tile) QUENA_INLINE_LAMBDA {
        constexpr std::size_t C = decltype(columns)::value;
        const std::size_t row = first_row + tile;
        const code_tile t{a.x_codes + row * n_steps + b * (code_block_cols / 4) * C, a.x_starts + row * n_groups + group * C, a.x_scales + row * n_blocks + b * C,
                          scales, minimums, steps, f.group / 4u, sums + tile * panel_rows, b == 0, a.product.ahead};
        dot_tile<static_cast<int>(C)>(f, weights, t);
      });
      block = codes + steps / 8 * unit_bytes(f.bits);
    }
    finish_panel(a.product, p, first_row, n_rows, sums);
  }
}
