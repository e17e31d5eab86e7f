// SPDX-License-Identifier: MIT
// What this machine can do at best: bytes read from memory per second, float and int8 multiply-accumulates per second.
// Every speed that we publish is a share of these, measured in the same run, because machines change within minutes.
//
// One multiply plus one add is one MAC. Kernels are a loop of independent accumulators with their operands in registers, one
// instruction per statement of inline assembly so that no compiler can fold or spill them; each lives in a function of its own
// that is compiled for its ISA, so the program itself needs no -m flags.
#pragma once

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#if defined(__aarch64__)
#include <sys/auxv.h>
#endif
#endif

namespace quena_bench {

/// One measured rate: the median of several repeats, and how far they spread.
struct figure {
  double median = 0, lowest = 0, highest = 0;
};

/// The ceilings of this machine with `n_threads` threads.
struct ceilings {
  int n_threads = 1;
  figure read_gb_s;    ///< 1e9 bytes per second, streaming read of memory far larger than the caches
  figure fp32_gmac_s;  ///< 1e9 float multiply-accumulates per second
  figure int8_gmac_s;  ///< 1e9 int8 multiply-accumulates (into int32) per second
  std::string_view fp32_instruction, int8_instruction, read_instruction;
};

inline figure summary(std::vector<double> rates) {
  if (rates.empty()) return {};
  std::sort(rates.begin(), rates.end());
  return {rates[rates.size() / 2], rates.front(), rates.back()};
}

// ---- kernels ----------------------------------------------------------------------------------------------------------------
// Twelve chains cover latency times width of every core known (4 to 5 cycles, two a cycle).

#define QUENA_BENCH_TWELVE(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

/// Runs `iterations` rounds of a kernel's instruction.
using compute_kernel = void (*)(long iterations);
/// Reads `n_bytes` (a multiple of 512) from `data` (aligned to 64).
using read_kernel = void (*)(const std::byte* data, std::size_t n_bytes);

struct compute_unit {
  compute_kernel run = nullptr;
  double macs_per_iteration = 0;
  std::string_view instruction;
};
struct read_unit {
  read_kernel run = nullptr;
  std::string_view instruction;
};

namespace isa {

#if defined(__x86_64__)
namespace avx512 {
#define QUENA_BENCH_TARGET __attribute__((target("avx512f,avx512vnni"), noinline))
#define QUENA_BENCH_ZERO(n) __m512i a##n = _mm512_setzero_si512();
#define QUENA_BENCH_FMA(n) __asm__ volatile("vfmadd231ps %2, %1, %0" : "+v"(a##n) : "v"(x), "v"(y));
#define QUENA_BENCH_DOT(n) __asm__ volatile("vpdpbusd %2, %1, %0" : "+v"(a##n) : "v"(x), "v"(y));

QUENA_BENCH_TARGET inline void fp32(long iterations) {
  const __m512i x = _mm512_set1_epi32(0x3f000000), y = x;  // 0.5f
  QUENA_BENCH_TWELVE(QUENA_BENCH_ZERO)
  for (long i = 0; i < iterations; ++i) { QUENA_BENCH_TWELVE(QUENA_BENCH_FMA) }
}

QUENA_BENCH_TARGET inline void int8(long iterations) {
  const __m512i x = _mm512_set1_epi32(0x01010101), y = x;
  QUENA_BENCH_TWELVE(QUENA_BENCH_ZERO)
  for (long i = 0; i < iterations; ++i) { QUENA_BENCH_TWELVE(QUENA_BENCH_DOT) }
}

QUENA_BENCH_TARGET inline void read(const std::byte* p, std::size_t n_bytes) {
  __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
  for (const std::byte* const end = p + n_bytes; p != end; p += 256) {
    for (int ahead = 2048; ahead < 2304; ahead += 64) __builtin_prefetch(p + ahead);
    a = _mm512_xor_si512(a, _mm512_load_si512(p));
    b = _mm512_xor_si512(b, _mm512_load_si512(p + 64));
    c = _mm512_xor_si512(c, _mm512_load_si512(p + 128));
    d = _mm512_xor_si512(d, _mm512_load_si512(p + 192));
  }
  __asm__ volatile("" ::"v"(a), "v"(b), "v"(c), "v"(d));
}
#undef QUENA_BENCH_TARGET
#undef QUENA_BENCH_ZERO
#undef QUENA_BENCH_FMA
#undef QUENA_BENCH_DOT
}  // namespace avx512

namespace avx2 {
#define QUENA_BENCH_TARGET __attribute__((target("avx2,fma"), noinline))
#define QUENA_BENCH_ZERO(n) __m256i a##n = _mm256_setzero_si256();
#define QUENA_BENCH_FMA(n) __asm__ volatile("vfmadd231ps %2, %1, %0" : "+x"(a##n) : "x"(x), "x"(y));
// Without dot product instructions an int8 product takes three: pairs to int16, pairs to int32, add.
#define QUENA_BENCH_DOT(n)                                                                                              \
  __asm__ volatile("vpmaddubsw %3, %2, %1\n\tvpmaddwd %4, %1, %1\n\tvpaddd %1, %0, %0" : "+x"(a##n), "=&x"(t) : "x"(x), \
                   "x"(y), "x"(ones));

QUENA_BENCH_TARGET inline void fp32(long iterations) {
  const __m256i x = _mm256_set1_epi32(0x3f000000), y = x;
  QUENA_BENCH_TWELVE(QUENA_BENCH_ZERO)
  for (long i = 0; i < iterations; ++i) { QUENA_BENCH_TWELVE(QUENA_BENCH_FMA) }
}
QUENA_BENCH_TARGET inline void int8(long iterations) {
  const __m256i x = _mm256_set1_epi8(1), y = x, ones = _mm256_set1_epi16(1);
  QUENA_BENCH_TWELVE(QUENA_BENCH_ZERO)
  __m256i t;
  for (long i = 0; i < iterations; ++i) { QUENA_BENCH_TWELVE(QUENA_BENCH_DOT) }
}

QUENA_BENCH_TARGET inline void read(const std::byte* p, std::size_t n_bytes) {
  __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
  for (const std::byte* const end = p + n_bytes; p != end; p += 128) {
    __builtin_prefetch(p + 2048);
    __builtin_prefetch(p + 2112);
    const __m256i* const q = reinterpret_cast<const __m256i*>(p);
    a = _mm256_xor_si256(a, _mm256_load_si256(q));
    b = _mm256_xor_si256(b, _mm256_load_si256(q + 1));
    c = _mm256_xor_si256(c, _mm256_load_si256(q + 2));
    d = _mm256_xor_si256(d, _mm256_load_si256(q + 3));
  }
  __asm__ volatile("" ::"x"(a), "x"(b), "x"(c), "x"(d));
}
#undef QUENA_BENCH_TARGET
#undef QUENA_BENCH_ZERO
#undef QUENA_BENCH_FMA
#undef QUENA_BENCH_DOT
}  // namespace avx2

namespace sse2 {
#define QUENA_BENCH_ZERO(n) __m128i a##n = _mm_setzero_si128();
#define QUENA_BENCH_FMA(n) \
  __asm__ volatile("movaps %2, %1\n\tmulps %3, %1\n\taddps %1, %0" : "+x"(a##n), "=&x"(t) : "x"(x), "x"(y));
#define QUENA_BENCH_DOT(n) /* int8 widened to int16 beforehand */ \
  __asm__ volatile("movdqa %2, %1\n\tpmaddwd %3, %1\n\tpaddd %1, %0" : "+x"(a##n), "=&x"(t) : "x"(x), "x"(y));

inline void fp32(long iterations) {
  const __m128i x = _mm_set1_epi32(0x3f000000), y = x;
  QUENA_BENCH_TWELVE(QUENA_BENCH_ZERO)
  __m128i t;
  for (long i = 0; i < iterations; ++i) { QUENA_BENCH_TWELVE(QUENA_BENCH_FMA) }
}

inline void int8(long iterations) {
  const __m128i x = _mm_set1_epi16(1), y = x;
  QUENA_BENCH_TWELVE(QUENA_BENCH_ZERO)
  __m128i t;
  for (long i = 0; i < iterations; ++i) { QUENA_BENCH_TWELVE(QUENA_BENCH_DOT) }
}
#undef QUENA_BENCH_ZERO
#undef QUENA_BENCH_FMA
#undef QUENA_BENCH_DOT
}  // namespace sse2

#elif defined(__aarch64__)
namespace neon {
#define QUENA_BENCH_ZERO(n) int32x4_t a##n = vdupq_n_s32(0);
#define QUENA_BENCH_FMA(n) __asm__ volatile("fmla %0.4s, %1.4s, %2.4s" : "+w"(a##n) : "w"(x), "w"(y));
#define QUENA_BENCH_DOT(n) __asm__ volatile("sdot %0.4s, %1.16b, %2.16b" : "+w"(a##n) : "w"(x), "w"(y));
#if defined(__clang__)
#define QUENA_BENCH_TARGET __attribute__((target("dotprod"), noinline))
#else
#define QUENA_BENCH_TARGET __attribute__((target("arch=armv8.2-a+dotprod"), noinline))
#endif
// Without dot product instructions: eight products to int16, then pairs added into int32.
#define QUENA_BENCH_WIDEN(n) \
  __asm__ volatile("smull %1.8h, %2.8b, %3.8b\n\tsadalp %0.4s, %1.8h" : "+w"(a##n), "=&w"(t) : "w"(x), "w"(y));

inline void fp32(long iterations) {
  const int32x4_t x = vdupq_n_s32(0x3f000000), y = x;
  QUENA_BENCH_TWELVE(QUENA_BENCH_ZERO)
  for (long i = 0; i < iterations; ++i) { QUENA_BENCH_TWELVE(QUENA_BENCH_FMA) }
}

QUENA_BENCH_TARGET inline void int8_dot(long iterations) {
  const int32x4_t x = vdupq_n_s32(0x01010101), y = x;
  QUENA_BENCH_TWELVE(QUENA_BENCH_ZERO)
  for (long i = 0; i < iterations; ++i) { QUENA_BENCH_TWELVE(QUENA_BENCH_DOT) }
}

inline void int8(long iterations) {
  const int32x4_t x = vdupq_n_s32(0x01010101), y = x;
  QUENA_BENCH_TWELVE(QUENA_BENCH_ZERO)
  int32x4_t t;
  for (long i = 0; i < iterations; ++i) { QUENA_BENCH_TWELVE(QUENA_BENCH_WIDEN) }
}
#undef QUENA_BENCH_ZERO
#undef QUENA_BENCH_FMA
#undef QUENA_BENCH_DOT
#undef QUENA_BENCH_WIDEN
#undef QUENA_BENCH_TARGET
}  // namespace neon
#endif

namespace any {  // plain C++, whatever the machine

inline void fp32(long iterations) {
  volatile float x = 0.5f;
  float a[8] = {};
  for (long i = 0; i < iterations; ++i)
    for (float& s : a) s += x * x;
  x = a[0] + a[1] + a[2] + a[3] + a[4] + a[5] + a[6] + a[7];
}

inline void int8(long iterations) {
  volatile std::int8_t x = 1;
  std::int32_t a[8] = {};
  for (long i = 0; i < iterations; ++i)
    for (std::int32_t& s : a) s += x * x;
  volatile std::int32_t sink = a[0] + a[1] + a[2] + a[3] + a[4] + a[5] + a[6] + a[7];
  static_cast<void>(sink);
}

inline void read(const std::byte* p, std::size_t n_bytes) {
  std::uint64_t a[8] = {};
  for (const std::byte* const end = p + n_bytes; p != end; p += 64) {
    std::uint64_t words[8];
    std::memcpy(words, p, 64);
    for (int i = 0; i < 8; ++i) a[i] ^= words[i];
  }
  volatile std::uint64_t sink = a[0] ^ a[1] ^ a[2] ^ a[3] ^ a[4] ^ a[5] ^ a[6] ^ a[7];
  static_cast<void>(sink);
}

}  // namespace any
}  // namespace isa
#undef QUENA_BENCH_TWELVE

// ---- which kernels this machine has -------------------------------------------------------------------------------------------

/// What the processor and the operating system both allow.
struct cpu_features {
  bool avx2_fma = false, avx512_vnni = false, dotprod = false;
};

inline cpu_features detect_cpu() {
  cpu_features f;
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1)) return f;  // OSXSAVE
  const bool fma = c >> 12 & 1;
  unsigned low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return f;
  f.avx2_fma = fma && (low & 0x06) == 0x06 && (b >> 5 & 1);
  f.avx512_vnni = f.avx2_fma && (low & 0xe6) == 0xe6 && (b >> 16 & 1) && (c >> 11 & 1);
#elif defined(__aarch64__) && defined(__linux__)
  f.dotprod = getauxval(AT_HWCAP) >> 20 & 1;  // HWCAP_ASIMDDP
#endif
  return f;
}

inline compute_unit best_fp32_unit([[maybe_unused]] const cpu_features& cpu) {
#if defined(__x86_64__)
  if (cpu.avx512_vnni) return {isa::avx512::fp32, 12 * 16, "vfmadd231ps zmm"};
  if (cpu.avx2_fma) return {isa::avx2::fp32, 12 * 8, "vfmadd231ps ymm"};
  return {isa::sse2::fp32, 12 * 4, "mulps + addps"};
#elif defined(__aarch64__)
  return {isa::neon::fp32, 12 * 4, "fmla.4s"};
#else
  return {isa::any::fp32, 8, "plain C++"};
#endif
}

inline compute_unit best_int8_unit([[maybe_unused]] const cpu_features& cpu) {
#if defined(__x86_64__)
  if (cpu.avx512_vnni) return {isa::avx512::int8, 12 * 64, "vpdpbusd zmm"};
  if (cpu.avx2_fma) return {isa::avx2::int8, 12 * 32, "vpmaddubsw + vpmaddwd + vpaddd ymm"};
  return {isa::sse2::int8, 12 * 8, "pmaddwd + paddd"};
#elif defined(__aarch64__)
  if (cpu.dotprod) return {isa::neon::int8_dot, 12 * 16, "sdot.4s"};
  return {isa::neon::int8, 12 * 8, "smull + sadalp"};
#else
  return {isa::any::int8, 8, "plain C++"};
#endif
}

inline read_unit best_read_unit([[maybe_unused]] const cpu_features& cpu) {
#if defined(__x86_64__)
  if (cpu.avx512_vnni) return {isa::avx512::read, "64-byte loads"};
  if (cpu.avx2_fma) return {isa::avx2::read, "32-byte loads"};
#endif
  return {isa::any::read, "plain loads"};
}

// ---- measuring ------------------------------------------------------------------------------------------------------------------

/// Runs body(thread) on `n_threads` threads at once, `n_repeats` times.
/// Returns units per second of each repeat, from the common start to the end of the last thread.
template <class Body>
std::vector<double> timed_rates(int n_threads, int n_repeats, double units, const Body& body) {
  using clock = std::chrono::steady_clock;
  std::vector<clock::time_point> ends(static_cast<std::size_t>(n_threads));
  clock::time_point start;
  std::vector<double> rates;
  std::barrier<> together(n_threads);
  const auto work = [&](int thread) {
    for (int r = 0; r < n_repeats; ++r) {
      together.arrive_and_wait();
      if (thread == 0) start = clock::now();
      body(thread);
      ends[static_cast<std::size_t>(thread)] = clock::now();
      together.arrive_and_wait();
      if (thread == 0)
        rates.push_back(units / std::chrono::duration<double>(*std::max_element(ends.begin(), ends.end()) - start).count());
    }
  };
  std::vector<std::thread> others;
  for (int t = 1; t < n_threads; ++t) others.emplace_back(work, t);
  work(0);
  for (std::thread& t : others) t.join();
  return rates;
}

/// GMAC/s of one unit on all threads; `seconds` is what the measurement may take.
inline figure measure_compute(const compute_unit& unit, int n_threads, double seconds) {
  constexpr int n_repeats = 7;
  using clock = std::chrono::steady_clock;
  long iterations = 20'000;  // doubled until the clock's grain does not matter; this is the warm-up too
  double once = 0;
  for (;; iterations *= 2) {
    const auto start = clock::now();
    unit.run(iterations);
    once = std::chrono::duration<double>(clock::now() - start).count();
    if (once > 0.01 * seconds) break;
  }
  iterations = std::max(1L, static_cast<long>(static_cast<double>(iterations) * 0.9 * seconds / n_repeats / once));
  const double macs = static_cast<double>(iterations) * unit.macs_per_iteration * n_threads;
  return summary(timed_rates(n_threads, n_repeats, macs * 1e-9, [&](int) { unit.run(iterations); }));
}

/// Memory that is far larger than the caches, with large pages where they are to be had.
class big_buffer {
 public:
  explicit big_buffer(std::size_t n_bytes) : size_(n_bytes), data_(static_cast<std::byte*>(::operator new(n_bytes, alignment))) {
#if defined(__linux__)
    static_cast<void>(madvise(data_, size_, MADV_HUGEPAGE));
#endif
  }
  ~big_buffer() { ::operator delete(data_, alignment); }
  big_buffer(const big_buffer&) = delete;
  big_buffer& operator=(const big_buffer&) = delete;

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  static constexpr std::align_val_t alignment{std::size_t{2} << 20};
  std::size_t size_;
  std::byte* data_;
};

/// Eight times the last level's size as the system reports it, at least 256 MiB and at most 1 GiB.
inline std::size_t read_buffer_bytes() {
  std::size_t cache = 0;
#if defined(__linux__) && defined(_SC_LEVEL3_CACHE_SIZE)
  if (const long size = sysconf(_SC_LEVEL3_CACHE_SIZE); size > 0) cache = static_cast<std::size_t>(size);
#endif
  return std::clamp(8 * cache, std::size_t{256} << 20, std::size_t{1} << 30) >> 21 << 21;
}

/// GB/s of reading a large buffer once, each thread its own part.
inline figure measure_read(const read_unit& unit, int n_threads, double seconds) {
  constexpr int n_repeats = 9;
  std::unique_ptr<big_buffer> buffer;
  for (std::size_t n_bytes = read_buffer_bytes(); !buffer; n_bytes /= 2) {  // a small machine gets a smaller one
    try {
      buffer = std::make_unique<big_buffer>(n_bytes);
    } catch (const std::bad_alloc&) {
      if (n_bytes < (std::size_t{32} << 20)) throw;
    }
  }
  const std::size_t part = buffer->size() / static_cast<std::size_t>(n_threads) / 4096 * 4096;
  const auto mine = [&](int thread) { return buffer->data() + static_cast<std::size_t>(thread) * part; };
  timed_rates(n_threads, 1, 1, [&](int thread) { std::memset(mine(thread), thread + 1, part); });
  const double gb = static_cast<double>(part) * n_threads * 1e-9;
  const double pass_s = 1 / timed_rates(n_threads, 1, 1, [&](int thread) { unit.run(mine(thread), part); }).front();
  const int n_passes = std::max(1, static_cast<int>(seconds / n_repeats / pass_s));
  return summary(timed_rates(n_threads, n_repeats, gb * n_passes, [&](int thread) {
    for (int pass = 0; pass < n_passes; ++pass) unit.run(mine(thread), part);
  }));
}

/// Measures all three ceilings; takes about `seconds`, and a little for the buffer.
/// n_threads = 0: all hardware threads.
inline ceilings measure_ceilings(int n_threads = 0, double seconds = 0.8) {
  if (n_threads <= 0) n_threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const cpu_features cpu = detect_cpu();
  const compute_unit fp32 = best_fp32_unit(cpu), int8 = best_int8_unit(cpu);
  const read_unit read = best_read_unit(cpu);
  ceilings c;
  c.n_threads = n_threads;
  c.read_gb_s = measure_read(read, n_threads, 0.4 * seconds);
  c.fp32_gmac_s = measure_compute(fp32, n_threads, 0.3 * seconds);
  c.int8_gmac_s = measure_compute(int8, n_threads, 0.3 * seconds);
  c.fp32_instruction = fp32.instruction;
  c.int8_instruction = int8.instruction;
  c.read_instruction = read.instruction;
  return c;
}

// ---- the first line of every report --------------------------------------------------------------------------------------------

/// The processor's name, as the system or the processor tells it.
inline std::string cpu_name() {
#if defined(__x86_64__)
  unsigned words[12] = {};
  bool known = true;
  for (unsigned leaf = 0; leaf < 3; ++leaf)
    known = known && __get_cpuid(0x80000002u + leaf, &words[4 * leaf], &words[4 * leaf + 1], &words[4 * leaf + 2], &words[4 * leaf + 3]);
  if (known) {
    char text[49] = {};
    std::memcpy(text, words, 48);
    std::string name(text);
    while (!name.empty() && name.back() == ' ') name.pop_back();
    name.erase(0, std::min(name.find_first_not_of(' '), name.size()));
    return name;
  }
#endif
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.rfind("model name", 0) == 0 || line.rfind("Model", 0) == 0)
      if (const std::size_t at = line.find(": "); at != line.npos) return line.substr(at + 2);
  return "unknown processor";
}

inline std::string_view widest_isa() {
  [[maybe_unused]] const cpu_features cpu = detect_cpu();
#if defined(__x86_64__)
  return cpu.avx512_vnni ? "avx512+vnni" : cpu.avx2_fma ? "avx2+fma" : "sse2";
#elif defined(__aarch64__)
  return cpu.dotprod ? "neon+dotprod" : "neon";
#else
  return "portable";
#endif
}

/// CPU, ISA, threads, compiler, optimisation and commit in one line.
inline std::string facts_line(int n_threads) {
  std::string s = cpu_name();
  s.append(", ").append(widest_isa()).append(", ").append(std::to_string(n_threads)).append(n_threads == 1 ? " thread" : " threads");
#if defined(__clang__)
  s.append(", clang " __clang_version__);
#elif defined(__GNUC__)
  s.append(", g++ " __VERSION__);
#endif
#if defined(QUENA_BENCH_FLAGS)
  s.append(", ").append(QUENA_BENCH_FLAGS);
#elif defined(__OPTIMIZE__)
  s.append(", optimised");
#else
  s.append(", NOT optimised");
#endif
#if defined(QUENA_BENCH_COMMIT)
  s.append(", commit ").append(QUENA_BENCH_COMMIT);
#endif
  return s;
}

}  // namespace quena_bench
