// SPDX-License-Identifier: MIT
// Pages, rotation into them, and attention over them.
#include <quena/backend/cpu/cpu.hpp>
#include <quena/backend/reference.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

using namespace quena;

namespace {

/// Some sequences with random queries, keys and values.
struct scene {
  std::size_t n_heads, n_kv_heads, head_dim, page_size;
  dtype cell;
  std::vector<std::size_t> lengths;
  unsigned seed = 1;

  std::vector<std::vector<page_id>> pages = {};
  std::vector<std::span<const page_id>> tables = {};
  std::size_t n_pages = 0, width = 0, total = 0;
  std::vector<float> qkv = {}, cos = {}, sin = {};
  std::vector<std::size_t> starts = {};

  void make() {
    width = (n_heads + 2 * n_kv_heads) * head_dim;
    for (const std::size_t n : lengths) starts.push_back(total), total += n;
    std::mt19937 gen(seed);
    std::normal_distribution<float> normal;
    qkv.resize(total * width), cos.resize(total * head_dim / 2), sin.resize(total * head_dim / 2);
    for (float& v : qkv) v = normal(gen);
    for (std::size_t i = 0; i < cos.size(); ++i) {
      const float angle = normal(gen);
      cos[i] = std::cos(angle), sin[i] = std::sin(angle);
    }
    for (const std::size_t n : lengths) pages.emplace_back((n + page_size - 1) / page_size), n_pages += pages.back().size();
    std::vector<page_id> free(n_pages);
    for (std::size_t i = 0; i < n_pages; ++i) free[i] = static_cast<page_id>(i);
    std::shuffle(free.begin(), free.end(), gen);
    std::size_t at = 0;
    for (auto& table : pages)
      for (page_id& page : table) page = free[at++];
    tables.assign(pages.begin(), pages.end());
  }
  [[nodiscard]] kv_shape shape() const { return {2, n_kv_heads, head_dim, page_size, n_pages, cell}; }
  [[nodiscard]] stream_limits limits() const { return {std::max<std::size_t>(total, 1), width, n_heads, head_dim, total}; }

  /// Row r of a batch is row order[r] of the scene. Appends and attends; returns the outputs, [rows][n_heads * head_dim].
  template <class B, class Stream, class Pool>
  std::vector<float> run(const B& b, Stream& s, Pool& pool, const std::vector<std::size_t>& order) const {
    const std::size_t n = order.size(), half = head_dim / 2;
    std::vector<float> q(n * width), c(n * half), sn(n * half), out(n * n_heads * head_dim);
    std::vector<token_id> tokens(n);
    std::vector<std::uint32_t> positions(n), sequences(n);
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t row = order[i];
      std::copy_n(qkv.data() + row * width, width, q.data() + i * width);
      std::copy_n(cos.data() + row * half, half, c.data() + i * half);
      std::copy_n(sin.data() + row * half, half, sn.data() + i * half);
      std::size_t sequence = 0;
      while (sequence + 1 < starts.size() && starts[sequence + 1] <= row) ++sequence;
      sequences[i] = static_cast<std::uint32_t>(sequence), positions[i] = static_cast<std::uint32_t>(row - starts[sequence]);
    }
    const batch rows{tokens, positions, sequences, tables, {c.data(), {n, half}}, {sn.data(), {n, half}}, {}};
    b.rope_append(s, {q.data(), {n, width}}, rows, 1, pool);
    b.attend(s, {q.data(), {n, width}}, rows, 1, pool, {out.data(), {n, n_heads * head_dim}});
    return out;
  }
  [[nodiscard]] std::vector<std::size_t> all() const {
    std::vector<std::size_t> order(total);
    for (std::size_t i = 0; i < total; ++i) order[i] = i;
    return order;
  }
};

cpu::kv_pool garbage_pool(const cpu& b, const kv_shape& shape) {
  cpu::kv_pool pool = b.make_kv_pool(shape);
  if (shape.n_pages != 0) std::memset(pool.page(0), 0xff, shape.n_pages * shape.page_bytes());  // NaN in every type
  return pool;
}

/// The results row by row, one call each, on one thread.
std::vector<float> one_by_one(const scene& sc, isa level) {
  const cpu b(cpu_options{.threads = 1, .level = level});
  auto s = b.make_stream(sc.limits());
  auto pool = garbage_pool(b, sc.shape());
  std::vector<float> all;
  for (std::size_t row = 0; row < sc.total; ++row) {
    const std::vector<float> out = sc.run(b, s, pool, {row});
    all.insert(all.end(), out.begin(), out.end());
  }
  return all;
}

}  // namespace

