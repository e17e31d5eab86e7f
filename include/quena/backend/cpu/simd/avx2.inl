// SPDX-License-Identifier: MIT
// The vector vocabulary for AVX2 with FMA and F16C. Included inside namespace isa::avx2 and its target region.
struct vec {
  __m256 v;
};
inline constexpr bool slow_f16 = false;
inline constexpr std::size_t lanes = 8;
inline constexpr int max_columns = 6;  // 12 accumulators, 2 weights, 1 broadcast of 16 registers

QUENA_INLINE vec set1(float x) { return {_mm256_set1_ps(x)}; }
QUENA_INLINE vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
QUENA_INLINE vec load(const f16* p) { return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))}; }
QUENA_INLINE vec load(const bf16* p) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16))};
}
QUENA_INLINE void store(float* p, vec a) { _mm256_storeu_ps(p, a.v); }
QUENA_INLINE void store(f16* p, vec a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
QUENA_INLINE void store(bf16* p, vec a) {  // to nearest even; NaN stays NaN: as bf16(float)
  const __m256i u = _mm256_castps_si256(a.v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q));
  const __m256i bits = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(bits, bits), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}
QUENA_INLINE __m256i first_lanes(std::size_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
QUENA_INLINE vec load_first(const float* p, std::size_t n) { return {_mm256_maskload_ps(p, first_lanes(n))}; }  // the rest 0; n < lanes
QUENA_INLINE void store_first(float* p, vec a, std::size_t n) { _mm256_maskstore_ps(p, first_lanes(n), a.v); }
QUENA_INLINE vec keep_first(vec a, std::size_t n, float rest) {
  return {_mm256_blendv_ps(_mm256_set1_ps(rest), a.v, _mm256_castsi256_ps(first_lanes(n)))};
}

QUENA_INLINE vec add(vec a, vec b) { return {_mm256_add_ps(a.v, b.v)}; }
QUENA_INLINE vec sub(vec a, vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
QUENA_INLINE vec mul(vec a, vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
QUENA_INLINE vec div(vec a, vec b) { return {_mm256_div_ps(a.v, b.v)}; }
QUENA_INLINE vec fma(vec a, vec b, vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
QUENA_INLINE vec larger(vec a, vec b) { return {_mm256_max_ps(a.v, b.v)}; }   // b where one is NaN
QUENA_INLINE vec smaller(vec a, vec b) { return {_mm256_min_ps(a.v, b.v)}; }  // b where one is NaN
QUENA_INLINE vec round(vec a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
QUENA_INLINE vec scale2(vec a, vec n) {  // a * 2^n, n integral, |n| < 253: in two steps, so that the result may be subnormal
  const __m256i e = _mm256_cvtps_epi32(n.v), half = _mm256_srai_epi32(e, 1), bias = _mm256_set1_epi32(127);
  const __m256i first = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
  const __m256i second = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(e, half), bias), 23);
  return {_mm256_mul_ps(_mm256_mul_ps(a.v, _mm256_castsi256_ps(first)), _mm256_castsi256_ps(second))};
}
