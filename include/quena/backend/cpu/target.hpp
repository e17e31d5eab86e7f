// SPDX-License-Identifier: MIT
// Target regions: functions that are compiled for another instruction set than the rest of the program.
#pragma once

#if defined(__x86_64__) || defined(_M_X64)
#define QUENA_X86 1
#include <immintrin.h>
#else
#define QUENA_X86 0
#endif

// Whether there are kernels for more than the compiler's own flags. g++ for Windows aligns the stack to 16 bytes only (its bug
// 54412), so wider vectors that it keeps there would fault.
#if QUENA_X86 && !(defined(_WIN32) && defined(__GNUC__) && !defined(__clang__))
#define QUENA_WIDE_KERNELS 1
#else
#define QUENA_WIDE_KERNELS 0
#endif

// Functions (also lambdas and templates) between BEGIN and END are compiled for `isa`, whatever flags the program uses. Inside
// there are raw pointers, intrinsics and our own functions only: a std:: template instantiated there would be compiled for the
// region's ISA, and the linker might keep that copy for the whole program.
#define QUENA_PRAGMA(x) _Pragma(#x)
#if defined(__clang__)
#define QUENA_TARGET_BEGIN(isa) QUENA_PRAGMA(clang attribute push(__attribute__((target(isa))), apply_to = function))
#define QUENA_TARGET_END _Pragma("clang attribute pop")
#elif defined(__GNUC__)
#define QUENA_TARGET_BEGIN(isa) _Pragma("GCC push_options") QUENA_PRAGMA(GCC target(isa))
#define QUENA_TARGET_END _Pragma("GCC pop_options")
#else
#define QUENA_TARGET_BEGIN(isa)
#define QUENA_TARGET_END
#endif

#define QUENA_TARGET_AVX2 "avx2,fma,f16c"
#define QUENA_TARGET_AVX512 "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"
#define QUENA_TARGET_AVX512_VNNI "avx512vnni,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"

#if defined(_MSC_VER) && !defined(__clang__)
#define QUENA_INLINE __forceinline
#define QUENA_INLINE_LAMBDA
#else
#define QUENA_INLINE inline __attribute__((always_inline))
#define QUENA_INLINE_LAMBDA __attribute__((always_inline))
#endif