TEST_CASE("kv_pool: shapes") {
  const cpu b;
  CHECK_THROWS_WITH_AS(static_cast<void>(b.make_kv_pool({1, 1, 8, 20, 1, dtype::f32})), "[make_kv_pool] expected a page size that is a multiple of 16, got 20", error);
  CHECK_THROWS_AS(static_cast<void>(b.make_kv_pool({1, 1, 8, 0, 1, dtype::f32})), error);
  CHECK_THROWS_AS(static_cast<void>(b.make_kv_pool({1, 1, 7, 16, 1, dtype::f32})), error);
  CHECK_THROWS_AS(static_cast<void>(b.make_kv_pool({1, 1, 8, 16, 1, dtype::i16})), error);
  CHECK_THROWS_AS(static_cast<void>(b.make_kv_pool({1u << 20, 1u << 20, 1u << 20, 1u << 20, 1u << 20, dtype::f32})), error);
  CHECK(b.make_kv_pool({2, 2, 8, 16, 0, dtype::f16}).shape().page_bytes() == 2 * 2 * 2 * 16 * 8 * 2);
}

TEST_CASE("kv_pool: pages are copied, read and written whole") {
  const cpu b;
  auto s = b.make_stream({1, 8, 1, 8, 16});
  const kv_shape shape{2, 1, 8, 16, 3, dtype::bf16};
  auto pool = garbage_pool(b, shape);
  std::vector<std::byte> page(shape.page_bytes()), back(shape.page_bytes());
  for (std::size_t i = 0; i < page.size(); ++i) page[i] = static_cast<std::byte>(i * 7);
  b.write_page(s, pool, 1, page);
  b.copy_page(s, pool, 1, 2);
  b.copy_page(s, pool, 2, 2);
  b.read_page(s, pool, 2, back);
  CHECK(back == page);
  b.read_page(s, pool, 0, back);
  CHECK(back[0] == std::byte{0xff});
  CHECK_THROWS_WITH_AS(b.copy_page(s, pool, 1, 3), "[copy_page] expected a page below 3, got 3", error);
  CHECK_THROWS_AS(b.read_page(s, pool, 0, std::span(back).first(8)), error);
  CHECK_THROWS_AS(b.write_page(s, pool, 3, page), error);
}

TEST_CASE("attention: against the reference, all cells, head sizes and groups") {
  const reference ref;
  for (const dtype cell : {dtype::f32, dtype::f16, dtype::bf16, dtype::i8})
    for (const auto& [heads, kv_heads, d] : {std::array<std::size_t, 3>{4, 2, 8}, {3, 3, 16}, {6, 1, 20}, {4, 2, 64}, {2, 1, 80}, {9, 1, 128}, {1, 1, 2}}) {
      if (cell != dtype::f32 && d > 20) continue;
      scene sc{heads, kv_heads, d, 16, cell, {1, 20, 260}};
      sc.make();
      auto rs = ref.make_stream(sc.limits());
      auto ref_pool = ref.make_kv_pool(sc.shape());
      const std::vector<float> right = sc.run(ref, rs, ref_pool, sc.all());
      for (const isa level : {isa::portable, isa::avx2, isa::avx512}) {
        if (best_isa(level) != level) continue;
        const cpu b(cpu_options{.threads = 2, .level = level, .task_work = 1});
        auto s = b.make_stream(sc.limits());
        auto pool = garbage_pool(b, sc.shape());
        const std::vector<float> got = sc.run(b, s, pool, sc.all());
        double worst = 0;
        for (std::size_t i = 0; i < got.size(); ++i) worst = std::max(worst, std::abs(double{got[i]} - double{right[i]}));
        // f32: the error of scores (about 1e-6) times values of a few; coarser cells: rotated keys may round to a neighbour.
        CHECK(worst < (cell == dtype::f32 ? 2e-5 : cell == dtype::f16 ? 3e-3 : 3e-2));
      }
    }
}

