// SPDX-License-Identifier: MIT
// A small pool of threads for programs without OpenMP: spins briefly for the next operation, then sleeps.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif

#include "../../core/error.hpp"
#include "../../core/process.hpp"
#include "target.hpp"

namespace quena::inline QUENA_ABI {

namespace detail {

/// The cores this process may use.
inline std::size_t available_cores() noexcept {
#if defined(__linux__)
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) == 0)
    if (const int n = CPU_COUNT(&set); n > 0) return static_cast<std::size_t>(n);
#endif
  const unsigned n = std::thread::hardware_concurrency();
  return n == 0 ? 1 : n;
}

/// Tells the core that this is a waiting loop.
inline void relax() noexcept {
#if QUENA_X86
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

}  // namespace detail

/// An executor: n - 1 threads and the caller. If another thread is inside parallel_for(), or a task calls it, the second caller
/// runs its tasks alone. In a child after fork() the pool works, with the caller's thread only.
class thread_pool {
 public:
  /// n_threads = 0: one for each core of this process.
  /// Errors   out_of_memory: the system refuses a thread.
  explicit thread_pool(std::size_t n_threads = 0) {
    const std::size_t n = n_threads != 0 ? n_threads : detail::available_cores();
    try {
      threads_.reserve(n - 1);
      for (std::size_t i = 1; i < n; ++i) threads_.emplace_back([this] { work(); });
    } catch (const std::system_error&) {
      const std::size_t got = threads_.size();
      stop();
      fail(errc::out_of_memory, "thread_pool", {"expected to start ", n - 1, " threads, got ", got});
    }
  }
  thread_pool(const thread_pool&) = delete;
  thread_pool& operator=(const thread_pool&) = delete;
  ~thread_pool() { stop(); }

  [[nodiscard]] std::size_t concurrency() const noexcept { return threads_.size() + 1; }

  template <class F>
  void parallel_for(std::size_t n, F&& f) {
    if (n <= 1 || threads_.empty() || busy_.test_and_set(std::memory_order_acquire)) {
      for (std::size_t i = 0; i < n; ++i) f(i);
      return;
    }
    object_ = &f;
    call_ = [](void* object, std::size_t i) { (*static_cast<std::remove_reference_t<F>*>(object))(i); };
    n_ = n;
    next_.store(0, std::memory_order_relaxed);
    gate_.fetch_add(generation);  // opens: the generation becomes odd
    if (sleepers_.load() != 0 && detail::process_id() == owner_) wake_all();
    take_tasks();
    gate_.fetch_add(generation);  // closes: nobody enters any more
    for (int spins = 0; (gate_.load(std::memory_order_acquire) & active_mask) != 0; ++spins) wait_a_little(spins);
    busy_.clear(std::memory_order_release);
  }

 private:
  // gate_: the upper half counts openings and closings, the lower half the threads inside.
  static constexpr std::uint64_t generation = std::uint64_t{1} << 32, active_mask = generation - 1;
  static constexpr int spins_before_sleep = 4000;  // about 50 to 100 us

  static void wait_a_little(int spins) noexcept {
    if (spins < 2000) detail::relax();
    else std::this_thread::yield();
  }
  void take_tasks() {
    for (std::size_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < n_;) call_(object_, i);
  }
  [[nodiscard]] bool is_open(std::uint64_t seen) const noexcept {
    const std::uint64_t g = gate_.load() / generation;
    return g % 2 == 1 && g != seen;
  }
  void work() {
    std::uint64_t seen = 0;
    while (!stopping_.load(std::memory_order_acquire)) {
      for (int spins = 0; !is_open(seen) && !stopping_.load(std::memory_order_acquire); ++spins) {
        if (spins < spins_before_sleep) {
          detail::relax();
          continue;
        }
        std::unique_lock lock(sleep_->mutex);
        sleepers_.fetch_add(1);
        sleep_->wake.wait(lock, [&] { return is_open(seen) || stopping_.load(); });
        sleepers_.fetch_sub(1);
      }
      std::uint64_t g = gate_.load();
      while (g / generation % 2 == 1 && g / generation != seen) {
        if (!gate_.compare_exchange_weak(g, g + 1)) continue;
        seen = g / generation;
        take_tasks();
        gate_.fetch_sub(1, std::memory_order_release);
        break;
      }
    }
  }
  void wake_all() noexcept {
    { const std::lock_guard lock(sleep_->mutex); }
    sleep_->wake.notify_all();
  }
  void stop() noexcept {
    if (detail::process_id() != owner_) {  // in a child after fork() the threads do not exist: nothing to join, nobody to wake
      static_cast<void>(sleep_.release());
      static_cast<void>(new (std::nothrow) std::vector<std::thread>(std::move(threads_)));
      return;
    }
    stopping_.store(true);
    wake_all();
    for (std::thread& t : threads_) t.join();
    threads_.clear();
  }

  struct sleeping {
    std::mutex mutex;
    std::condition_variable wake;
  };

  std::vector<std::thread> threads_;
  std::unique_ptr<sleeping> sleep_ = std::make_unique<sleeping>();
  std::atomic_flag busy_;
  alignas(64) std::atomic<std::uint64_t> gate_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stopping_{false};
  alignas(64) std::atomic<std::size_t> next_{0};
  alignas(64) void* object_ = nullptr;
  void (*call_)(void*, std::size_t) = nullptr;
  std::size_t n_ = 0;
  long owner_ = detail::process_id();
};

}  // namespace quena::inline QUENA_ABI
