// SPDX-License-Identifier: MIT
// Conformance of errors: what doesn't fit is refused with quena::error, nothing is written, and the backend works afterwards.
#pragma once

#include <string>
#include <vector>

#include "rig.hpp"

namespace quena::inline QUENA_ABI {

namespace detail {

template <backend B>
class refusals {
 public:
  refusals(conformance_log& log, const B& b)
      : log_(log), b_(b), rig_(b, {8, 32, 4, 4, 32}), w_(b.prepare(std::span(&source_, 1), format::f32)),
        gated_(b.prepare_gate_up(source_, source_, format::f32)), gain_(b.prepare_vector({dtype::f32, 6, bytes(values_)})),
        pool_(b.make_kv_pool({2, 2, 4, 16, 3, dtype::f32})) {
    const std::vector<std::byte> zeros(pool_.shape().page_bytes());
    for (page_id page = 0; page < 3; ++page) b.write_page(rig_.s, pool_, page, zeros);
  }

  void run() {
    rows_of_operations();
    rows_of_attention();
    host_memory();
    log_.guarded("prepare", "sources that don't fit each other", [&] {
      matrix_source wide = source_, tall = source_;
      wide.cols = 5, tall.rows = 4;
      const matrix_source sources[] = {source_, wide};
      refused("prepare", "6 and 5 columns", [&] { static_cast<void>(b_.prepare(sources, format::f32)); });
      refused("prepare_gate_up", "6 and 5 columns", [&] { static_cast<void>(b_.prepare_gate_up(source_, wide, format::f32)); });
      refused("prepare_gate_up", "5 and 4 rows", [&] { static_cast<void>(b_.prepare_gate_up(source_, tall, format::f32)); });
    });
  }

 private:
  static const std::byte* bytes(const std::vector<float>& values) { return reinterpret_cast<const std::byte*>(values.data()); }

  template <class F>
  void refused(std::string_view operation, const std::string& which, F&& call) {
    bool thrown = false;
    try {
      call();
    } catch (const error&) {
      thrown = true;
    }
    log_.expect(thrown, operation, which, "quena::error", "no error");
  }
  /// The same, with an output that must keep its content.   call(y)
  template <class F>
  void refused(std::string_view operation, const std::string& which, std::size_t n, std::size_t width, F&& call) {
    log_.guarded(operation, which, [&] {
      seeded random(5);
      const tensor<float, 2> before = random_rows(random, n, width);
      const auto y = rig_.make(before, 2);
      refused(operation, which, [&] { call(y.view); });
      log_.same(operation, which + ": the output afterwards", rig_.get(y.view), before);
    });
  }
  [[nodiscard]] std::vector<std::byte> pages() {
    std::vector<std::byte> all, page(pool_.shape().page_bytes());
    for (page_id p = 0; p < 3; ++p) {
      b_.read_page(rig_.s, pool_, p, page);
      all.insert(all.end(), page.begin(), page.end());
    }
    return all;
  }

  /// w and gated: 5 x 6.
  void rows_of_operations() {
    seeded random(6);
    auto& s = rig_.s;
    const auto x = rig_.make(random_rows(random, 3, 6), 2), narrow = rig_.make(random_rows(random, 3, 5), 2);
    const auto in = [](const auto& r) { return tensor_view<const float, 2>(r.view); };
    for (const auto& [which, n, width] : {std::tuple{"3 rows into 2", std::size_t{2}, std::size_t{5}}, {"3 rows into 4", 4, 5}, {"5 columns into 6", 3, 6}, {"5 columns into 4", 3, 4}}) {
      refused("matmul", which, n, width, [&](auto y) { b_.matmul(s, w_, in(x), y); });
      refused("matmul_add", which, n, width, [&](auto y) { b_.matmul_add(s, w_, in(x), y); });
      refused("matmul_swiglu", which, n, width, [&](auto y) { b_.matmul_swiglu(s, gated_, in(x), y); });
    }
    refused("matmul", "an input of 5 columns for 6", 3, 5, [&](auto y) { b_.matmul(s, w_, in(narrow), y); });
    refused("matmul_add", "an input of 5 columns for 6", 3, 5, [&](auto y) { b_.matmul_add(s, w_, in(narrow), y); });
    refused("matmul_swiglu", "an input of 5 columns for 6", 3, 5, [&](auto y) { b_.matmul_swiglu(s, gated_, in(narrow), y); });
    refused("rmsnorm", "an output of 2 rows for 3", 2, 6, [&](auto y) { b_.rmsnorm(s, in(x), gain_, 1e-5f, y); });
    refused("rmsnorm", "an output of 5 columns for 6", 3, 5, [&](auto y) { b_.rmsnorm(s, in(x), gain_, 1e-5f, y); });
    refused("rmsnorm", "a gain of 6 for 5 columns", 3, 5, [&](auto y) { b_.rmsnorm(s, in(narrow), gain_, 1e-5f, y); });

    const auto embed = [&](const char* which, std::vector<token_id> tokens, std::size_t n, std::size_t width) {
      refused("embed", which, n, width, [&](auto y) {
        host_batch rows = plain_batch(tokens.size(), 4);
        rows.tokens = tokens;
        b_.embed(s, w_, rig_.begin(std::move(rows)), y);
      });
    };
    embed("token 5 of 5", {0, 1, 5}, 3, 6);
    embed("token -1", {0, -1, 2}, 3, 6);
    embed("3 tokens into 2 rows", {0, 1, 2}, 2, 6);
    embed("6 columns into 7", {0, 1, 2}, 3, 7);
    const auto select = [&](const char* which, std::vector<std::uint32_t> selected, std::size_t n, std::size_t width) {
      refused("select", which, n, width, [&](auto y) {
        host_batch rows = plain_batch(3, 4);
        rows.selected = selected;
        const batch batch = rig_.begin(std::move(rows));
        b_.select(s, in(x), batch, y);
      });
    };
    select("row 3 of 3", {0, 3}, 2, 6);
    select("2 rows into 3", {0, 2}, 3, 6);
    select("6 columns into 5", {0, 2}, 2, 5);
  }

