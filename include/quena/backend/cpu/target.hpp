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

#if defined(_MSC_VER) && !defined(__clang__)
#define QUENA_INLINE __forceinline
#define QUENA_INLINE_LAMBDA
#else
#define QUENA_INLINE inline __attribute__((always_inline))
#define QUENA_INLINE_LAMBDA __attribute__((always_inline))
#endif

// QUENA_FLAGS names an inline namespace after the compiler's flags. Whatever is compiled differently under different flags lives
// in it, so two translation units with different -m flags (or with and without OpenMP) never share such a function.
#if defined(__AVX512VNNI__)
#define QUENA_FLAG_ISA 9
#elif defined(__AVX512BW__)
#define QUENA_FLAG_ISA 8
#elif defined(__AVX512F__)
#define QUENA_FLAG_ISA 7
#elif defined(__AVX2__)
#define QUENA_FLAG_ISA 6
#elif defined(__AVX__)
#define QUENA_FLAG_ISA 5
#elif defined(__SSE4_2__)
#define QUENA_FLAG_ISA 4
#elif defined(__SSE4_1__)
#define QUENA_FLAG_ISA 3
#elif defined(__SSSE3__)
#define QUENA_FLAG_ISA 2
#elif defined(__SSE3__)
#define QUENA_FLAG_ISA 1
#else
#define QUENA_FLAG_ISA 0
#endif
#if defined(__FMA__)
#define QUENA_FLAG_FMA 1
#else
#define QUENA_FLAG_FMA 0
#endif
#if defined(__BMI2__)
#define QUENA_FLAG_BMI 1
#else
#define QUENA_FLAG_BMI 0
#endif
#if defined(__FAST_MATH__)
#define QUENA_FLAG_FAST 1
#else
#define QUENA_FLAG_FAST 0
#endif
#if defined(_OPENMP)
#define QUENA_FLAG_OPENMP 1
#else
#define QUENA_FLAG_OPENMP 0
#endif
#define QUENA_PASTE_FLAGS(a, b, c, d, e) flags_##a##b##c##d##e
#define QUENA_EXPAND_FLAGS(a, b, c, d, e) QUENA_PASTE_FLAGS(a, b, c, d, e)
#define QUENA_FLAGS QUENA_EXPAND_FLAGS(QUENA_FLAG_ISA, QUENA_FLAG_FMA, QUENA_FLAG_BMI, QUENA_FLAG_FAST, QUENA_FLAG_OPENMP)
