// SPDX-License-Identifier: MIT
// The namespace that everything lives in.
#pragma once

// QUENA_ABI names the inline namespace inside quena: the version, and the compiler's flags that change what inline functions compile
// to. Two translation units of a program with different -m flags so never share an inline function of ours (the linker keeps only
// one copy, and the one with AVX instructions would crash an older machine). A quena type cannot be passed between two such units;
// that is an error of the linker, not of the running program.
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
#define QUENA_ABI_PASTE(a, b, c, d) v0_##a##b##c##d
#define QUENA_ABI_EXPAND(a, b, c, d) QUENA_ABI_PASTE(a, b, c, d)
#define QUENA_ABI QUENA_ABI_EXPAND(QUENA_FLAG_ISA, QUENA_FLAG_FMA, QUENA_FLAG_BMI, QUENA_FLAG_FAST)