TEST_CASE("attention: the same bits one row at a time, in chunks, among other sequences, in pages of any size, with any threads") {
  for (const isa level : {isa::portable, isa::avx2, isa::avx512}) {
    if (best_isa(level) != level) continue;
    for (const dtype cell : {dtype::f32, dtype::bf16, dtype::i8}) {
      scene sc{6, 2, 24, 16, cell, {300, 70, 1}};
      sc.make();
      const std::vector<float> right = one_by_one(sc, level);
      const std::size_t row_size = sc.n_heads * sc.head_dim;
      const auto check = [&](const scene& other, int threads, std::vector<std::vector<std::size_t>> calls) {
        thread_pool threads_of_test(static_cast<std::size_t>(threads));
        const cpu b(threads_of_test, {.level = level, .task_work = 1});
        auto s = b.make_stream(other.limits());
        auto pool = garbage_pool(b, other.shape());
        std::size_t wrong = 0;
        for (const auto& call : calls) {
          const std::vector<float> out = other.run(b, s, pool, call);
          for (std::size_t i = 0; i < call.size(); ++i)
            wrong += std::memcmp(out.data() + i * row_size, right.data() + call[i] * row_size, row_size * sizeof(float)) == 0 ? 0 : 1;
        }
        CHECK(wrong == 0);
      };
      for (const int threads : {1, 2, 3, 7}) check(sc, threads, {sc.all()});
      for (const std::size_t page_size : {32u, 48u, 512u}) {
        scene other{6, 2, 24, page_size, cell, {300, 70, 1}};
        other.make();
        check(other, 3, {other.all()});
      }
      for (const std::size_t step : {1u, 7u, 16u, 100u}) {
        std::vector<std::vector<std::size_t>> calls;
        for (std::size_t at = 0; at < sc.total; at += step) {
          calls.emplace_back();
          for (std::size_t i = at; i < std::min(sc.total, at + step); ++i) calls.back().push_back(i);
        }
        check(sc, step == 1 ? 7 : 2, calls);
      }
      std::vector<std::size_t> mixed;  // rows of all sequences, interleaved
      for (std::size_t i = 0; i < 300; ++i) {
        mixed.push_back(i);
        if (i < 70) mixed.push_back(300 + i);
        if (i == 3) mixed.push_back(370);
      }
      check(sc, 2, {mixed});
    }
  }
}

TEST_CASE("attention: what later rows hold never touches earlier ones, even infinities") {
  for (const isa level : {isa::portable, isa::avx2, isa::avx512}) {
    if (best_isa(level) != level) continue;
    scene sc{4, 2, 32, 16, dtype::f32, {60}};
    sc.make();
    const cpu b(cpu_options{.threads = 1, .level = level});
    auto s = b.make_stream(sc.limits());
    auto pool = garbage_pool(b, sc.shape());
    const std::vector<float> right = sc.run(b, s, pool, sc.all());
    for (std::size_t i = 0; i < sc.width; ++i) sc.qkv[37 * sc.width + i] = std::numeric_limits<float>::infinity();
    const std::vector<float> got = sc.run(b, s, pool, sc.all());
    const std::size_t row_size = sc.n_heads * sc.head_dim;
    CHECK(std::memcmp(got.data(), right.data(), 37 * row_size * sizeof(float)) == 0);
    CHECK(std::isnan(got[38 * row_size]));  // and it does touch the later ones
  }
}

TEST_CASE("attention: one that attends to nothing gives exactly zero (A10)") {
  for (const isa level : {isa::portable, isa::avx2, isa::avx512}) {
    if (best_isa(level) != level) continue;
    const detail::kernel_table& k = detail::kernels_for(level);
    const std::size_t d = 20;
    std::vector<float> partials(3 * (d + 2), std::numeric_limits<float>::quiet_NaN()), out(d, 7);
    for (std::size_t c = 0; c < 3; ++c) partials[c * (d + 2)] = -std::numeric_limits<float>::infinity(), partials[c * (d + 2) + 1] = 0;
    k.merge(partials.data(), 3, d + 2, d, out.data());
    for (const float v : out) CHECK(v == 0);
    partials[d + 2] = 3, partials[d + 3] = 2;  // one chunk with something between two without
    for (std::size_t t = 0; t < d; ++t) partials[d + 4 + t] = 8;
    k.merge(partials.data(), 3, d + 2, d, out.data());
    for (const float v : out) CHECK(v == 4);
  }
}

TEST_CASE("attention: batches that don't fit are errors") {
  const cpu b;
  scene sc{4, 2, 8, 16, dtype::f32, {20}};
  sc.make();
  auto s = b.make_stream(sc.limits());
  auto pool = b.make_kv_pool(sc.shape());
  const auto message = [&](scene wrong, const std::string& text) {
    try {
      static_cast<void>(wrong.run(b, s, pool, {0, 17}));
      FAIL_CHECK("expected an error: " << text);
    } catch (const error& e) {
      CHECK(std::string(e.what()).find(text) != std::string::npos);
    }
  };
  scene wrong = sc;
  wrong.pages = {{0}}, wrong.tables = {wrong.pages[0]};
  message(wrong, "expected 2 pages for position 17 of row 1, got 1");
  wrong.pages = {{0, 2}}, wrong.tables = {wrong.pages[0]};
  message(wrong, "expected a page below 2, got 2");
  wrong = sc, wrong.tables.clear();
  message(wrong, "expected a sequence below 0, got 0");
}
