// SPDX-License-Identifier: MIT
#include <quena/backend/cpu/cpu.hpp>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

using namespace quena;

namespace {

std::vector<float> random_floats(std::size_t n, unsigned seed) {
  std::mt19937 gen(seed);
  std::normal_distribution<float> normal;
  std::vector<float> v(n);
  for (float& x : v) x = normal(gen);
  return v;
}
const std::byte* bytes_of(const std::vector<float>& v) { return reinterpret_cast<const std::byte*>(v.data()); }

constexpr stream_limits limits{.max_rows = 600, .max_width = 1024, .n_heads = 4, .head_dim = 64, .max_positions = 1024};

/// A matrix, a gate-and-up pair and inputs, and all three products of them by some backend.
struct problem {
  std::size_t rows, cols, n;
  format f;
  std::vector<float> w = random_floats(rows * cols, 1), up = random_floats(rows * cols, 2), bias = random_floats(rows, 3), x = random_floats(n * cols, 4),
                     residual = random_floats(n * rows, 5);

  [[nodiscard]] matrix_source source() const { return {"w", dtype::f32, rows, cols, bytes_of(w), 0, {dtype::f32, rows, bytes_of(bias)}}; }
  [[nodiscard]] matrix_source up_source() const { return {"up", dtype::f32, rows, cols, bytes_of(up), 0, {}}; }

  [[nodiscard]] static cpu_matrix packed(const matrix_source& one, format f) { return cpu().prepare({&one, 1}, f); }
  cpu_matrix m = packed(source(), f), pair = cpu().prepare_gate_up(source(), up_source(), f);

  /// Rows [from, from + count) of the three products, one after the other.
  [[nodiscard]] std::vector<float> products(const cpu& b, std::size_t from, std::size_t count) const {
    auto s = b.make_stream(limits);
    std::vector<float> y(3 * count * rows);
    std::memcpy(y.data() + count * rows, residual.data() + from * rows, count * rows * sizeof(float));
    const tensor_view<const float, 2> in(x.data() + from * cols, {count, cols});
    const auto part = [&](std::size_t i) { return tensor_view<float, 2>(y.data() + i * count * rows, {count, rows}); };
    b.matmul(s, m, in, part(0));
    b.matmul_add(s, m, in, part(1));
    b.matmul_swiglu(s, pair, in, part(2));
    return y;
  }
};

float stored(float v, format f) { return f == format::f16 ? static_cast<float>(f16(v)) : f == format::bf16 ? static_cast<float>(bf16(v)) : v; }

bool same_bits(const float* a, const float* b, std::size_t n) { return std::memcmp(a, b, n * sizeof(float)) == 0; }

}  // namespace

TEST_CASE("cpu: options") {
  CHECK(cpu(cpu_options{.threads = 1}).concurrency() == 1);
  CHECK(cpu(cpu_options{.threads = 5}).concurrency() == 5);
  CHECK(cpu().concurrency() >= 1);
  CHECK_THROWS_WITH_AS(cpu(cpu_options{.threads = -1}), "[cpu] expected 0 to 4096 threads, got -1", error);
  CHECK_THROWS_AS(cpu(cpu_options{.threads = 1000000}), error);
  CHECK(cpu(cpu_options{.level = isa::portable}).name() == "cpu (portable)");
  thread_pool pool(3);
  CHECK(cpu(pool).concurrency() == 3);
  CHECK(cpu(pool, {.threads = 2}).concurrency() == 2);
  cpu a(cpu_options{.threads = 2});
  const cpu moved = std::move(a);
  CHECK(moved.concurrency() == 2);
  moved.release_threads();
}

TEST_CASE("cpu: products against double sums, within the bound of the docstring") {
  for (const isa level : {isa::portable, isa::avx2, isa::avx512}) {
    if (best_isa(level) != level) continue;
    const cpu b(cpu_options{.threads = 2, .level = level, .task_work = 1});
    CAPTURE(std::string(b.name()));
    for (const format f : {format::f32, format::f16, format::bf16})
      for (const auto& shape : {std::array<std::size_t, 3>{1, 1, 1}, {15, 3, 2}, {16, 7, 5}, {17, 255, 1}, {31, 256, 11}, {33, 257, 14}, {100, 600, 65}, {300, 64, 250}}) {
        const std::size_t rows = shape[0], cols = shape[1], n = shape[2];
        const problem p{rows, cols, n, f};
        const std::vector<float> y = p.products(b, 0, n);
        const double u = 0x1p-24, n_cols = static_cast<double>(cols), chain = 2 * std::min(n_cols, 256.0) + n_cols / 256 + 4;
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < n; ++i)
          for (std::size_t r = 0; r < rows; ++r) {
            double sum = double{p.bias[r]}, size = std::abs(sum), second = 0, second_size = 0;
            for (std::size_t k = 0; k < cols; ++k) {
              const double x = double{p.x[i * cols + k]}, a = double{stored(p.w[r * cols + k], f)} * x, c = double{stored(p.up[r * cols + k], f)} * x;
              sum += a, size += std::abs(a), second += c, second_size += std::abs(c);
            }
            const double residual = double{p.residual[i * rows + r]}, silu = sum / (1 + std::exp(-sum));
            const auto far_off = [&](std::size_t part, double right, double bound) { return !(std::abs(double{y[(part * n + i) * rows + r]} - right) <= bound); };
            wrong += far_off(0, sum, chain * u * size) ? 1 : 0;
            wrong += far_off(1, residual + sum, (chain + 1) * u * (size + std::abs(residual))) ? 1 : 0;
            // silu's slope is at most 1.1
            wrong += far_off(2, silu * second, 1.1 * chain * u * (size * std::abs(second) + second_size * std::abs(silu)) + 8 * u * std::abs(silu * second) + 1e-30) ? 1 : 0;
          }
        CHECK(wrong == 0);
      }
  }
}

