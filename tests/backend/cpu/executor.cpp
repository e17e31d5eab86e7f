// SPDX-License-Identifier: MIT
#include <quena/backend/cpu/executor.hpp>

#include <atomic>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

using namespace quena;

namespace {

template <class E>
void runs_each_task_once(E& e) {
  for (const std::size_t n : {0u, 1u, 2u, 3u, 7u, 100u}) {
    std::vector<std::atomic<int>> counts(n);
    e.parallel_for(n, [&](std::size_t i) { counts[i].fetch_add(1); });
    for (const auto& c : counts) CHECK(c.load() == 1);
  }
}

}  // namespace

static_assert(executor<serial_executor>);
static_assert(executor<thread_pool>);

TEST_CASE("executor: serial runs in order on the caller's thread") {
  serial_executor e;
  runs_each_task_once(e);
  std::vector<std::size_t> order;
  const auto self = std::this_thread::get_id();
  e.parallel_for(4, [&](std::size_t i) {
    CHECK(std::this_thread::get_id() == self);
    order.push_back(i);
  });
  CHECK(order == std::vector<std::size_t>{0, 1, 2, 3});
  CHECK(e.concurrency() == 1);
}

TEST_CASE("executor: a host's pool") {
  std::size_t calls = 0;
  host_executor e(5, [&](std::size_t n, auto task) {
    ++calls;
    for (std::size_t i = n; i-- > 0;) task(i);
  });
  static_assert(executor<decltype(e)>);
  runs_each_task_once(e);
  CHECK(calls == 6);
  CHECK(e.concurrency() == 5);
  CHECK(host_executor(0, [](std::size_t, auto) {}).concurrency() == 1);
}

#if defined(_OPENMP)
TEST_CASE("executor: OpenMP, also after its threads were let go, and inside a region of the host's") {
  static_assert(executor<openmp_executor>);
  openmp_executor e(3);
  CHECK(e.concurrency() == 3);
  const int before = omp_get_max_threads();
  runs_each_task_once(e);
  e.release_threads();
  runs_each_task_once(e);
  CHECK(omp_get_max_threads() == before);  // the program's setting is the program's
  std::atomic<int> total{0};
#pragma omp parallel num_threads(2)
  {
    openmp_executor inner(2);
    inner.parallel_for(10, [&](std::size_t) { total.fetch_add(1); });
  }
  CHECK(total.load() == 20);
  CHECK(openmp_executor().concurrency() >= 1);
}
#endif

TEST_CASE("executor: any executor behind one type") {
  serial_executor serial;
  const auto ref = detail::any_executor::refer(serial);
  CHECK(ref.concurrency() == 1);
  auto owned = detail::any_executor::own<thread_pool>(std::size_t{3});
  CHECK(owned.concurrency() == 3);
  const auto moved = std::move(owned);
  std::atomic<int> sum{0};
  const auto task = [&](std::size_t i) { sum.fetch_add(static_cast<int>(i)); };
  moved.run(10, {&task, [](const void* t, std::size_t i) { (*static_cast<const decltype(task)*>(t))(i); }});
  CHECK(sum.load() == 45);
  moved.release_threads();
  CHECK(detail::default_executor(1).concurrency() == 1);
  CHECK(detail::default_executor(2).concurrency() == 2);
}
