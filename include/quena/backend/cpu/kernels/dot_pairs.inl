// SPDX-License-Identifier: MIT
// Products of codes where the instruction set adds pairs of them in 16 bits (AVX2). See dot_integer.inl.
//
// Sums stay in 16 bits for as many steps as can't overflow: a pair of products of codes below 2^n is at most 2 * (2^n - 1) * 127, so 8 steps
// of 4-bit codes (30480) or 2 of 6-bit codes (32004). Products of 8-bit codes take a multiplication more each; widening both sides to 16 bits
// once for many rows was measured to be no faster (Zen 3), and so were two products of 4-bit halves.

/// Calls f(std::integral_constant<std::size_t, i>) for i < N, written out: with a loop g++ 12 keeps its pointers in memory.
template <std::size_t... Is, class F>
QUENA_INLINE void unrolled(std::index_sequence<Is...>, F f) {
  (f(std::integral_constant<std::size_t, Is>{}), ...);
}

/// Codes as bytes, [steps][32][4], below 2^Bits.
template <int Bits>
struct byte_codes {
  static constexpr int vectors = 2, V = vectors;
  static constexpr std::size_t in_16_bits = Bits == 4 ? 8 : 2;  // steps; a group is a whole number of 8 of them, or of 4 (Q6_K)
  template <int C, int... Js>
  QUENA_INLINE static void run(ivec* acc, const std::uint8_t* codes, const std::int32_t* x, std::size_t step, std::size_t end, std::size_t ahead, std::integer_sequence<int, Js...>) {
    for (codes += step * 4 * panel_rows, x += step * C; step < end; step += in_16_bits, codes += in_16_bits * 4 * panel_rows, x += in_16_bits * C) {
      ivec pairs[V * C];
      ((pairs[Js] = iset1(0)), ...);
      unrolled(std::make_index_sequence<in_16_bits>{}, [&](auto i) QUENA_INLINE_LAMBDA {
        const std::uint8_t* const four = codes + i * 4 * panel_rows;
        prefetch<4 * lanes * V>(four, ahead);
        ivec w[V];
        for (int v = 0; v < V; ++v) w[v] = load_codes(four + static_cast<std::size_t>(v) * 4 * lanes);
        ((pairs[Js] = add_products(pairs[Js], w[Js % V], broadcast4(x + i * C + Js / V))), ...);
      });
      ((acc[Js] = add_halves(acc[Js], pairs[Js])), ...);
    }
  }
};
template <>
struct byte_codes<8> {
  static constexpr int vectors = 2, V = vectors;
  template <int C, int... Js>
  QUENA_INLINE static void run(ivec* acc, const std::uint8_t* codes, const std::int32_t* x, std::size_t step, std::size_t end, std::size_t ahead, std::integer_sequence<int, Js...>) {
    for (codes += step * 4 * panel_rows, x += step * C; step < end; step += 4, codes += 16 * panel_rows, x += 4 * C)
      unrolled(std::make_index_sequence<4>{}, [&](auto i) QUENA_INLINE_LAMBDA {
        const std::uint8_t* const four = codes + i * 4 * panel_rows;
        prefetch<4 * lanes * V>(four, ahead);
        ivec w[V], magnitude[V];
        for (int v = 0; v < V; ++v) w[v] = less_offset(load_codes(four + static_cast<std::size_t>(v) * 4 * lanes)), magnitude[v] = magnitudes(w[v]);
        ((acc[Js] = add_signed_products(acc[Js], w[Js % V], magnitude[Js % V], broadcast4(x + i * C + Js / V))), ...);
      });
  }
};
/// As packed: byte i of a unit of 8 steps holds a code of step i in its low and one of step i + 4 in its high bits.
struct nibble_codes {
  static constexpr int vectors = 2, V = vectors;
  template <int C, int... Js>
  QUENA_INLINE static void run(ivec* acc, const std::uint8_t* codes, const std::int32_t* x, std::size_t step, std::size_t end, std::size_t ahead, std::integer_sequence<int, Js...>) {
    for (codes += step * 2 * panel_rows, x += step * C; step < end; step += 8, codes += 16 * panel_rows, x += 8 * C) {
      ivec pairs[V * C];
      ((pairs[Js] = iset1(0)), ...);
      unrolled(std::make_index_sequence<4>{}, [&](auto i) QUENA_INLINE_LAMBDA {
        const std::uint8_t* const two_fours = codes + i * 4 * panel_rows;
        prefetch<4 * lanes * V>(two_fours, ahead);
        ivec low[V], high[V];
        for (int v = 0; v < V; ++v) {
          const ivec both = load_codes(two_fours + static_cast<std::size_t>(v) * 4 * lanes);
          low[v] = low_nibbles(both), high[v] = high_nibbles(both);
        }
        ((pairs[Js] = add_products(pairs[Js], low[Js % V], broadcast4(x + i * C + Js / V))), ...);
        ((pairs[Js] = add_products(pairs[Js], high[Js % V], broadcast4(x + (i + 4) * C + Js / V))), ...);
      });
      ((acc[Js] = add_halves(acc[Js], pairs[Js])), ...);
    }
  }
};

template <int C>
QUENA_INLINE void dot_tile(const code_format& f, const ready& w, const code_tile& t) {
  if (w.nibbles) dot_tile_of<nibble_codes, C>(f, w.codes, t);
  else if (f.bits == 8) dot_tile_of<byte_codes<8>, false, C>(w.codes, t);
  else if (f.bits == 4) dot_tile_of<byte_codes<4>, C>(f, w.codes, t);
  else dot_tile_of<byte_codes<6>, C>(f, w.codes, t);
}
