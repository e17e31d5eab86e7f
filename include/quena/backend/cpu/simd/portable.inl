// SPDX-License-Identifier: MIT
// The vector vocabulary over xsimd, for the instruction set that the compiler's own flags give; plain arrays where xsimd has
// none. Included inside namespace isa::portable, outside every target region. Works with xsimd 8.1 and later: only operations
// that all versions spell alike, and multiply-add by intrinsics (8.1 has none for AVX-512 and NEON, and a compiler may or may
// not contract a * b + c, which would make results depend on the kernel).
#if QUENA_HAS_XSIMD
using batch_type = xsimd::batch<float>;
struct vec {
  batch_type v;
};
inline constexpr std::size_t lanes = batch_type::size;

QUENA_INLINE vec set1(float x) { return {batch_type(x)}; }
QUENA_INLINE vec load(const float* p) { return {batch_type::load_unaligned(p)}; }
QUENA_INLINE void store(float* p, vec a) { a.v.store_unaligned(p); }
QUENA_INLINE vec add(vec a, vec b) { return {a.v + b.v}; }
QUENA_INLINE vec sub(vec a, vec b) { return {a.v - b.v}; }
QUENA_INLINE vec mul(vec a, vec b) { return {a.v * b.v}; }
QUENA_INLINE vec div(vec a, vec b) { return {a.v / b.v}; }
QUENA_INLINE vec larger(vec a, vec b) { return {(xsimd::max)(a.v, b.v)}; }   // a number or NaN where one is NaN
QUENA_INLINE vec smaller(vec a, vec b) { return {(xsimd::min)(a.v, b.v)}; }  // the same
QUENA_INLINE vec fma(vec a, vec b, vec c) {
#if defined(__AVX512F__)
  return {batch_type(_mm512_fmadd_ps(a.v, b.v, c.v))};
#elif defined(__FMA__) && defined(__AVX__)
  return {batch_type(_mm256_fmadd_ps(a.v, b.v, c.v))};
#elif defined(__FMA__)
  return {batch_type(_mm_fmadd_ps(a.v, b.v, c.v))};
#elif defined(__aarch64__)
  return {batch_type(vfmaq_f32(c.v, a.v, b.v))};
#else
  return {a.v * b.v + c.v};  // no such instruction: nothing can contract it
#endif
}
#else
inline constexpr std::size_t lanes = 4;
struct vec {
  float v[lanes];
};
template <class F>
QUENA_INLINE vec each(F f) {
  return {{f(0), f(1), f(2), f(3)}};
}
QUENA_INLINE vec set1(float x) { return {{x, x, x, x}}; }
QUENA_INLINE vec load(const float* p) { return {{p[0], p[1], p[2], p[3]}}; }
QUENA_INLINE void store(float* p, vec a) {
  for (std::size_t i = 0; i < lanes; ++i) p[i] = a.v[i];
}
QUENA_INLINE vec add(vec a, vec b) { return each([&](int i) { return a.v[i] + b.v[i]; }); }
QUENA_INLINE vec sub(vec a, vec b) { return each([&](int i) { return a.v[i] - b.v[i]; }); }
QUENA_INLINE vec mul(vec a, vec b) { return each([&](int i) { return a.v[i] * b.v[i]; }); }
QUENA_INLINE vec div(vec a, vec b) { return each([&](int i) { return a.v[i] / b.v[i]; }); }
QUENA_INLINE vec larger(vec a, vec b) { return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; }); }
QUENA_INLINE vec smaller(vec a, vec b) { return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; }); }
QUENA_INLINE vec fma(vec a, vec b, vec c) {
#if defined(__FP_FAST_FMAF)
  return each([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
#else
  return each([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
#endif
}
#endif

#if defined(__aarch64__)
inline constexpr int max_columns = 12;  // 24 accumulators of 32 registers
#else
inline constexpr int max_columns = lanes == 16 ? 12 : 6;
#endif

#if defined(__aarch64__)
inline constexpr bool slow_f16 = false;
#else
inline constexpr bool slow_f16 = true;  // a dozen instructions a vector
#endif

// Four 16-bit numbers to f32, exactly.
#if defined(__SSE2__)
QUENA_INLINE void widen4(const bf16* p, float* to) {
  _mm_storeu_ps(to, _mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))));
}
QUENA_INLINE void widen4(const f16* p, float* to) {
  const __m128i half = _mm_unpacklo_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)), _mm_setzero_si128());
  const __m128i sign = _mm_slli_epi32(_mm_and_si128(half, _mm_set1_epi32(0x8000)), 16);
  const __m128i shifted = _mm_slli_epi32(_mm_and_si128(half, _mm_set1_epi32(0x7fff)), 13), exponent = _mm_and_si128(shifted, _mm_set1_epi32(0x0f800000));
  const __m128i rebias = _mm_set1_epi32(112 << 23);
  __m128i number = _mm_add_epi32(shifted, rebias);
  number = _mm_add_epi32(number, _mm_and_si128(_mm_cmpeq_epi32(exponent, _mm_set1_epi32(0x0f800000)), rebias));  // infinity, NaN
  const __m128i tiny = _mm_cmpeq_epi32(exponent, _mm_setzero_si128());  // 0 and subnormals: 2^-14 * (1 + m) - 2^-14
  const __m128 subnormal = _mm_sub_ps(_mm_castsi128_ps(_mm_add_epi32(number, _mm_set1_epi32(1 << 23))), _mm_castsi128_ps(_mm_set1_epi32(113 << 23)));
  const __m128i either = _mm_or_si128(_mm_and_si128(tiny, _mm_castps_si128(subnormal)), _mm_andnot_si128(tiny, number));
  _mm_storeu_ps(to, _mm_castsi128_ps(_mm_or_si128(either, sign)));
}
#elif defined(__aarch64__)
QUENA_INLINE void widen4(const bf16* p, float* to) {
  vst1q_f32(to, vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(reinterpret_cast<const std::uint16_t*>(p)), 16)));
}
QUENA_INLINE void widen4(const f16* p, float* to) {
  vst1q_f32(to, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(reinterpret_cast<const std::uint16_t*>(p)))));
}
#endif
template <class T>
QUENA_INLINE void widen4(const T* p, float* to) {  // anything else
  for (int i = 0; i < 4; ++i) to[i] = static_cast<float>(p[i]);
}
template <class T>
QUENA_INLINE vec load(const T* p) {  // any of these
  float t[lanes];
  for (std::size_t i = 0; i < lanes; i += 4) widen4(p + i, t + i);
  return load(t);
}
template <class T>
QUENA_INLINE void store(T* p, vec a) {  // T = f16, bf16
  float t[lanes];
  store(t, a);
  for (std::size_t i = 0; i < lanes; ++i) p[i] = T(t[i]);
}
QUENA_INLINE vec load_first(const float* p, std::size_t n) {  // the rest 0; n < lanes
  float t[lanes] = {};
  for (std::size_t i = 0; i < n; ++i) t[i] = p[i];
  return load(t);
}
QUENA_INLINE void store_first(float* p, vec a, std::size_t n) {
  float t[lanes];
  store(t, a);
  for (std::size_t i = 0; i < n; ++i) p[i] = t[i];
}
QUENA_INLINE vec keep_first(vec a, std::size_t n, float rest) {
  float t[lanes];
  store(t, a);
  for (std::size_t i = n; i < lanes; ++i) t[i] = rest;
  return load(t);
}
/// To the nearest integer: adding 1.5 * 2^23 leaves no bits for a fraction. |a| < 2^22.
QUENA_INLINE vec round(vec a) { return sub(add(a, set1(12582912.0f)), set1(12582912.0f)); }
QUENA_INLINE vec scale2(vec a, vec n) {  // a * 2^n, n integral, |n| < 253: in two steps, so that the result may be subnormal
  float e[lanes], first[lanes], second[lanes];
  store(e, n);
  for (std::size_t i = 0; i < lanes; ++i) {
    const std::int32_t whole = e[i] == e[i] ? static_cast<std::int32_t>(e[i]) : 0, half = whole >> 1;
    const std::uint32_t bits1 = static_cast<std::uint32_t>(half + 127) << 23, bits2 = static_cast<std::uint32_t>(whole - half + 127) << 23;
    __builtin_memcpy(first + i, &bits1, sizeof bits1);
    __builtin_memcpy(second + i, &bits2, sizeof bits2);
  }
  return mul(mul(a, load(first)), load(second));
}

inline constexpr int code_columns = 4;
inline constexpr bool signed_bytes = true;  // dot_float.inl takes the offset off each code
QUENA_INLINE void store_bytes(std::int8_t* p, vec a) {  // integral, within -128 … 127
  float t[lanes];
  store(t, a);
  for (std::size_t i = 0; i < lanes; ++i) p[i] = static_cast<std::int8_t>(t[i]);
}
