// SPDX-License-Identifier: MIT
// The kernels, compiled once for each instruction set, and the choice among them.
//
// simd/<isa>.inl is a small vector vocabulary, kernels/*.inl are written once over it; here both are included again for each ISA
// inside a namespace of its own. A program built for the oldest x86-64 so runs AVX-512 code where there is some.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>

#include "../../core/float16.hpp"
#include "../../quant/cells.hpp"
#include "code_layout.hpp"
#include "cpuid.hpp"
#include "kernel_table.hpp"
#include "target.hpp"

#if (defined(__SSE2__) || defined(__aarch64__)) && __has_include(<xsimd/xsimd.hpp>) && !defined(QUENA_NO_XSIMD)
#define QUENA_HAS_XSIMD 1
// xsimd does not survive the macros of some platforms' headers.
#pragma push_macro("min")
#undef min
#pragma push_macro("max")
#undef max
#pragma push_macro("I")
#undef I
#pragma push_macro("IN")
#undef IN
#pragma push_macro("OUT")
#undef OUT
#pragma push_macro("ERROR")
#undef ERROR
#pragma push_macro("TRUE")
#undef TRUE
#pragma push_macro("near")
#undef near
#pragma push_macro("far")
#undef far
#pragma push_macro("small")
#undef small
#pragma push_macro("interface")
#undef interface
#pragma push_macro("major")
#undef major
#pragma push_macro("minor")
#undef minor
#include <xsimd/xsimd.hpp>
#pragma pop_macro("min")
#pragma pop_macro("max")
#pragma pop_macro("I")
#pragma pop_macro("IN")
#pragma pop_macro("OUT")
#pragma pop_macro("ERROR")
#pragma pop_macro("TRUE")
#pragma pop_macro("near")
#pragma pop_macro("far")
#pragma pop_macro("small")
#pragma pop_macro("interface")
#pragma pop_macro("major")
#pragma pop_macro("minor")
#else
#define QUENA_HAS_XSIMD 0
#endif

namespace quena::inline QUENA_ABI {
namespace detail {
namespace kernels {

#define QUENA_KERNEL_TABLE(name, level, codes)                                                                                                       \
  inline constexpr kernel_table name{level,                                                                                            \
                                      lanes,                                                                                            \
                                      few_rows,                                                                                         \
                                      {&matmul_few<float>, &matmul_few<f16>, &matmul_few<bf16>},                                        \
                                      {&matmul_many<float>, &matmul_many<f16>, &matmul_many<bf16>},                                     \
                                      &codes::quantize,                                                                                 \
                                      &codes::matmul_codes,                                                                             \
                                      {{&attend<float>, &attend<f16>, &attend<bf16>}, &attend<std::int8_t>},                                          \
                                      &merge,                                                                                           \
                                      {{&append<float>, &append<f16>, &append<bf16>}, &append_codes},                                          \
                                      &rotate,                                                                                          \
                                      &rmsnorm,                                                                                         \
                                      &softmax,                                                                                         \
                                      &exp_all,                                                                                         \
                                      &swiglu_all,                                                                                      \
                                      {&narrow<float>, &narrow<f16>, &narrow<bf16>},                                                    \
                                      {&widen<float>, &widen<f16>, &widen<bf16>}};

namespace portable {
#include "simd/portable.inl"
#include "kernels/tile.inl"
#include "kernels/elementwise.inl"
#include "kernels/matmul.inl"
#include "kernels/attention.inl"
#include "kernels/unpack.inl"
#include "kernels/dot_float.inl"
#include "kernels/codes.inl"
QUENA_KERNEL_TABLE(table, isa::portable, portable)
}  // namespace portable

#if QUENA_WIDE_KERNELS
QUENA_TARGET_BEGIN(QUENA_TARGET_AVX2)
namespace avx2 {
#include "simd/avx2.inl"
#include "kernels/tile.inl"
#include "kernels/elementwise.inl"
#include "kernels/matmul.inl"
#include "kernels/attention.inl"
#include "kernels/unpack.inl"
#include "kernels/dot_integer.inl"
#include "kernels/dot_pairs.inl"
#include "kernels/codes.inl"
}  // namespace avx2
QUENA_TARGET_END
namespace avx2 {
QUENA_KERNEL_TABLE(table, isa::avx2, avx2)
}

QUENA_TARGET_BEGIN(QUENA_TARGET_AVX512)
namespace avx512 {
#include "simd/avx512.inl"
#include "kernels/tile.inl"
#include "kernels/elementwise.inl"
#include "kernels/matmul.inl"
#include "kernels/attention.inl"
}  // namespace avx512
QUENA_TARGET_END
QUENA_TARGET_BEGIN(QUENA_TARGET_AVX512_VNNI)
namespace avx512 {
#include "simd/avx512_vnni.inl"
#include "kernels/unpack.inl"
#include "kernels/dot_integer.inl"
#include "kernels/dot_quads.inl"
#include "kernels/codes.inl"
}  // namespace avx512
QUENA_TARGET_END
namespace avx512 {
QUENA_KERNEL_TABLE(table, isa::avx512, avx512)
QUENA_KERNEL_TABLE(table_without_vnni, isa::avx512, avx2)
}
#endif

#undef QUENA_KERNEL_TABLE

}  // namespace kernels

/// The kernels for an instruction set that this machine has (see best_isa).
inline const kernel_table& kernels_for(isa level) noexcept {
#if QUENA_WIDE_KERNELS
  if (level == isa::avx512) return detect_cpu().avx512_vnni ? kernels::avx512::table : kernels::avx512::table_without_vnni;
  if (level == isa::avx2) return kernels::avx2::table;
#endif
  static_cast<void>(level);
  return kernels::portable::table;
}

}  // namespace detail
}  // namespace quena::inline QUENA_ABI
