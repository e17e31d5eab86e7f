// SPDX-License-Identifier: MIT
// Attention of some rows of one sequence over its pages, chunk by chunk (flash attention: Dao et al. 2022, arXiv:2205.14135;
// Milakov & Gimelshein 2018, arXiv:1805.02867). For each (row, head) the order of operations depends on its position alone.

inline constexpr int attend_columns = max_columns < 8 ? 4 : 8;

/// As for_columns, with fewer sizes.
template <class F>
QUENA_INLINE void for_lanes(std::size_t n, F f) {
  std::size_t i = 0;
  for (; n - i >= static_cast<std::size_t>(attend_columns); i += static_cast<std::size_t>(attend_columns)) f(std::integral_constant<int, attend_columns>{}, i);
  if constexpr (attend_columns > 4)
    if (n - i >= 4) f(std::integral_constant<int, 4>{}, i), i += 4;
  for (; i < n; ++i) f(std::integral_constant<int, 1>{}, i);
}

/// scores[c][position of the block] = scale * q[c] . key, for one block of 16 positions.
template <int C, class T>
void score_block(const T* keys, const float* q, std::size_t q_stride, std::size_t head_dim, vec scale, float* scores) {
  constexpr std::size_t vectors = block_positions / lanes == 0 ? 1 : block_positions / lanes;
  constexpr int V = vectors >= 2 ? 2 : 1;
  for (std::size_t part = 0; part < block_positions; part += static_cast<std::size_t>(V) * lanes) {
    vec acc[V * C];
    set_zero(acc, std::make_integer_sequence<int, V * C>{});
    run_chains<V, C>(acc, keys + part, block_positions, q, static_cast<std::ptrdiff_t>(q_stride), head_dim);
    for (int c = 0; c < C; ++c)
      for (int v = 0; v < V; ++v) store(scores + static_cast<std::size_t>(c) * chunk_positions + part + static_cast<std::size_t>(v) * lanes, mul(acc[c * V + v], scale));
  }
}

/// sums[c][d] continues its chain over positions [from, to) of the chunk: sums += weights[c][p] * values[p][d].
template <int V, int C, class T>
void weigh_dims(const T* const* blocks, std::size_t head_dim, const float* weights, std::size_t from, std::size_t to, float* sums,
                             std::size_t stride, std::size_t d) {
  vec acc[V * C];
  for (int c = 0; c < C; ++c)
    for (int v = 0; v < V; ++v) acc[c * V + v] = load(sums + static_cast<std::size_t>(c) * stride + d + static_cast<std::size_t>(v) * lanes);
  for (std::size_t p = from; p < to;) {
    const std::size_t in_block = p % block_positions, n = (block_positions - in_block < to - p) ? block_positions - in_block : to - p;
    run_chains<V, C>(acc, blocks[p / block_positions] + in_block * head_dim + d, head_dim, weights + p, fixed_stride<chunk_positions>{}, n);
    p += n;
  }
  for (int c = 0; c < C; ++c)
    for (int v = 0; v < V; ++v) store(sums + static_cast<std::size_t>(c) * stride + d + static_cast<std::size_t>(v) * lanes, acc[c * V + v]);
}
template <int C, class T>
void weigh_values(const T* const* blocks, std::size_t head_dim, const float* weights, std::size_t from, std::size_t to, float* sums,
                               std::size_t stride) {
  std::size_t d = 0;
  for (; d + 2 * lanes <= head_dim; d += 2 * lanes) weigh_dims<2, C>(blocks, head_dim, weights, from, to, sums, stride, d);
  // The last vector may read past head_dim, into what follows in the pool (or its slack); those lanes go nowhere.
  for (; d < head_dim; d += lanes) weigh_dims<1, C>(blocks, head_dim, weights, from, to, sums, stride, d);
}

