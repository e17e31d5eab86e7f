// SPDX-License-Identifier: MIT
#include <quena/backend/cpu/cpuid.hpp>

#include <cstdlib>
#include <string>

#include <doctest/doctest.h>

using namespace quena;

namespace {

/// QUENA_ISA for the length of a scope.
class environment {
 public:
  explicit environment(const char* value) {
    if (const char* old = std::getenv("QUENA_ISA")) old_ = old, had_ = true;
    set(value);
  }
  ~environment() { set(had_ ? old_.c_str() : ""); }
  environment(const environment&) = delete;
  environment& operator=(const environment&) = delete;

 private:
  static void set(const char* value) {
#if defined(_WIN32)
    _putenv_s("QUENA_ISA", value);
#else
    ::setenv("QUENA_ISA", value, 1);
#endif
  }
  std::string old_;
  bool had_ = false;
};

}  // namespace

TEST_CASE("cpuid: features build on one another") {
  const cpu_features f = detect_cpu();
  if (f.avx512_vnni) CHECK(f.avx512);
  if (f.avx512) CHECK(f.avx2);
#if defined(__GNUC__) && defined(__x86_64__)
  if (f.avx2) CHECK(__builtin_cpu_supports("avx2"));
  if (f.avx512) CHECK(__builtin_cpu_supports("avx512vl"));
#endif
}

TEST_CASE("cpuid: caps by argument and environment, the lower one counts") {
  const environment none("");
  const isa best = best_isa();
  CHECK(best_isa(isa::portable) == isa::portable);
  CHECK(best_isa(isa::avx512) == best);
  {
    const environment cap("portable");
    CHECK(best_isa() == isa::portable);
    CHECK(best_isa(isa::avx512) == isa::portable);
  }
  {
    const environment cap("avx2");
    CHECK(best_isa() <= isa::avx2);
    CHECK(best_isa(isa::portable) == isa::portable);
  }
  {
    const environment cap("avx512");  // a cap, not an order: never more than there is
    CHECK(best_isa() == best);
  }
}

TEST_CASE("cpuid: a name that means nothing is an error that says what does") {
  const environment wrong("sse9");
  try {
    static_cast<void>(best_isa());
    FAIL_CHECK("expected an error");
  } catch (const error& e) {
    CHECK(e.code() == errc::invalid_argument);
    CHECK(std::string(e.what()) == "[cpu] expected QUENA_ISA to be portable, avx2 or avx512, got sse9");
  }
}
