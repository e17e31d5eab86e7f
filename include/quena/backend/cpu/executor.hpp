// SPDX-License-Identifier: MIT
// Who runs the tasks of an operation: our own threads, OpenMP, the caller alone, or the host program's pool.
//
// Our own pool is the default, also in programs built with OpenMP. Where other programs want the cores, too, OpenMP waits at the end of
// every loop for each of its threads to be scheduled, while the pool's caller takes over what a sleeping thread has not begun: decoding
// on 2 cores beside compilers was 3 to 30 times faster with it (bench/kernels.cpp, bf16, one row). On a quiet machine the two have not
// been compared yet. The pool also survives fork() and does not depend on the flags of the translation unit.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "../../core/error.hpp"
#include "target.hpp"
#include "thread_pool.hpp"

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace quena::inline QUENA_ABI {

/// Runs f(0) … f(n - 1), in any order, at most concurrency() of them at a time, and returns when all are done. The tasks of one
/// call are independent, never throw and never wait for one another. Results do not depend on the executor.
template <class E>
concept executor = requires(E& e, const E& c, std::size_t n, void (*f)(std::size_t)) {
  { c.concurrency() } -> std::convertible_to<std::size_t>;
  e.parallel_for(n, f);
};

/// The caller's thread only.
class serial_executor {
 public:
  [[nodiscard]] std::size_t concurrency() const noexcept { return 1; }
  template <class F>
  void parallel_for(std::size_t n, F&& f) {
    for (std::size_t i = 0; i < n; ++i) f(i);
  }
};

/// A host's own pool: `run(n, task)` must call task(i) for each i below n, on any threads, and return when all are done.
///   quena::host_executor pool(8, [&](std::size_t n, auto task) { my_pool.for_each_index(n, task); });
template <class Run>
class host_executor {
 public:
  host_executor(std::size_t concurrency, Run run) : concurrency_(concurrency == 0 ? 1 : concurrency), run_(std::move(run)) {}
  [[nodiscard]] std::size_t concurrency() const noexcept { return concurrency_; }
  template <class F>
  void parallel_for(std::size_t n, F&& f) {
    run_(n, f);
  }

 private:
  std::size_t concurrency_;
  Run run_;
};

#if defined(_OPENMP)

/// OpenMP's threads; never changes the program's OpenMP settings. After fork() a child that uses OpenMP again may hang unless
/// release_threads() was called before.
class openmp_executor {
 public:
  /// n_threads = 0: as many as OpenMP would take (OMP_NUM_THREADS, else the cores of this process).
  explicit openmp_executor(std::size_t n_threads = 0)
      : n_threads_(n_threads != 0 ? n_threads : static_cast<std::size_t>((std::max)(1, omp_get_max_threads()))) {}
  [[nodiscard]] std::size_t concurrency() const noexcept { return n_threads_; }
  template <class F>
  void parallel_for(std::size_t n, F&& f) {
    const int n_threads = static_cast<int>((std::min)(n, n_threads_));
    if (n_threads <= 1) {
      for (std::size_t i = 0; i < n; ++i) f(i);
      return;
    }
#pragma omp parallel for schedule(dynamic, 1) num_threads(n_threads)
    for (std::size_t i = 0; i < n; ++i) f(i);
  }
  void release_threads() noexcept {
#if _OPENMP >= 201811 || (defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 9)
    omp_pause_resource_all(omp_pause_hard);
#endif
  }

 private:
  std::size_t n_threads_;
};

#endif

namespace detail {

/// A reference to a callable task(i): two pointers.
struct task_ref {
  const void* object;
  void (*call)(const void*, std::size_t);
  void operator()(std::size_t i) const { call(object, i); }
};

struct executor_calls {
  std::size_t (*concurrency)(const void*);
  void (*run)(void*, std::size_t, task_ref);
  void (*release_threads)(void*);
  void (*destroy)(void*);
};

template <class E>
inline constexpr executor_calls calls_of{
    [](const void* e) -> std::size_t { return static_cast<const E*>(e)->concurrency(); },
    [](void* e, std::size_t n, task_ref task) { static_cast<E*>(e)->parallel_for(n, task); },
    [](void* e) {
      if constexpr (requires { static_cast<E*>(e)->release_threads(); }) static_cast<E*>(e)->release_threads();
    },
    [](void* e) { delete static_cast<E*>(e); }};

/// Any executor behind two pointers, so that `cpu` is one type in every translation unit; owns it or refers to it.
class any_executor {
 public:
  template <executor E>
  [[nodiscard]] static any_executor refer(E& e) noexcept {
    return any_executor(&e, &calls_of<E>, false);
  }
  template <executor E, class... Args>
  [[nodiscard]] static any_executor own(Args&&... args) {
    return any_executor(new E(std::forward<Args>(args)...), &calls_of<E>, true);
  }
  any_executor(any_executor&& other) noexcept : object_(std::exchange(other.object_, nullptr)), calls_(other.calls_), owned_(other.owned_) {}
  any_executor& operator=(any_executor&& other) noexcept {
    std::swap(object_, other.object_), std::swap(calls_, other.calls_), std::swap(owned_, other.owned_);
    return *this;
  }
  ~any_executor() {
    if (owned_ && object_ != nullptr) calls_->destroy(object_);
  }

  [[nodiscard]] std::size_t concurrency() const { return calls_->concurrency(object_); }
  void run(std::size_t n, task_ref task) const { calls_->run(object_, n, task); }
  void release_threads() const { calls_->release_threads(object_); }

 private:
  any_executor(void* object, const executor_calls* calls, bool owned) noexcept : object_(object), calls_(calls), owned_(owned) {}
  void* object_;
  const executor_calls* calls_;
  bool owned_;
};

/// The executor of a program that did not choose one. n_threads = 0: a thread for each core of this process.
inline any_executor default_executor(std::size_t n_threads) {
  return n_threads == 1 ? any_executor::own<serial_executor>() : any_executor::own<thread_pool>(n_threads);
}

}  // namespace detail

}  // namespace quena::inline QUENA_ABI
