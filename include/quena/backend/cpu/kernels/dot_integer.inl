// SPDX-License-Identifier: MIT
// The innermost loop of codes.inl where there are integer dot products: vectors of 4 codes for each of `lanes` weight rows.

/// Asks for what a stream of weights will need soon.
template <int V>
QUENA_INLINE void prefetch_codes(const std::uint8_t* codes, std::size_t ahead) {
  for (std::size_t line = 0; line < 4 * lanes * V; line += 64) __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(codes) + ahead + line));
}

/// Codes as bytes, [steps][32][4].
template <bool Wide>
struct byte_codes {
  template <int V, int C, int... Js>
  QUENA_INLINE static void run(ivec* acc, const std::uint8_t* codes, const std::int32_t* x, std::size_t step, std::size_t end, std::size_t ahead, std::integer_sequence<int, Js...>) {
    for (; step < end; ++step) {
      const std::uint8_t* const four = codes + step * 4 * panel_rows;
      prefetch_codes<V>(four, ahead);
      ivec w[V];
      for (int v = 0; v < V; ++v) w[v] = load_codes(four + static_cast<std::size_t>(v) * 4 * lanes);
      ((acc[Js] = dot4<Wide>(acc[Js], w[Js % V], broadcast4(x + step * C + Js / V))), ...);
    }
  }
};
/// As packed: byte i of a unit of 8 steps holds a code of step i in its low and one of step i + 4 in its high bits.
struct nibble_codes {
  template <int V, int C, int... Js>
  QUENA_INLINE static void run(ivec* acc, const std::uint8_t* codes, const std::int32_t* x, std::size_t step, std::size_t end, std::size_t ahead, std::integer_sequence<int, Js...>) {
    for (; step < end; step += 8)
      for (std::size_t i = 0; i < 4; ++i) {
        const std::uint8_t* const pairs = codes + step * 2 * panel_rows + i * 4 * panel_rows;
        prefetch_codes<V>(pairs, ahead);
        ivec low[V], high[V];
        for (int v = 0; v < V; ++v) {
          const ivec both = load_codes(pairs + static_cast<std::size_t>(v) * 4 * lanes);
          low[v] = low_nibbles(both), high[v] = high_nibbles(both);
        }
        ((acc[Js] = dot4<false>(acc[Js], low[Js % V], broadcast4(x + (step + i) * C + Js / V))), ...);
        ((acc[Js] = dot4<false>(acc[Js], high[Js % V], broadcast4(x + (step + i + 4) * C + Js / V))), ...);
      }
  }
};

/// Where vector j of a tile is in its sums.
template <int V>
constexpr std::size_t tile_at(int j) noexcept {
  return static_cast<std::size_t>(j / V) * panel_rows + static_cast<std::size_t>(j % V) * lanes;
}

template <class Codes, bool Min, int C, int... Js>
QUENA_INLINE void dot_groups(const std::uint8_t* codes, const code_tile& t, std::integer_sequence<int, Js...> each) {
  constexpr int V = code_vectors;
  constexpr std::size_t width = static_cast<std::size_t>(V) * lanes;
  for (std::size_t part = 0; part < panel_rows; part += width) {
    vec total[V * C];
    ((total[Js] = set1(0.0f)), ...);
    const float *scales = t.scales + part, *minimums = t.minimums + part;
    const std::int32_t* start = t.starts;
    for (std::size_t step = 0; step < t.steps; scales += panel_rows, minimums += panel_rows, start += C) {
      const std::size_t end = t.steps - step < t.group_steps ? t.steps : step + t.group_steps;
      ivec acc[V * C];
      ((acc[Js] = Min ? iset1(0) : iset1(start[Js / V])), ...);
      Codes::template run<V, C>(acc, codes + 4 * part, t.x, step, end, t.ahead, each);
      if constexpr (Min) ((total[Js] = fma(load(minimums + static_cast<std::size_t>(Js % V) * lanes), set1(static_cast<float>(start[Js / V])), total[Js])), ...);
      ((total[Js] = fma(to_float(acc[Js]), load(scales + static_cast<std::size_t>(Js % V) * lanes), total[Js])), ...);
      step = end;
    }
    float* const sums = t.sums + part;
    if (t.first) ((store(sums + tile_at<V>(Js), mul(total[Js], set1(t.x_scales[Js / V])))), ...);
    else ((store(sums + tile_at<V>(Js), fma(total[Js], set1(t.x_scales[Js / V]), load(sums + tile_at<V>(Js))))), ...);
  }
}

/// The codes of one block as dot_tile wants them: where they lie, or unpacked to bytes: codes of 4 bits for many rows, of 5 and 6 always.
struct ready {
  const std::uint8_t* codes;
  bool nibbles;
};
inline ready ready_codes(const code_format& f, const std::byte* codes, std::size_t n_units, std::size_t n_rows, std::size_t ahead, float* unpacked) noexcept {
  const bool nibbles = f.bits == 4 && n_rows <= 3 * static_cast<std::size_t>(code_columns);
  if (f.bits == 8 || nibbles) return {reinterpret_cast<const std::uint8_t*>(codes), nibbles};
  std::uint8_t* const bytes = reinterpret_cast<std::uint8_t*>(unpacked);
  unpack_codes(f.bits, codes, n_units, ahead, bytes);
  return {bytes, false};
}
template <class Codes, bool Min, int C>
void dot_tile_of(const std::uint8_t* codes, const code_tile& t) noexcept {
  dot_groups<Codes, Min, C>(codes, t, std::make_integer_sequence<int, code_vectors * C>{});
}
template <int C>
QUENA_INLINE void dot_tile(const code_format& f, const ready& w, const code_tile& t) {
  if (w.nibbles) f.has_minimums() ? dot_tile_of<nibble_codes, true, C>(w.codes, t) : dot_tile_of<nibble_codes, false, C>(w.codes, t);
  else if (f.has_minimums()) dot_tile_of<byte_codes<false>, true, C>(w.codes, t);
  else if (f.bits == 8) dot_tile_of<byte_codes<signed_bytes>, false, C>(w.codes, t);
  else dot_tile_of<byte_codes<false>, false, C>(w.codes, t);
}
