// SPDX-License-Identifier: MIT
// The multiply-add at the bottom of every product: matmul, scores and weighted values. Included once per instruction set.

/// A stride known at compile time.
template <std::size_t N>
struct fixed_stride {
  QUENA_INLINE constexpr operator std::ptrdiff_t() const noexcept { return static_cast<std::ptrdiff_t>(N); }
};

template <int... Js>
QUENA_INLINE void set_zero(vec* acc, std::integer_sequence<int, Js...>) {
  ((acc[Js] = set1(0.0f)), ...);
}
template <int V, class T, class Stride, int... Js>
QUENA_INLINE void multiply_add(vec* acc, const T* a, const float* b, Stride b_stride, std::integer_sequence<int, Js...>) {
  vec w[V];
  for (int v = 0; v < V; ++v) w[v] = load(a + v * static_cast<int>(lanes));
  ((acc[Js] = fma(w[Js % V], set1(b[(Js / V) * b_stride]), acc[Js])), ...);
}

/// Asks for what a stream of weights will need soon: Bytes from `ahead` after `at` on.
template <std::size_t Bytes>
QUENA_INLINE void prefetch(const void* at, std::size_t ahead) {
  for (std::size_t line = 0; line < Bytes; line += 64) __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(at) + ahead + line));
}

/// acc[c * V + v] continues its chain over k < n:  acc += a[k * a_step + v * lanes …] * b[c * b_stride + k].
/// The folds are written out because loops over arrays of accumulators stay in memory with g++ 12.
template <int V, int C, bool Stream = false, class T, class Stride>
QUENA_INLINE void run_chains(vec* acc, const T* a, std::size_t a_step, const float* b, Stride b_stride, std::size_t n, std::size_t ahead = 0) {
  for (std::size_t k = 0; k < n; ++k, a += a_step, ++b) {
    if constexpr (Stream) prefetch<panel_rows * sizeof(T)>(a, ahead);
    multiply_add<V>(acc, a, b, b_stride, std::make_integer_sequence<int, V * C>{});
  }
}

/// Calls f(std::integral_constant<int, C>, first) for pieces of C columns that cover `n`, largest first.
template <class F>
QUENA_INLINE void for_columns(std::size_t n, F f) {
  std::size_t i = 0;
  for (; n - i >= static_cast<std::size_t>(max_columns); i += static_cast<std::size_t>(max_columns)) f(std::integral_constant<int, max_columns>{}, i);
  if constexpr (max_columns > 8)
    if (n - i >= 8) f(std::integral_constant<int, 8>{}, i), i += 8;
  if (n - i >= 4) f(std::integral_constant<int, 4>{}, i), i += 4;
  if (n - i >= 2) f(std::integral_constant<int, 2>{}, i), i += 2;
  if (n - i >= 1) f(std::integral_constant<int, 1>{}, i);
}
