// SPDX-License-Identifier: MIT
// The innermost loop of codes.inl where there are integer dot products: vectors of 4 codes for each of `lanes` weight rows. How they are
// multiplied is in dot_quads.inl or dot_pairs.inl: Codes::run<C>(acc, …) adds the products of some steps to acc, Codes::vectors for each row of x.

/// Where vector j of a tile is in its sums.
template <int V>
constexpr std::size_t tile_at(int j) noexcept {
  return static_cast<std::size_t>(j / V) * panel_rows + static_cast<std::size_t>(j % V) * lanes;
}

template <class Codes, bool Min, int C, int... Js>
QUENA_INLINE void dot_groups(const std::uint8_t* codes, const code_tile& t, std::integer_sequence<int, Js...> each) {
  constexpr int V = Codes::vectors;
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
      Codes::template run<C>(acc, codes + 4 * part, t.x, step, end, t.ahead, each);
      if constexpr (Min) ((total[Js] = fma(load(minimums + static_cast<std::size_t>(Js % V) * lanes), set1(static_cast<float>(start[Js / V])), total[Js])), ...);
      ((total[Js] = fma(to_float(acc[Js]), load(scales + static_cast<std::size_t>(Js % V) * lanes), total[Js])), ...);
      step = end;
    }
    float* const sums = t.sums + part;
    if (t.first) ((store(sums + tile_at<V>(Js), mul(total[Js], set1(t.x_scales[Js / V])))), ...);
    else ((store(sums + tile_at<V>(Js), fma(total[Js], set1(t.x_scales[Js / V]), load(sums + tile_at<V>(Js))))), ...);
  }
}
template <class Codes, bool Min, int C>
void dot_tile_of(const std::uint8_t* codes, const code_tile& t) noexcept {
  dot_groups<Codes, Min, C>(codes, t, std::make_integer_sequence<int, Codes::vectors * C>{});
}
template <class Codes, int C>
QUENA_INLINE void dot_tile_of(const code_format& f, const std::uint8_t* codes, const code_tile& t) {
  f.has_minimums() ? dot_tile_of<Codes, true, C>(codes, t) : dot_tile_of<Codes, false, C>(codes, t);
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
