// SPDX-License-Identifier: MIT
// Products of codes, four at a time, where one instruction adds them to 32-bit sums (VNNI). See dot_integer.inl.

/// Codes as bytes, [steps][32][4], for codes of any size.
struct byte_codes {
  static constexpr int vectors = 2, V = vectors;
  template <int C, int... Js>
  QUENA_INLINE static void run(ivec* acc, const std::uint8_t* codes, const std::int32_t* x, std::size_t step, std::size_t end, std::size_t ahead, std::integer_sequence<int, Js...>) {
    for (; step < end; ++step) {
      const std::uint8_t* const four = codes + step * 4 * panel_rows;
      prefetch<4 * lanes * V>(four, ahead);
      ivec w[V];
      for (int v = 0; v < V; ++v) w[v] = load_codes(four + static_cast<std::size_t>(v) * 4 * lanes);
      ((acc[Js] = dot4(acc[Js], w[Js % V], broadcast4(x + step * C + Js / V))), ...);
    }
  }
};
/// As packed: byte i of a unit of 8 steps holds a code of step i in its low and one of step i + 4 in its high bits.
struct nibble_codes {
  static constexpr int vectors = 2, V = vectors;
  template <int C, int... Js>
  QUENA_INLINE static void run(ivec* acc, const std::uint8_t* codes, const std::int32_t* x, std::size_t step, std::size_t end, std::size_t ahead, std::integer_sequence<int, Js...>) {
    for (; step < end; step += 8)
      for (std::size_t i = 0; i < 4; ++i) {
        const std::uint8_t* const pairs = codes + step * 2 * panel_rows + i * 4 * panel_rows;
        prefetch<4 * lanes * V>(pairs, ahead);
        ivec low[V], high[V];
        for (int v = 0; v < V; ++v) {
          const ivec both = load_codes(pairs + static_cast<std::size_t>(v) * 4 * lanes);
          low[v] = low_nibbles(both), high[v] = high_nibbles(both);
        }
        ((acc[Js] = dot4(acc[Js], low[Js % V], broadcast4(x + (step + i) * C + Js / V))), ...);
        ((acc[Js] = dot4(acc[Js], high[Js % V], broadcast4(x + (step + i + 4) * C + Js / V))), ...);
      }
  }
};

template <int C>
QUENA_INLINE void dot_tile(const code_format& f, const ready& w, const code_tile& t) {
  if (w.nibbles) dot_tile_of<nibble_codes, C>(f, w.codes, t);
  else if (f.bits == 8) dot_tile_of<byte_codes, false, C>(w.codes, t);
  else dot_tile_of<byte_codes, C>(f, w.codes, t);
}
