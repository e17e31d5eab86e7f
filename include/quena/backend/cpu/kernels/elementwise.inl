// SPDX-License-Identifier: MIT
// Kernels over one vector of numbers: exp, softmax, SwiGLU, RMSNorm, rotary pairs, conversions.

/// e^x: 2^n * e^r with |r| <= ln(2) / 2. Error at most 1 ulp (2 in the subnormal range); e^-inf = 0, overflow = inf, NaN stays.
/// The polynomial is a minimax fit of (e^r - 1 - r) / r^2, relative error of e^r below 4e-9.
QUENA_INLINE vec exp(vec x) {
  x = smaller(set1(89.0f), larger(set1(-104.0f), x));
  const vec n = round(mul(x, set1(0x1.715476p+0f)));
  vec r = fma(n, set1(-0x1.62e400p-1f), x);  // ln(2) in two parts, the first with zeros at its end
  r = fma(n, set1(-0x1.7f7d1cp-20f), r);
  vec p = fma(set1(0x1.6a23d0p-10f), r, set1(0x1.123a20p-7f));
  p = fma(p, r, set1(0x1.5558f2p-5f));
  p = fma(p, r, set1(0x1.555492p-3f));
  p = fma(p, r, set1(0x1.fffffcp-2f));
  return scale2(add(fma(p, mul(r, r), r), set1(1.0f)), n);
}

/// Sum and maximum over the lanes, in one order.
QUENA_INLINE float sum_lanes(vec a) {
  float t[lanes];
  store(t, a);
  for (std::size_t w = lanes / 2; w != 0; w /= 2)
    for (std::size_t i = 0; i < w; ++i) t[i] += t[i + w];
  return t[0];
}
QUENA_INLINE float largest_lane(vec a) {
  float t[lanes];
  store(t, a);
  for (std::size_t w = lanes / 2; w != 0; w /= 2)
    for (std::size_t i = 0; i < w; ++i) t[i] = t[i] > t[i + w] ? t[i] : t[i + w];
  return t[0];
}

/// The largest magnitude of n numbers; NaN if one of them is not finite.
inline float largest_magnitude(const float* x, std::size_t n) {
  vec top = set1(0.0f), bad = top;
  std::size_t i = 0;
  const auto look = [&](vec a) QUENA_INLINE_LAMBDA {
    top = larger(larger(a, sub(set1(0.0f), a)), top);
    bad = fma(a, set1(0.0f), bad);
  };
  for (; i + lanes <= n; i += lanes) look(load(x + i));
  if (i < n) look(load_first(x + i, n - i));
  return sum_lanes(bad) == 0.0f ? largest_lane(top) : __builtin_nanf("");
}

/// Applies f to n floats, the last piece as a vector filled up with zeros: no element is computed in another way than the rest.
template <class F>
QUENA_INLINE void map(const float* x, float* y, std::size_t n, F f) {
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) store(y + i, f(load(x + i)));
  if (i < n) store_first(y + i, f(load_first(x + i, n - i)), n - i);
}

inline void exp_all(const float* x, float* y, std::size_t n) noexcept {
  map(x, y, n, [](vec a) QUENA_INLINE_LAMBDA { return exp(a); });
}

QUENA_INLINE vec swiglu(vec gate, vec up) {
  return mul(div(gate, add(set1(1.0f), exp(sub(set1(0.0f), gate)))), up);
}
inline void swiglu_all(const float* gate, const float* up, float* y, std::size_t n) noexcept {
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) store(y + i, swiglu(load(gate + i), load(up + i)));
  if (i < n) store_first(y + i, swiglu(load_first(gate + i, n - i), load_first(up + i, n - i)), n - i);
}

