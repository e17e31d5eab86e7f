// SPDX-License-Identifier: MIT
// Integer dot products for AVX-512 with VNNI, beside simd/avx512.inl. Included inside namespace isa::avx512 and its own target region.
struct ivec {
  __m512i v;
};
inline constexpr int code_columns = 6;  // 12 integer and 12 float accumulators, 2 weights, 1 broadcast of 32 registers
inline constexpr bool signed_bytes = false;

QUENA_INLINE ivec iset1(std::int32_t x) { return {_mm512_set1_epi32(x)}; }
QUENA_INLINE ivec broadcast4(const std::int32_t* p) { return {_mm512_set1_epi32(*p)}; }
QUENA_INLINE ivec load_codes(const std::uint8_t* p) { return {_mm512_loadu_si512(p)}; }
QUENA_INLINE ivec low_nibbles(ivec a) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(15))}; }
QUENA_INLINE ivec high_nibbles(ivec a) { return {_mm512_and_si512(_mm512_maskz_srli_epi32(all, a.v, 4), _mm512_set1_epi8(15))}; }
/// acc + the four products of unsigned codes w and signed codes x in each element. (Written out: g++ 12 copies accumulators around the intrinsic.)
QUENA_INLINE ivec dot4(ivec acc, ivec w, ivec x) {
#if defined(__GNUC__)
  __asm__("vpdpbusd %2, %1, %0" : "+v"(acc.v) : "v"(w.v), "v"(x.v));
  return acc;
#else
  return {_mm512_dpbusd_epi32(acc.v, w.v, x.v)};
#endif
}
QUENA_INLINE vec to_float(ivec a) { return {_mm512_maskz_cvtepi32_ps(all, a.v)}; }