  /// The pool: 2 layers, 2 KV heads, head_dim 4; the rows: 2 query heads, so 24 columns.
  void rows_of_attention() {
    auto& s = rig_.s;
    const std::vector<std::byte> before = pages();
    const auto append = [&](const char* which, std::size_t n, std::size_t width, std::size_t layer) {
      refused("rope_append", which, n, width, [&](auto y) { b_.rope_append(s, y, rig_.begin(plain_batch(3, 4)), layer, pool_); });
    };
    append("2 rows for 3", 2, 24, 0);
    append("25 columns for heads of 4", 3, 25, 0);
    append("no query heads", 3, 16, 0);
    append("1 query head on 2 KV heads", 3, 20, 0);
    append("layer 2 of 2", 3, 24, 2);
    log_.expect(pages() == before, "rope_append", "the cache after refused calls", "as it was", "other bytes");
    seeded random(7);
    const auto qkv = rig_.make(random_rows(random, 3, 24), 2), odd = rig_.make(random_rows(random, 3, 25), 2);
    const auto attend = [&](const char* which, const auto& rows, std::size_t n_rows, std::size_t n, std::size_t width, std::size_t layer) {
      refused("attend", which, n, width, [&](auto y) { b_.attend(s, rows.view, rig_.begin(plain_batch(n_rows, 4)), layer, pool_, y); });
    };
    attend("3 rows for 2", qkv, 2, 2, 8, 0);
    attend("3 rows into 2", qkv, 3, 2, 8, 0);
    attend("8 columns into 12", qkv, 3, 3, 12, 0);
    attend("25 columns for heads of 4", odd, 3, 3, 8, 0);
    attend("layer 2 of 2", qkv, 3, 3, 8, 2);
  }

  void host_memory() {
    auto& s = rig_.s;
    log_.guarded("read", "host memory of another size", [&] {
      seeded random(8);
      const auto x = rig_.make(random_rows(random, 3, 6), 2);
      std::vector<float> too_few(17, 1.0f), too_many(19, 1.0f);
      refused("read", "18 floats into 17", [&] { b_.read(s, tensor_view<const float, 2>(x.view), std::span<float>(too_few)); });
      refused("read", "18 floats into 19", [&] { b_.read(s, tensor_view<const float, 2>(x.view), std::span<float>(too_many)); });
      log_.expect(too_few == std::vector<float>(17, 1.0f) && too_many == std::vector<float>(19, 1.0f), "read", "host memory of another size", "no float written", "some");
    });
    log_.guarded("write_page", "pages that don't exist, bytes of another size", [&] {
      const std::vector<std::byte> before = pages();
      const std::size_t n = pool_.shape().page_bytes();
      std::vector<std::byte> page(n), too_few(n - 1, std::byte{1});
      refused("read_page", "page 3 of 3", [&] { b_.read_page(s, pool_, 3, page); });
      refused("read_page", "a byte too few", [&] { b_.read_page(s, pool_, 0, too_few); });
      refused("write_page", "page 3 of 3", [&] { b_.write_page(s, pool_, 3, page); });
      refused("write_page", "a byte too few", [&] { b_.write_page(s, pool_, 0, too_few); });
      refused("copy_page", "from page 3 of 3", [&] { b_.copy_page(s, pool_, 3, 0); });
      refused("copy_page", "to page 3 of 3", [&] { b_.copy_page(s, pool_, 0, 3); });
      log_.expect(pages() == before, "write_page", "the cache after refused calls", "as it was", "other bytes");
    });
  }

  const std::vector<float> values_ = std::vector<float>(30, 0.5f);
  const matrix_source source_{"values", dtype::f32, 5, 6, bytes(values_), 0, {}};
  conformance_log& log_;
  const B& b_;
  conformance_rig<B> rig_;
  typename B::matrix w_, gated_;
  typename B::vector gain_;
  typename B::kv_pool pool_;
};

template <backend B>
void check_errors(conformance_log& log, const B& b) {
  log.guarded("errors", "calls that don't fit", [&] { refusals<B>(log, b).run(); });
}

}  // namespace detail

}  // namespace quena::inline QUENA_ABI