TEST_CASE("cpu: a row's product has the same bits alone, among others, and with any threads, executor and stride") {
  serial_executor serial;
  thread_pool pool(3);
  host_executor backwards(4, [](std::size_t n, auto task) {
    for (std::size_t i = n; i-- > 0;) task(i);
  });
  for (const isa level : {isa::portable, isa::avx2, isa::avx512}) {
    if (best_isa(level) != level) continue;
    for (const format f : {format::f32, format::f16, format::bf16}) {
      const problem p{70, 520, 261, f};  // more columns than two blocks, more rows than one block, every size of tile
      const std::size_t width = p.rows;
      const std::vector<float> whole = p.products(cpu(serial, {.level = level}), 0, p.n);
      const auto check = [&](const cpu& b, std::size_t from, std::size_t count) {
        const std::vector<float> y = p.products(b, from, count);
        for (std::size_t part = 0; part < 3; ++part)
          CHECK(same_bits(y.data() + part * count * width, whole.data() + (part * p.n + from) * width, count * width));
      };
      for (const int threads : {1, 2, 3, 7}) check(cpu(cpu_options{.threads = threads, .level = level, .task_work = 1}), 0, p.n);
      const cpu b(pool, {.level = level, .task_work = 1}), c(backwards, {.level = level, .task_work = 1});
      for (const std::size_t count : {1u, 2u, 3u, 4u, 5u, 7u, 8u, 11u, 12u, 13u, 23u, 64u, 65u, 100u, 241u}) check(count % 2 ? b : c, 7, count);
    }
  }
}

TEST_CASE("cpu: rows with any stride; nothing outside the output is written") {
  const cpu b(cpu_options{.threads = 2, .task_work = 1});
  auto s = b.make_stream(limits);
  for (const std::size_t n : {1u, 9u, 70u, 300u}) {
    const problem p{45, 40, n, format::bf16};
    const matrix_source src = p.source();
    const cpu_matrix m = b.prepare({&src, 1}, p.f);
    const std::size_t x_stride = 1024, y_stride = 51;  // 4 KiB apart: the worst for a cache
    std::vector<float> x(n * x_stride, std::numeric_limits<float>::quiet_NaN()), y(n * y_stride, 77), right(n * 45);
    for (std::size_t i = 0; i < n; ++i) std::memcpy(x.data() + i * x_stride, p.x.data() + i * 40, 40 * sizeof(float));
    b.matmul(s, m, {x.data(), {n, 40}, {1024, 1}}, {y.data(), {n, 45}, {51, 1}});
    b.matmul(s, m, {p.x.data(), {n, 40}}, {right.data(), {n, 45}});
    for (std::size_t i = 0; i < n; ++i) {
      CHECK(same_bits(y.data() + i * y_stride, right.data() + i * 45, 45));
      for (std::size_t k = 45; k < 51; ++k) CHECK(y[i * y_stride + k] == 77);
    }
  }
}

TEST_CASE("cpu: a matrix without columns gives its bias, one without rows nothing") {
  const cpu b;
  auto s = b.make_stream(limits);
  const std::vector<float> bias{1, 2, 3};
  const matrix_source src{"w", dtype::f32, 3, 0, nullptr, 0, {dtype::f32, 3, bytes_of(bias)}}, none{"w", dtype::f32, 0, 4, nullptr, 0, {}};
  const cpu_matrix m = b.prepare({&src, 1}, format::f32), e = b.prepare({&none, 1}, format::f32);
  for (const std::size_t n : {1u, 70u}) {
    std::vector<float> y(n * 3, 9), x(n * 4);
    b.matmul(s, m, {x.data(), {n, 0}}, {y.data(), {n, 3}});
    for (std::size_t i = 0; i < 3 * n; ++i) CHECK(y[i] == bias[i % 3]);
    b.matmul(s, e, {x.data(), {n, 4}}, {y.data(), {n, 0}});
  }
  b.matmul(s, m, {nullptr, {0, 0}}, {nullptr, {0, 3}});
}

