// SPDX-License-Identifier: MIT
// 1,000 engines made, used and destroyed leave memory where it was. A program of its own, because it replaces the global operator new;
// exit status 0: it holds.
#include <quena/backend/reference.hpp>
#include <quena/engine/engine.hpp>

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"  // all of them are malloc and free
#endif

namespace {
std::atomic<long> n_blocks = 0;

void* counted(void* p) {
  if (p == nullptr) throw std::bad_alloc();
  ++n_blocks;
  return p;
}
void released(void* p) noexcept {
  if (p != nullptr) --n_blocks;
  std::free(p);
}
}  // namespace

void* operator new(std::size_t n) { return counted(std::malloc(n > 0 ? n : 1)); }
void* operator new[](std::size_t n) { return operator new(n); }
void operator delete(void* p) noexcept { released(p); }
void operator delete[](void* p) noexcept { released(p); }
void operator delete(void* p, std::size_t) noexcept { released(p); }
void operator delete[](void* p, std::size_t) noexcept { released(p); }
#if !defined(_WIN32)  // there, aligned memory has a free() of its own
void* operator new(std::size_t n, std::align_val_t) {
  void* p = nullptr;
  return counted(::posix_memalign(&p, 2 << 20, n > 0 ? n : 1) == 0 ? p : nullptr);
}
void* operator new(std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept { return operator new(n, a); }
void operator delete(void* p, std::align_val_t) noexcept { released(p); }
void operator delete(void* p, std::align_val_t, const std::nothrow_t&) noexcept { released(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { released(p); }
#endif

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : QUENA_SOURCE_DIR "/examples/data/stories260K";
  const quena::llama<quena::reference> model(quena::checkpoint::open(folder), quena::reference());
  std::vector<quena::token_id> prompt(20, 5);
  const auto once = [&](int i) {
    quena::engine<quena::reference> e(model, {.cache = {.max_positions = 64, .max_sequences = 2, .n_pages = 5}, .token_budget = 24, .swap_bytes = 1 << 20});
    std::vector<quena::request_handle> handles;
    for (int k = 0; k < 3; ++k) handles.push_back(e.submit({.prompt = prompt, .max_tokens = 20, .n = 2}));
    if (i % 4 == 0) e.start();
    if (i % 4 == 1) e.step(), e.step();
    if (i % 4 == 2) handles[0].cancel(), e.step();
    if (i % 4 == 0) static_cast<void>(handles[0].next());
  };
  long first = 0;
  for (int i = 0; i < 1000; ++i) {
    once(i);
    if (i == 7) first = n_blocks;
  }
  std::printf("%ld blocks of memory after 8 engines, %ld after 1,000\n", first, n_blocks.load());
  return n_blocks == first ? 0 : 1;
}
