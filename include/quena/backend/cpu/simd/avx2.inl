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
QUENA_INLINE vec load(const std::uint8_t* p) { return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))}; }
QUENA_INLINE vec load(const std::int8_t* p) { return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))}; }
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

struct ivec {
  __m256i v;
};
inline constexpr int code_columns = 4;  // 8 sums, 2 weights and their magnitudes, 1 broadcast, 1 product, a vector of ones of 16 registers
inline constexpr bool signed_bytes = true;

QUENA_INLINE ivec iset1(std::int32_t x) { return {_mm256_set1_epi32(x)}; }
QUENA_INLINE ivec broadcast4(const std::int32_t* p) { return {_mm256_set1_epi32(*p)}; }
QUENA_INLINE ivec load_codes(const std::uint8_t* p) { return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))}; }
QUENA_INLINE ivec low_nibbles(ivec a) { return {_mm256_and_si256(a.v, _mm256_set1_epi8(15))}; }
QUENA_INLINE ivec high_nibbles(ivec a) { return {_mm256_and_si256(_mm256_srli_epi16(a.v, 4), _mm256_set1_epi8(15))}; }
/// pairs + in each half of an element the products of two codes of w, without a sign and below 64, and x, added in 16 bits: 2 * 63 * 127 <
/// 2^15. (Written out: g++ 12 copies sums from register to register around the intrinsics.)
QUENA_INLINE ivec add_products(ivec pairs, ivec w, ivec x) {
#if defined(__GNUC__)
  ivec products;
  __asm__("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0" : "+x"(pairs.v), "=&x"(products.v) : "x"(w.v), "x"(x.v));
  return pairs;
#else
  return {_mm256_add_epi16(pairs.v, _mm256_maddubs_epi16(w.v, x.v))};
#endif
}
/// acc + both halves of each element
QUENA_INLINE ivec add_halves(ivec acc, ivec pairs) { return {_mm256_add_epi32(acc.v, _mm256_madd_epi16(pairs.v, _mm256_set1_epi16(1)))}; }
/// Codes of 8 bits less their offset of 128, and the magnitudes of these, which are the operand without a sign: 2 * 128 * 127 < 2^15.
QUENA_INLINE ivec less_offset(ivec w) { return {_mm256_xor_si256(w.v, _mm256_set1_epi8(-128))}; }
QUENA_INLINE ivec magnitudes(ivec w) { return {_mm256_abs_epi8(w.v)}; }
/// acc + the four products of w and x in each element
QUENA_INLINE ivec add_signed_products(ivec acc, ivec w, ivec magnitude, ivec x) {
  const __m256i ones = _mm256_set1_epi16(1);
#if defined(__GNUC__)
  ivec products;
  __asm__("vpsignb %3, %4, %1\n\tvpmaddubsw %1, %2, %1\n\tvpmaddwd %5, %1, %1\n\tvpaddd %1, %0, %0"
          : "+x"(acc.v), "=&x"(products.v) : "x"(magnitude.v), "x"(w.v), "x"(x.v), "x"(ones));
  return acc;
#else
  return {_mm256_add_epi32(acc.v, _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude.v, _mm256_sign_epi8(x.v, w.v)), ones))};
#endif
}
QUENA_INLINE vec to_float(ivec a) { return {_mm256_cvtepi32_ps(a.v)}; }
QUENA_INLINE void store_bytes(std::int8_t* p, vec a) {  // integral, within -128 … 127
  const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(a.v), _mm256_setzero_si256());
  const __m256i bytes = _mm256_packs_epi16(words, _mm256_setzero_si256());  // four in each half
  const std::int32_t low = _mm256_extract_epi32(bytes, 0), high = _mm256_extract_epi32(bytes, 4);
  __builtin_memcpy(p, &low, 4);
  __builtin_memcpy(p + 4, &high, 4);
}