/// A (row, head)'s result so far: [0] largest score, [1] sum of exponentials, then the weighted values. An empty one is {-inf, 0}.
inline void merge_part(float* total, float largest, float sum, const float* values, std::size_t head_dim) {
  if (sum == 0.0f) return;
  if (total[1] == 0.0f) {
    total[0] = largest, total[1] = sum;
    for (std::size_t d = 0; d < head_dim; ++d) total[2 + d] = values[d];
    return;
  }
  const float top = total[0] > largest ? total[0] : largest;
  float shifts[lanes] = {total[0] - top, largest - top};
  store(shifts, exp(load(shifts)));
  const vec a = set1(shifts[0]), b = set1(shifts[1]);
  total[0] = top;
  float sums[lanes] = {total[1], sum};
  store(sums, fma(set1(sums[0]), a, mul(set1(sums[1]), b)));
  total[1] = sums[0];
  std::size_t d = 0;
  for (; d + lanes <= head_dim; d += lanes) store(total + 2 + d, fma(load(total + 2 + d), a, mul(load(values + d), b)));
  if (const std::size_t rest = head_dim - d; rest != 0)
    store_first(total + 2 + d, fma(load_first(total + 2 + d, rest), a, mul(load_first(values + d, rest), b)), rest);
}
/// Exactly zero if nothing was attended to.
inline void finish_lane(const float* total, std::size_t head_dim, float* out) {
  const bool empty = total[1] == 0.0f;
  const vec sum = set1(total[1]);
  std::size_t d = 0;
  for (; d + lanes <= head_dim; d += lanes) store(out + d, empty ? set1(0.0f) : div(load(total + 2 + d), sum));
  if (const std::size_t rest = head_dim - d; rest != 0) store_first(out + d, empty ? set1(0.0f) : div(load_first(total + 2 + d, rest), sum), rest);
}
inline void merge(const float* partials, std::size_t n_chunks, std::size_t chunk_stride, std::size_t head_dim, float* out) noexcept {
  // The first chunk's place is where the total is kept: partials are scratch.
  float* total = const_cast<float*>(partials);
  for (std::size_t c = 1; c < n_chunks; ++c) {
    const float* part = partials + c * chunk_stride;
    merge_part(total, part[0], part[1], part + 2, head_dim);
  }
  finish_lane(total, head_dim, out);
}

/// x[i] *= by[i] for 16 positions of a block.
QUENA_INLINE void scale_block(float* x, const float* by) {
  for (std::size_t i = 0; i < block_positions; i += lanes) store(x + i, mul(load(x + i), load(by + i)));
}

/// Keys or values of a chunk in f32, block by block, and what each position's are to be multiplied by (null: 1).
struct chunk_part {
  const float *cells[chunk_blocks] = {}, *scales[chunk_blocks] = {};
};

/// One chunk for all lanes. Scales of 8-bit cells are applied to scores and weights, of which there are fewer than cells.
inline void attend_chunk(const attend_args& a, std::size_t chunk, const chunk_part& keys, const chunk_part& values, const float* q, std::size_t padded,
                         float* scores, float* sums, float* totals, std::size_t total_stride) {
  const std::size_t start = chunk * chunk_positions, n_lanes = a.n_rows * a.group;
  const vec scale = set1(1.0f / __builtin_sqrtf(static_cast<float>(a.head_dim)));
  const auto count = [&](std::size_t lane) QUENA_INLINE_LAMBDA -> std::size_t {
    const std::size_t end = std::size_t{a.positions[lane / a.group]} + 1;
    return end <= start ? 0 : end - start < chunk_positions ? end - start : chunk_positions;
  };
  for_lanes(n_lanes, [&](auto columns, std::size_t lane) QUENA_INLINE_LAMBDA {
    constexpr int C = decltype(columns)::value;
    const std::size_t least = count(lane), most = count(lane + C - 1);  // positions ascend
    if (most == 0) return;
    const auto scale_scores = [&](const float* const* scales) QUENA_INLINE_LAMBDA {
      for (std::size_t b = 0; b * block_positions < most && scales[b] != nullptr; ++b)
        for (std::size_t c = 0; c < C; ++c) scale_block(scores + c * chunk_positions + b * block_positions, scales[b]);
    };
    for (std::size_t b = 0; b * block_positions < most; ++b)
      score_block<C>(keys.cells[b], q + lane * padded, padded, a.head_dim, scale, scores + b * block_positions);
    scale_scores(keys.scales);
    softmax_parts parts[C] = {};
    for (int c = 0; c < C; ++c)
      if (const std::size_t n = count(lane + static_cast<std::size_t>(c)); n != 0) parts[c] = exponentials(scores + static_cast<std::size_t>(c) * chunk_positions, n);
    scale_scores(values.scales);
    for (std::size_t j = 0; j < C * padded; ++j) sums[j] = 0.0f;
    weigh_values<C>(values.cells, a.head_dim, scores, 0, least, sums, padded);
    for (int c = 0; c < C; ++c) {  // what only the later rows of these attend to
      const std::size_t n = count(lane + static_cast<std::size_t>(c));
      float* const lane_sums = sums + static_cast<std::size_t>(c) * padded;
      if (n > least) weigh_values<1>(values.cells, a.head_dim, scores + static_cast<std::size_t>(c) * chunk_positions, least, n, lane_sums, padded);
      if (n != 0) merge_part(totals + (lane + static_cast<std::size_t>(c)) * total_stride, parts[c].largest, parts[c].sum, lane_sums, a.head_dim);
    }
  });
}