TEST_CASE("cpu: two streams of one backend at the same time") {
  thread_pool pool(2);
  const cpu b(pool, {.task_work = 1});
  const problem p{70, 300, 33, format::f16};
  const std::vector<float> right = p.products(b, 0, p.n);
  std::vector<std::thread> threads;
  std::vector<std::vector<float>> got(3);
  for (std::size_t t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      for (int r = 0; r < 5; ++r) got[t] = p.products(b, 0, p.n);
    });
  for (std::thread& t : threads) t.join();
  for (const auto& y : got) CHECK(same_bits(y.data(), right.data(), right.size()));
}

TEST_CASE("cpu: embed, rmsnorm, select, read") {
  const cpu b(cpu_options{.threads = 3, .task_work = 1});
  auto s = b.make_stream(limits);
  const problem p{40, 37, 50, format::bf16};
  const matrix_source src = p.source();
  const cpu_matrix m = b.prepare({&src, 1}, p.f);
  std::vector<token_id> tokens{0, 39, 5, 32, 31, 5};
  const std::vector<std::uint32_t> chosen{1, 3, 49};
  batch rows;
  rows.tokens = tokens;
  std::vector<float> x(6 * 37);
  b.embed(s, m, rows, {x.data(), {6, 37}});
  for (std::size_t i = 0; i < 6; ++i)
    for (std::size_t k = 0; k < 37; ++k) CHECK(x[i * 37 + k] == stored(p.w[static_cast<std::size_t>(tokens[i]) * 37 + k], p.f));
  tokens[2] = 40;
  CHECK_THROWS_WITH_AS(b.embed(s, m, rows, {x.data(), {6, 37}}), "[embed] expected a token below 40, got 40", error);
  tokens[2] = -1;
  CHECK_THROWS_AS(b.embed(s, m, rows, {x.data(), {6, 37}}), error);

  const vector_source gain_source{dtype::f32, 37, bytes_of(p.w)};
  const auto gain = b.prepare_vector(gain_source);
  std::vector<float> y(50 * 37), one(37);
  b.rmsnorm(s, {p.x.data(), {50, 37}}, gain, 1e-6f, {y.data(), {50, 37}});
  for (std::size_t i = 0; i < 50; ++i) {
    one.assign(p.x.begin() + static_cast<std::ptrdiff_t>(i * 37), p.x.begin() + static_cast<std::ptrdiff_t>(i * 37 + 37));
    b.rmsnorm(s, {one.data(), {1, 37}}, gain, 1e-6f, {one.data(), {1, 37}});  // in place
    CHECK(same_bits(one.data(), y.data() + i * 37, 37));
  }

  rows.selected_rows = chosen;
  std::vector<float> few(3 * 37), host(3 * 37);
  b.select(s, {y.data(), {50, 37}}, rows, {few.data(), {3, 37}});
  for (std::size_t i = 0; i < 3; ++i) CHECK(same_bits(few.data() + i * 37, y.data() + chosen[i] * 37, 37));
  b.read(s, tensor_view<const float, 2>(y.data(), {3, 5}, {37, 1}), std::span<float>(host).first(15));
  CHECK(host[5] == y[37]);
  CHECK_THROWS_AS(b.read(s, tensor_view<const float, 2>(y.data(), {3, 5}), host), error);
  CHECK_THROWS_AS(b.select(s, {y.data(), {49, 37}}, rows, {few.data(), {3, 37}}), error);
}

TEST_CASE("cpu: shapes that don't match are errors, and nothing is written") {
  const cpu b;
  auto s = b.make_stream(limits);
  const problem p{8, 6, 2, format::f32};
  const matrix_source src = p.source();
  const cpu_matrix m = b.prepare({&src, 1}, p.f), pair = b.prepare_gate_up(src, p.up_source(), p.f);
  std::vector<float> x(12), y(16, 5);
  const tensor_view<const float, 2> in(x.data(), {2, 6});
  const tensor_view<float, 2> out(y.data(), {2, 8});
  CHECK_THROWS_WITH_AS(b.matmul(s, m, {x.data(), {2, 5}}, out), "[matmul] expected [2, 6], got [2, 5]", error);
  CHECK_THROWS_WITH_AS(b.matmul_add(s, m, in, {y.data(), {2, 7}}), "[matmul_add] expected [2, 8], got [2, 7]", error);
  CHECK_THROWS_AS(b.matmul(s, m, in, {y.data(), {1, 8}}), error);
  CHECK_THROWS_AS(b.matmul(s, m, tensor_view<const float, 2>(x.data(), {2, 6}, {1, 2}), out), error);
  CHECK_THROWS_AS(b.matmul_swiglu(s, m, in, out), error);
  CHECK_THROWS_AS(b.matmul(s, pair, in, out), error);
  CHECK_THROWS_AS(b.rmsnorm(s, in, b.prepare_vector({dtype::f32, 5, bytes_of(p.w)}), 0, tensor_view<float, 2>(y.data(), {2, 6})), error);
  CHECK_THROWS_AS(static_cast<void>(b.allocate(std::numeric_limits<std::size_t>::max() / 2)), error);
  for (const float v : y) CHECK(v == 5);
  b.matmul(s, m, in, out);  // still works
}
