// SPDX-License-Identifier: MIT
// The vector vocabulary for AVX-512 (F, BW, DQ, VL). Included inside namespace isa::avx512 and its target region.
struct vec {
  __m512 v;
};
inline constexpr bool slow_f16 = false;
inline constexpr std::size_t lanes = 16;
inline constexpr int max_columns = 12;  // 24 accumulators, 2 weights, 1 broadcast of 32 registers


// Zero-masking forms with a full mask are the plain instructions; g++ 12 warns about uninitialised values inside the plain forms.
inline constexpr __mmask16 all = 0xffff;

QUENA_INLINE vec set1(float x) { return {_mm512_set1_ps(x)}; }
QUENA_INLINE vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
QUENA_INLINE vec load(const f16* p) { return {_mm512_maskz_cvtph_ps(all, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))}; }
QUENA_INLINE vec load(const bf16* p) {
  return {_mm512_castsi512_ps(_mm512_maskz_slli_epi32(all, _mm512_maskz_cvtepu16_epi32(all, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16))};
}
QUENA_INLINE vec load(const std::uint8_t* p) {
  return {_mm512_maskz_cvtepi32_ps(all, _mm512_maskz_cvtepu8_epi32(all, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
QUENA_INLINE vec load(const std::int8_t* p) {
  return {_mm512_maskz_cvtepi32_ps(all, _mm512_maskz_cvtepi8_epi32(all, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
QUENA_INLINE void store(float* p, vec a) { _mm512_storeu_ps(p, a.v); }
QUENA_INLINE void store(f16* p, vec a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_maskz_cvtps_ph(all, a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
QUENA_INLINE void store(bf16* p, vec a) {  // to nearest even; NaN stays NaN: as bf16(float)
  const __m512i u = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_maskz_srli_epi32(all, u, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  const __m512i bits = _mm512_mask_or_epi32(rounded, nan, u, _mm512_set1_epi32(0x400000));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_maskz_cvtepi32_epi16(all, _mm512_maskz_srli_epi32(all, bits, 16)));
}
QUENA_INLINE void store_bytes(std::int8_t* p, vec a) {  // integral, within -128 … 127
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_maskz_cvtepi32_epi8(all, _mm512_maskz_cvtps_epi32(all, a.v)));
}
QUENA_INLINE __mmask16 first_lanes(std::size_t n) { return static_cast<__mmask16>((1u << n) - 1u); }
QUENA_INLINE vec load_first(const float* p, std::size_t n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }  // the rest 0; n < lanes
QUENA_INLINE void store_first(float* p, vec a, std::size_t n) { _mm512_mask_storeu_ps(p, first_lanes(n), a.v); }
QUENA_INLINE vec keep_first(vec a, std::size_t n, float rest) { return {_mm512_mask_mov_ps(_mm512_set1_ps(rest), first_lanes(n), a.v)}; }

QUENA_INLINE vec add(vec a, vec b) { return {_mm512_add_ps(a.v, b.v)}; }
QUENA_INLINE vec sub(vec a, vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
QUENA_INLINE vec mul(vec a, vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
QUENA_INLINE vec div(vec a, vec b) { return {_mm512_div_ps(a.v, b.v)}; }
QUENA_INLINE vec fma(vec a, vec b, vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
QUENA_INLINE vec larger(vec a, vec b) { return {_mm512_maskz_max_ps(all, a.v, b.v)}; }   // b where one is NaN
QUENA_INLINE vec smaller(vec a, vec b) { return {_mm512_maskz_min_ps(all, a.v, b.v)}; }  // b where one is NaN
QUENA_INLINE vec round(vec a) { return {_mm512_maskz_roundscale_ps(all, a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
QUENA_INLINE vec scale2(vec a, vec n) { return {_mm512_maskz_scalef_ps(all, a.v, n.v)}; }  // a * 2^n, n integral