template <class T>
inline void attend(const attend_args& a, std::size_t first_chunk, std::size_t last_chunk) noexcept {
  const std::size_t padded = (a.head_dim + 15) / 16 * 16 + 16, n_lanes = a.n_rows * a.group, d = a.head_dim;
  float* const q = a.scratch;                                   // [lanes][padded]
  float* const wide_keys = q + attend_lanes * padded;           // [16][d][16]
  float* const wide_values = wide_keys + chunk_positions * padded;  // [256][d]
  float* const scores = wide_values + chunk_positions * padded;  // [columns][256]
  float* const sums = scores + 8 * chunk_positions;             // [columns][padded]
  float* const running = sums + 8 * padded;                     // [lanes][padded + 2]
  const std::size_t partial_stride = d + 2;

  for (std::size_t lane = 0; lane < n_lanes; ++lane)
    __builtin_memcpy(q + lane * padded, a.q + static_cast<std::ptrdiff_t>(lane / a.group) * a.q_stride + (lane % a.group) * d, d * sizeof(float));
  if (a.partials == nullptr)
    for (std::size_t lane = 0; lane < n_lanes; ++lane) running[lane * (padded + 2)] = -__builtin_inff(), running[lane * (padded + 2) + 1] = 0.0f;

  const std::size_t end = a.n_rows == 0 ? 0 : std::size_t{a.positions[a.n_rows - 1]} + 1;
  for (std::size_t chunk = first_chunk; chunk < last_chunk; ++chunk) {
    chunk_part keys, values;
    for (std::size_t b = 0; b < chunk_blocks && chunk * chunk_positions + b * block_positions < end; ++b) {
      const std::size_t position = chunk * chunk_positions + b * block_positions;
      const std::byte* page = a.pages + a.page_table[position / a.page_size] * a.page_bytes;
      const auto find = [&](chunk_part& part, const std::byte* from, float* wide) {
        const std::size_t at = position % a.page_size;
        const T* const cells = reinterpret_cast<const T*>(from) + at * d;
        if constexpr (sizeof(T) == sizeof(float)) part.cells[b] = cells;
        else part.cells[b] = wide + b * block_positions * d, widen<T>(cells, wide + b * block_positions * d, block_positions * d);
        if constexpr (sizeof(T) == 1) part.scales[b] = reinterpret_cast<const float*>(from + a.page_size * d) + at;
      };
      find(keys, page, wide_keys);
      find(values, page + a.value_offset, wide_values);
    }
    float* totals = running;
    std::size_t total_stride = padded + 2;
    if (a.partials != nullptr) {
      totals = a.partials + chunk * n_lanes * partial_stride, total_stride = partial_stride;
      for (std::size_t lane = 0; lane < n_lanes; ++lane) totals[lane * total_stride] = -__builtin_inff(), totals[lane * total_stride + 1] = 0.0f;
    }
    attend_chunk(a, chunk, keys, values, q, padded, scores, sums, totals, total_stride);
  }
  if (a.partials == nullptr)
    for (std::size_t lane = 0; lane < n_lanes; ++lane)
      finish_lane(running + lane * (padded + 2), d, a.out + static_cast<std::ptrdiff_t>(lane / a.group) * a.out_stride + (lane % a.group) * d);
}

/// One position's key (step 16) or value (step 1) into the cache, rounded to the cell type.
template <class T>
inline float append(const float* x, std::size_t head_dim, void* to, std::size_t step) noexcept {
  T* y = static_cast<T*>(to);
  for (std::size_t d = 0; d < head_dim; d += lanes) {
    const std::size_t n = head_dim - d < lanes ? head_dim - d : lanes;
    T cells[lanes];
    store(cells, n == lanes ? load(x + d) : load_first(x + d, n));
    for (std::size_t i = 0; i < n; ++i) y[(d + i) * step] = cells[i];
  }
  return 1;
}
/// The same in 8 bits: the codes and the scale of encode_cells().
inline float append_codes(const float* x, std::size_t head_dim, void* to, std::size_t step) noexcept {
  std::int8_t* y = static_cast<std::int8_t*>(to);
  const float scale = cell_scale(largest_magnitude(x, head_dim));
  const vec inverse = set1(scale > 0 ? 1.0f / scale : 0.0f);
  for (std::size_t d = 0; d < head_dim; d += lanes) {
    const std::size_t n = head_dim - d < lanes ? head_dim - d : lanes;
    std::int8_t cells[lanes] = {};
    if (scale > 0) store_bytes(cells, round(mul(n == lanes ? load(x + d) : load_first(x + d, n), inverse)));
    for (std::size_t i = 0; i < n; ++i) y[(d + i) * step] = cells[i];
  }
  return scale;
}
