// SPDX-License-Identifier: MIT
// After its first token a sampler allocates nothing, and a stop matcher nothing after its first long piece. A program of its
// own, because it replaces the global operator new; exit status 0: it holds.
#include <quena/sample/sampler.hpp>
#include <quena/sample/stop.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <new>
#include <string>
#include <vector>

namespace {
std::size_t n_allocations = 0;
}

void* operator new(std::size_t n) {
  ++n_allocations;
  if (void* p = std::malloc(n > 0 ? n : 1)) return p;
  throw std::bad_alloc();
}
void* operator new[](std::size_t n) { return operator new(n); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }

namespace {

constexpr std::size_t vocab_size = 4000;

/// Logits whose shape changes from step to step: peaked, flat, tied, mostly banned, so that every list reaches its worst case.
void fill(std::vector<float>& logits, std::uint32_t step) {
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double u = quena::uniform_unit(quena::random_bits(1, step, static_cast<std::uint32_t>(i)));
    switch (step % 5) {
      case 0:
        logits[i] = static_cast<float>(-20 * u);
        break;
      case 1:
        logits[i] = static_cast<float>(1e-3 * u);
        break;
      case 2:
        logits[i] = 1.0f;
        break;
      case 3:
        logits[i] = u < 0.9 && i != 7 ? -std::numeric_limits<float>::infinity() : 1.0f;
        break;
      default:
        logits[i] = static_cast<float>(std::floor(5 * u));
        break;
    }
  }
}

bool sampler_is_quiet(const char* name, const quena::sampling_options& options) {
  std::vector<float> logits(vocab_size);
  quena::sampler sampler(options, vocab_size);
  const std::vector<std::int32_t> prompt{1, 2, 3};
  sampler.accept_prompt(prompt);
  std::size_t after_first = 0;
  for (std::uint32_t step = 0; step < 200; ++step) {
    fill(logits, step);
    sampler.accept(sampler.choose(logits).token);
    if (step == 0) after_first = n_allocations;
  }
  sampler.reset();
  sampler.accept_prompt(prompt);
  sampler.accept(sampler.choose(logits).token);
  const std::size_t n = n_allocations - after_first;
  if (n != 0) std::printf("%s: expected no allocation after the first token, got %zu\n", name, n);
  return n == 0;
}

bool matcher_is_quiet() {
  const std::vector<std::string> stops{"<|end|>", "\n\nUser:", "abcabcabd"};
  quena::stop_matcher matcher(stops);
  const std::string pieces[] = {"abc", "abcabc", "<|", "en", "x\n\nUser", "?", std::string(100, 'a')};
  std::size_t before = n_allocations, n_bytes = 0;
  for (int i = 0; i < 5000; ++i) {
    n_bytes += matcher.push(pieces[static_cast<std::size_t>(i * i + i / 7) % 7]).size();
    if (i % 1000 == 999) {
      n_bytes += matcher.flush().size();
      matcher.reset();
    }
  }
  const std::size_t n = n_allocations - before;
  if (n != 0 || n_bytes == 0) std::printf("stop_matcher: expected no allocation, got %zu\n", n);
  return n == 0 && n_bytes > 0;
}

}  // namespace

int main() {
  bool quiet = matcher_is_quiet();
  quiet &= sampler_is_quiet("greedy", {.temperature = 0});
  quiet &= sampler_is_quiet("plain", {});
  quiet &= sampler_is_quiet("top-k", {.top_k = 40});
  quiet &= sampler_is_quiet("large top-k", {.top_k = 3000});
  quiet &= sampler_is_quiet("top-p", {.top_p = 0.95f});
  quiet &= sampler_is_quiet("min-p", {.min_p = 0.05f});
  quiet &= sampler_is_quiet("typical", {.typical_p = 0.9f});
  quiet &= sampler_is_quiet("log-probabilities", {.temperature = 0, .n_logprobs = 20});
  quiet &= sampler_is_quiet("everything", {.temperature = 0.8f,
                                           .top_k = 100,
                                           .top_p = 0.9f,
                                           .min_p = 0.01f,
                                           .typical_p = 0.9f,
                                           .repetition_penalty = 1.1f,
                                           .presence_penalty = 0.1f,
                                           .frequency_penalty = 0.1f,
                                           .penalty_last_n = 64,
                                           .logit_bias = {{3, 1.0f}},
                                           .banned_tokens = {9},
                                           .end_tokens = {2},
                                           .min_tokens = 5,
                                           .n_logprobs = 5});
  return quiet ? 0 : 1;
}
