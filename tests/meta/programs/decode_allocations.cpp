// SPDX-License-Identifier: MIT
// Generating text allocates nothing per token after the first one. A program of its own, because it replaces the global operator
// new; exit status 0: it holds.
#include <quena/generate.hpp>

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"  // all of them are malloc and free
#endif

namespace {
std::atomic<std::size_t> n_allocations = 0;
}

void* operator new(std::size_t n) {
  ++n_allocations;
  if (void* p = std::malloc(n > 0 ? n : 1)) return p;
  throw std::bad_alloc();
}
void* operator new[](std::size_t n) { return operator new(n); }
#if !defined(_WIN32)  // there, aligned memory has a free() of its own
void* operator new(std::size_t n, std::align_val_t) {
  ++n_allocations;
  void* p = nullptr;
  if (::posix_memalign(&p, 2 << 20, n > 0 ? n : 1) == 0) return p;
  throw std::bad_alloc();
}
void* operator new(std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept { return operator new(n, a); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
#endif

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : QUENA_SOURCE_DIR "/examples/data/stories260K";
  const auto model = quena::load(folder, {.threads = 2});
  quena::sampling_options sampling;
  sampling.temperature = 0.8f;
  sampling.top_p = 0.95f;
  sampling.repetition_penalty = 1.1f;
  quena::generation<quena::cpu> text(model, model.tokenizer.encode("Once upon a time"), {.max_tokens = 200, .sampling = sampling, .stop = {"never in the text"}});
  std::size_t n_bytes = 0, before = 0;
  for (int piece = 0; text.next(); ++piece) {
    n_bytes += text.piece().size();
    if (piece == 1) before = n_allocations;  // the first decode pass is behind us
  }
  const std::size_t made = n_allocations - before;
  std::printf("%zu tokens, %zu bytes, %zu allocations after the first\n", text.ids().size(), n_bytes, made);
  return text.ids().size() >= 50 && made == 0 ? 0 : 1;
}