/// x = e^(x - max), n > 0. Returns {max, sum}.
struct softmax_parts {
  float largest, sum;
};
inline softmax_parts exponentials(float* x, std::size_t n) {
  vec top = set1(-__builtin_inff());
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) top = larger(top, load(x + i));
  if (i < n) top = larger(top, keep_first(load_first(x + i, n - i), n - i, -__builtin_inff()));
  const float largest = largest_lane(top);
  const vec shift = set1(largest);
  vec sum = set1(0.0f);
  for (i = 0; i + lanes <= n; i += lanes) {
    const vec e = exp(sub(load(x + i), shift));
    store(x + i, e);
    sum = add(sum, e);
  }
  if (i < n) {
    const vec e = exp(sub(load_first(x + i, n - i), shift));
    store_first(x + i, e, n - i);
    sum = add(sum, keep_first(e, n - i, 0.0f));
  }
  return {largest, sum_lanes(sum)};
}
inline void softmax(float* x, std::size_t n) noexcept {
  if (n == 0) return;
  const vec sum = set1(exponentials(x, n).sum);
  map(x, x, n, [&](vec a) QUENA_INLINE_LAMBDA { return div(a, sum); });
}

inline void rmsnorm(const float* x, const float* gain, float eps, std::size_t n, float* y) noexcept {
  vec s0 = set1(0.0f), s1 = s0, s2 = s0, s3 = s0;
  std::size_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    const vec a = load(x + i), b = load(x + i + lanes), c = load(x + i + 2 * lanes), d = load(x + i + 3 * lanes);
    s0 = fma(a, a, s0), s1 = fma(b, b, s1), s2 = fma(c, c, s2), s3 = fma(d, d, s3);
  }
  for (; i + lanes <= n; i += lanes) s0 = fma(load(x + i), load(x + i), s0);
  if (i < n) s1 = fma(load_first(x + i, n - i), load_first(x + i, n - i), s1);
  const float squares = sum_lanes(add(add(s0, s1), add(s2, s3)));
  const vec scale = set1(1.0f / __builtin_sqrtf(squares / static_cast<float>(n) + eps));
  for (i = 0; i + lanes <= n; i += lanes) store(y + i, mul(mul(load(x + i), scale), load(gain + i)));
  if (i < n) store_first(y + i, mul(mul(load_first(x + i, n - i), scale), load_first(gain + i, n - i)), n - i);
}

/// Rotates pairs (t, t + head_dim / 2) of each head: (a cos - b sin, b cos + a sin).
inline void rotate(float* heads, std::size_t n_heads, std::size_t head_dim, const float* cos, const float* sin) noexcept {
  const std::size_t half = head_dim / 2;
  for (std::size_t h = 0; h < n_heads; ++h) {
    float *first = heads + h * head_dim, *second = first + half;
    std::size_t t = 0;
    for (; t + lanes <= half; t += lanes) {
      const vec a = load(first + t), b = load(second + t), c = load(cos + t), s = load(sin + t);
      store(first + t, fma(a, c, sub(set1(0.0f), mul(b, s))));
      store(second + t, fma(b, c, mul(a, s)));
    }
    if (const std::size_t rest = half - t; rest != 0) {
      const vec a = load_first(first + t, rest), b = load_first(second + t, rest), c = load_first(cos + t, rest), s = load_first(sin + t, rest);
      store_first(first + t, fma(a, c, sub(set1(0.0f), mul(b, s))), rest);
      store_first(second + t, fma(b, c, mul(a, s)), rest);
    }
  }
}

template <class T>
inline void narrow(const float* x, void* to, std::size_t n) noexcept {
  T* y = static_cast<T*>(to);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) store(y + i, load(x + i));
  if (i < n) {
    T rest[lanes];
    store(rest, load_first(x + i, n - i));
    for (std::size_t j = 0; i < n; ++i, ++j) y[i] = rest[j];
  }
}
template <class T>
inline void widen(const void* from, float* y, std::size_t n) noexcept {
  const T* x = static_cast<const T*>(from);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) store(y + i, load(x + i));
  if (i < n) {
    T rest[lanes] = {};
    for (std::size_t j = i; j < n; ++j) rest[j - i] = x[j];
    store_first(y + i, load(rest), n - i);
  }
}
