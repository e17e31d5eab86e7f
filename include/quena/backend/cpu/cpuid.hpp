// SPDX-License-Identifier: MIT
// Which instruction sets this processor has and the operating system lets us use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "../../core/error.hpp"
#include "target.hpp"

#if QUENA_X86
#if defined(_MSC_VER) && !defined(__clang__)
#include <intrin.h>
#else
#include <cpuid.h>
#endif
#endif

namespace quena::inline QUENA_ABI {

/// The kernels' instruction sets, in rising order. `portable` is what the compiler's own flags give (SSE2, NEON, …).
enum class isa : std::uint8_t { portable, avx2, avx512 };

[[nodiscard]] constexpr std::string_view isa_name(isa i) noexcept {
  return i == isa::avx512 ? "avx512" : i == isa::avx2 ? "avx2" : "portable";
}

struct cpu_features {
  bool avx2 = false;         ///< with FMA and F16C
  bool avx512 = false;       ///< F, BW, DQ, VL, and avx2
  bool avx512_vnni = false;  ///< and avx512
};

/// Asks the processor (CPUID) and the operating system (XGETBV: does it save these registers?). Source: Intel SDM vol. 1, 14.3, 15.2.
[[nodiscard]] inline cpu_features detect_cpu() noexcept {
  cpu_features f;
#if QUENA_X86
  std::uint32_t leaf1[4] = {}, leaf7[4] = {};
#if defined(_MSC_VER) && !defined(__clang__)
  int r[4];
  __cpuid(r, 0);
  if (r[0] < 7) return f;
  __cpuidex(reinterpret_cast<int*>(leaf1), 1, 0);
  __cpuidex(reinterpret_cast<int*>(leaf7), 7, 0);
#else
  if (!__get_cpuid(1, &leaf1[0], &leaf1[1], &leaf1[2], &leaf1[3])) return f;
  if (!__get_cpuid_count(7, 0, &leaf7[0], &leaf7[1], &leaf7[2], &leaf7[3])) return f;
#endif
  const auto bit = [](std::uint32_t word, int n) { return (word >> n & 1u) != 0; };
  if (!bit(leaf1[2], 27)) return f;  // OSXSAVE: XGETBV exists
#if defined(_MSC_VER) && !defined(__clang__)
  const std::uint64_t saved = _xgetbv(0);
#else
  std::uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  const std::uint64_t saved = low | std::uint64_t{high} << 32;
#endif
  f.avx2 = (saved & 0x06) == 0x06 && bit(leaf7[1], 5) && bit(leaf1[2], 12) && bit(leaf1[2], 29);
  f.avx512 = f.avx2 && (saved & 0xe6) == 0xe6 && bit(leaf7[1], 16) && bit(leaf7[1], 17) && bit(leaf7[1], 30) && bit(leaf7[1], 31);
  f.avx512_vnni = f.avx512 && bit(leaf7[2], 11);
#endif
  return f;
}

/// How many bytes ahead of a stream of weights kernels should ask for memory; 0: not at all. AMD's prefetchers keep up by themselves, and
/// requests on top of theirs cost up to 40 %, depending on where the code lies (measured on Zen 4); other makers' are not known to.
[[nodiscard]] inline std::size_t stream_ahead() noexcept {
#if QUENA_X86
  constexpr std::uint32_t amd = 0x444d4163;  // "cAMD", the end of "AuthenticAMD"
#if defined(_MSC_VER) && !defined(__clang__)
  int r[4];
  __cpuid(r, 0);
  if (static_cast<std::uint32_t>(r[2]) == amd) return 0;
#else
  std::uint32_t a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(0, &a, &b, &c, &d) && c == amd) return 0;
#endif
#endif
  return 2048;
}

/// The best instruction set of this machine, not above `cap` nor above QUENA_ISA (portable, avx2, avx512) in the environment.
/// Errors   invalid_argument: QUENA_ISA is something else.
[[nodiscard]] inline isa best_isa(std::optional<isa> cap = {}) {
  const cpu_features f = QUENA_WIDE_KERNELS ? detect_cpu() : cpu_features{};
  isa best = f.avx512 ? isa::avx512 : f.avx2 ? isa::avx2 : isa::portable;
  if (cap && *cap < best) best = *cap;
  if (const char* named = std::getenv("QUENA_ISA"); named != nullptr && *named != '\0') {
    for (const isa i : {isa::portable, isa::avx2, isa::avx512})
      if (isa_name(i) == named) return i < best ? i : best;
    fail(errc::invalid_argument, "cpu", {"expected QUENA_ISA to be portable, avx2 or avx512, got ", named});
  }
  return best;
}

}  // namespace quena::inline QUENA_ABI
