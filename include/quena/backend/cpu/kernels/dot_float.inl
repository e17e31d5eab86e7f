// SPDX-License-Identifier: MIT
// The innermost loop of codes.inl without integer dot products: codes as floats. Sums of a group stay below 2^24, so they are as
// exact as integers, and in any order.

/// The codes of one block as signed floats, [columns][32].
inline const float* ready_codes(const code_format& f, const std::byte* codes, std::size_t n_units, std::size_t, std::size_t ahead, float* unpacked) noexcept {
  alignas(64) std::uint8_t bytes[code_block_cols * panel_rows];
  if (f.bits == 8) __builtin_memcpy(bytes, codes, n_units * unit_bytes(8));
  else unpack_codes(f.bits, codes, n_units, ahead, bytes);
  for (std::size_t step = 0; step < n_units * 8; ++step)
    for (std::size_t r = 0; r < panel_rows; ++r)
      for (std::size_t j = 0; j < 4; ++j) unpacked[(4 * step + j) * panel_rows + r] = static_cast<float>(bytes[(step * panel_rows + r) * 4 + j] - f.offset);
  return unpacked;
}

template <int C>
void dot_tile(const code_format& f, const float* weights, const code_tile& t) noexcept {
  constexpr int V = 2;
  float x[C * code_block_cols];
  for (std::size_t step = 0; step < t.steps; ++step)
    for (std::size_t c = 0; c < C; ++c) {
      std::int8_t four[4];
      __builtin_memcpy(four, t.x + step * C + c, 4);
      for (std::size_t j = 0; j < 4; ++j) x[c * code_block_cols + 4 * step + j] = static_cast<float>(four[j]);
    }
  for (std::size_t part = 0; part < panel_rows; part += V * lanes) {
    vec total[V * C];
    set_zero(total, std::make_integer_sequence<int, V * C>{});
    std::size_t g = 0;
    for (std::size_t step = 0; step < t.steps; ++g) {
      const std::size_t end = t.steps - step < t.group_steps ? t.steps : step + t.group_steps;
      vec acc[V * C];
      set_zero(acc, std::make_integer_sequence<int, V * C>{});
      run_chains<V, C>(acc, weights + 4 * step * panel_rows + part, panel_rows, x + 4 * step, fixed_stride<code_block_cols>{}, 4 * (end - step));
      for (int j = 0; j < V * C; ++j) {
        const std::size_t at = g * panel_rows + part + static_cast<std::size_t>(j % V) * lanes;
        if (f.has_minimums()) total[j] = fma(load(t.minimums + at), set1(static_cast<float>(t.starts[g * C + static_cast<std::size_t>(j / V)])), total[j]);
        total[j] = fma(acc[j], load(t.scales + at), total[j]);
      }
      step = end;
    }
    for (int c = 0; c < C; ++c)
      for (int v = 0; v < V; ++v) {
        float* const sum = t.sums + static_cast<std::size_t>(c) * panel_rows + part + static_cast<std::size_t>(v) * lanes;
        store(sum, fma(total[c * V + v], set1(t.x_scales[c]), t.first ? set1(0.0f) : load(sum)));
      }
  }
}
