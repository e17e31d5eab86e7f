// SPDX-License-Identifier: MIT
// y = epilogue(w x): products with packed panels, for a few rows of activations (read in place, weights streamed once) and for
// many (activations and sums kept in cache, weights widened to f32 there).

/// Adds the partial sums of one block of `n` columns, for C rows of activations, to sums [C][32]; `first`: there are none yet.
/// At least two vectors of weights at a time, the whole panel where there are registers for it.
template <int C, bool Stream, class T, class Stride>
void add_block(const T* panel, const float* x, Stride x_stride, std::size_t n, float* sums, bool first, std::size_t ahead) noexcept {
  constexpr int V = C <= 2 ? static_cast<int>(panel_rows / lanes) : 2;
  for (std::size_t part = 0; part < panel_rows; part += V * lanes) {
    vec acc[V * C];
    set_zero(acc, std::make_integer_sequence<int, V * C>{});
    run_chains<V, C, Stream>(acc, panel + part, panel_rows, x, x_stride, n, ahead);
    float* s = sums + part;
    for (int c = 0; c < C; ++c, s += panel_rows)
      for (int v = 0; v < V; ++v) {
        float* p = s + static_cast<std::size_t>(v) * lanes;
        const vec a = acc[V * c + v];
        store(p, first ? a : add(load(p), a));
      }
  }
}

/// Bias, residual or activation, and out: one panel's sums [n_rows][32] to y.
inline void finish_panel(const matmul_args& m, std::size_t panel, std::size_t row, std::size_t n_rows, const float* sums) noexcept {
  const std::size_t width = m.mode == epilogue::swiglu || m.mode == epilogue::pair ? panel_rows / 2 : panel_rows, at = panel * width;
  const std::size_t n = m.out_width - at < width ? m.out_width - at : width;
  for (std::size_t i = 0; i < n_rows; ++i, sums += panel_rows) {
    float biased[panel_rows], out[panel_rows];
    const float* s = sums;
    if (m.bias != nullptr) {
      for (std::size_t j = 0; j < panel_rows; j += lanes) store(biased + j, add(load(s + j), load(m.bias + panel * panel_rows + j)));
      s = biased;
    }
    float* y = m.y + static_cast<std::ptrdiff_t>(row + i) * m.y_stride + static_cast<std::ptrdiff_t>(at);
    if (m.mode == epilogue::pair) {
      for (std::size_t j = 0; j < n; ++j) y[j] = s[j], y[m.out_width + j] = s[width + j];
    } else if (n == width) {
      if (m.mode == epilogue::add)
        for (std::size_t j = 0; j < panel_rows; j += lanes) store(y + j, add(load(y + j), load(s + j)));
      else if (m.mode == epilogue::store)
        for (std::size_t j = 0; j < panel_rows; j += lanes) store(y + j, load(s + j));
      else
        for (std::size_t j = 0; j < width; j += lanes) store(y + j, swiglu(load(s + j), load(s + width + j)));
    } else {
      if (m.mode == epilogue::swiglu) {
        for (std::size_t j = 0; j < width; j += lanes) store(out + j, swiglu(load(s + j), load(s + width + j)));
        s = out;
      }
      for (std::size_t j = 0; j < n; ++j) y[j] = m.mode == epilogue::add ? y[j] + s[j] : s[j];
    }
  }
}

/// Panels [first, last) for all rows of x (at most few_rows_limit): the weights are one contiguous stream from memory.
// What the operation itself would take: up to here it is at least as fast as matmul_many.
inline constexpr by_type<std::size_t> few_rows{few_rows_limit, slow_f16 ? 8 : few_rows_limit, few_rows_limit};
template <class T>
inline void matmul_few(const matmul_args& m, std::size_t first, std::size_t last) noexcept {
  alignas(64) float sums[few_rows_limit * panel_rows];
  for (std::size_t p = first; p < last; ++p) {
    const T* panel = static_cast<const T*>(m.weights) + p * m.cols * panel_rows;
    if (m.cols == 0) __builtin_memset(sums, 0, m.n_rows * panel_rows * sizeof(float));
    for (std::size_t k = 0; k < m.cols; k += block_cols) {
      const std::size_t n = m.cols - k < block_cols ? m.cols - k : block_cols;
      for_columns(m.n_rows, [&](auto columns, std::size_t row) QUENA_INLINE_LAMBDA {
        add_block<decltype(columns)::value, true>(panel + k * panel_rows, m.x + static_cast<std::ptrdiff_t>(row) * m.x_stride + k, m.x_stride, n,
                                                   sums + row * panel_rows, k == 0, m.ahead);
      });
    }
    finish_panel(m, p, 0, m.n_rows, sums);
  }
}

/// Panels [first, last) (at most many_panels) for rows [first_row, last_row) (at most many_rows).
template <class T>
inline void matmul_many(const matmul_args& m, std::size_t first, std::size_t last, std::size_t first_row, std::size_t last_row, float* scratch) noexcept {
  const std::size_t n_rows = last_row - first_row;
  float* const x = scratch;                                       // [n_rows][many_x_stride]
  float* const sums = x + many_rows * many_x_stride;              // [panels][n_rows][32]
  float* const wide = sums + many_panels * many_rows * panel_rows;  // [block_cols][32]
  if (m.cols == 0) __builtin_memset(sums, 0, (last - first) * n_rows * panel_rows * sizeof(float));
  for (std::size_t k = 0; k < m.cols; k += block_cols) {
    const std::size_t n = m.cols - k < block_cols ? m.cols - k : block_cols;
    for (std::size_t i = 0; i < n_rows; ++i)
      __builtin_memcpy(x + i * many_x_stride, m.x + static_cast<std::ptrdiff_t>(first_row + i) * m.x_stride + k, n * sizeof(float));
    for (std::size_t p = first; p < last; ++p) {
      const T* block = static_cast<const T*>(m.weights) + (p * m.cols + k) * panel_rows;
      const float* w = wide;
      if constexpr (sizeof(T) == sizeof(float)) {
        w = block;
      } else {
        const auto next = reinterpret_cast<std::uintptr_t>(block) + m.cols * panel_rows * sizeof(T);  // the same block of the next panel
        for (std::size_t j = 0; j < n * panel_rows; j += lanes) {
          if (j % panel_rows == 0) __builtin_prefetch(reinterpret_cast<const void*>(next + j * sizeof(T)));
          store(wide + j, load(block + j));
        }
      }
      float* const s = sums + (p - first) * n_rows * panel_rows;
      for_columns(n_rows, [&](auto columns, std::size_t row) QUENA_INLINE_LAMBDA {
        add_block<decltype(columns)::value, false>(w, x + row * many_x_stride, fixed_stride<many_x_stride>{}, n, s + row * panel_rows, k == 0, 0);
      });
    }
  }
  for (std::size_t p = first; p < last; ++p) finish_panel(m, p, first_row, n_rows, sums + (p - first) * n_rows * panel_rows);
}
