// SPDX-License-Identifier: MIT
#include <quena/backend/cpu/thread_pool.hpp>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#if defined(__unix__)
#include <sys/wait.h>
#include <unistd.h>
#endif

using namespace quena;

namespace {

std::size_t sum_with(thread_pool& pool, std::size_t n) {
  std::vector<std::size_t> out(n);  // plain memory: the pool itself must order the writes
  pool.parallel_for(n, [&](std::size_t i) { out[i] = i + 1; });
  std::size_t sum = 0;
  for (const std::size_t v : out) sum += v;
  return sum;
}

}  // namespace

TEST_CASE("thread_pool: thousands of loops, long and short, with pauses in which the threads fall asleep") {
  for (const std::size_t threads : {1u, 2u, 3u, 7u}) {
    thread_pool pool(threads);
    CHECK(pool.concurrency() == threads);
    for (std::size_t n = 0; n < 400; ++n) {
      REQUIRE(sum_with(pool, n % 50) == (n % 50) * (n % 50 + 1) / 2);
      if (n % 100 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
}

TEST_CASE("thread_pool: by default a thread for each core of this process") { CHECK(thread_pool().concurrency() == detail::available_cores()); }

TEST_CASE("thread_pool: a second caller and a task inside a task run alone, no deadlock") {
  thread_pool pool(3);
  std::atomic<int> inner{0};
  pool.parallel_for(6, [&](std::size_t) { pool.parallel_for(5, [&](std::size_t) { inner.fetch_add(1); }); });
  CHECK(inner.load() == 30);
  std::vector<std::thread> callers;
  std::atomic<std::size_t> total{0};
  for (int t = 0; t < 4; ++t)
    callers.emplace_back([&] {
      for (int r = 0; r < 100; ++r) total.fetch_add(sum_with(pool, 20));
    });
  for (std::thread& t : callers) t.join();
  CHECK(total.load() == 4u * 100u * 210u);
}

TEST_CASE("thread_pool: more than one thread takes part") {
  thread_pool pool(2);
  std::atomic<int> inside{0};
  bool met = false;
  for (int attempt = 0; attempt < 50 && !met; ++attempt) {
    std::atomic<bool> both{false};
    pool.parallel_for(2, [&](std::size_t) {
      inside.fetch_add(1);
      const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
      while (inside.load() < 2 && !both.load() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
      if (inside.load() == 2) both.store(true);
    });
    inside.store(0);
    met = both.load();
  }
  CHECK(met);
}

#if defined(__unix__) && !defined(__SANITIZE_THREAD__)
TEST_CASE("thread_pool: a child after fork() works alone and ends") {
  thread_pool* pool = new thread_pool(3);
  REQUIRE(sum_with(*pool, 10) == 55);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    const bool right = sum_with(*pool, 10) == 55 && sum_with(*pool, 10) == 55;
    delete pool;
    ::_exit(right ? 0 : 1);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(sum_with(*pool, 10) == 55);
  delete pool;
}
#endif
