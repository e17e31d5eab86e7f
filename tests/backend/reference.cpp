// SPDX-License-Identifier: MIT
// The reference backend by cases that a human can compute: it is the oracle of everything else.
#include <quena/backend/reference.hpp>

#include <cmath>
#include <vector>

#include <doctest/doctest.h>

#include "../support.hpp"

using namespace quena;

namespace {

matrix_source source_of(const std::vector<float>& values, std::size_t rows, std::size_t cols) {
  return {"test", dtype::f32, rows, cols, reinterpret_cast<const std::byte*>(values.data()), 0, {}};
}

reference::matrix matrix_of(const std::vector<float>& values, std::size_t rows, std::size_t cols, format f = format::f32) {
  const matrix_source source = source_of(values, rows, cols);
  return reference().prepare(std::span(&source, 1), f);
}

tensor_view<float, 2> view(std::vector<float>& values, std::size_t rows) { return {values.data(), {rows, values.size() / rows}}; }

/// A pass over rows of sequences whose page tables are given.
struct pass {
  std::vector<token_id> tokens;
  std::vector<std::uint32_t> positions, sequences, selected;
  std::vector<std::vector<page_id>> tables;
  std::vector<float> cos, sin;
  std::vector<std::span<const page_id>> spans;

  batch rows() {
    tokens.resize(positions.size());
    sequences.resize(positions.size());
    spans.assign(tables.begin(), tables.end());
    const std::size_t n = positions.size(), half = n == 0 ? 0 : cos.size() / n;
    return {tokens, positions, sequences, spans, {cos.data(), {n, half}}, {sin.data(), {n, half}}, selected};
  }
};

const reference b;

}  // namespace

TEST_CASE("reference: a product of two rows by hand") {
  auto s = b.make_stream({});
  const std::vector<float> bias = {10, 20};
  const std::vector<float> weights = {1, 2, 3, 4, 5, 6};
  matrix_source source = source_of(weights, 2, 3);
  source.bias = {dtype::f32, 2, reinterpret_cast<const std::byte*>(bias.data())};
  const reference::matrix w = b.prepare(std::span(&source, 1), format::f32);
  CHECK(w.n_bytes() == 8 * 4);
  std::vector<float> x = {1, 0, -1, 0.5f, 0.5f, 0.5f}, y(4, 100.0f);
  b.matmul(s, w, view(x, 2), view(y, 2));
  CHECK(y == std::vector<float>{8, 18, 13, 27.5f});
  b.matmul_add(s, w, view(x, 2), view(y, 2));
  CHECK(y == std::vector<float>{16, 36, 26, 55});
}

TEST_CASE("reference: stacked matrices keep their order, biases and types") {
  const std::vector<float> first = {1, 2}, second = {3, 4, 5, 6}, bias = {0.5f, 0.25f};
  std::vector<matrix_source> sources = {source_of(first, 1, 2), source_of(second, 2, 2)};
  sources[1].bias = {dtype::f32, 2, reinterpret_cast<const std::byte*>(bias.data())};
  const reference::matrix w = b.prepare(sources, format::f32);
  CHECK(w.rows == 3);
  CHECK(w.weights == std::vector<float>{1, 2, 3, 4, 5, 6});
  CHECK(w.bias == std::vector<float>{0, 0.5f, 0.25f});
  sources[1].cols = 1;
  CHECK_THROWS_WITH_AS(static_cast<void>(b.prepare(sources, format::f32)), "[prepare] expected 2 columns, got 1 in test", error);
}

TEST_CASE("reference: weights are rounded through the format") {
  const std::vector<float> values = {1 + 0x1p-11f, 1 + 0x3p-11f, 1 + 0x1p-8f, 1 + 0x3p-8f, 0.1f};
  CHECK(matrix_of(values, 1, 5).weights == values);
  CHECK(matrix_of(values, 1, 5, format::automatic).weights == values);
  CHECK(matrix_of(values, 1, 5, format::f16).weights == std::vector<float>{1, 1 + 0x1p-9f, 1 + 0x1p-8f, 1 + 0x3p-8f, 0.0999755859f});
  CHECK(matrix_of(values, 1, 5, format::bf16).weights == std::vector<float>{1, 1, 1, 1 + 0x1p-6f, 0.100097656f});
}

TEST_CASE("reference: rows of GGUF's q and k come back in Hugging Face's order (A08)") {
  // head_dim 4, two heads: the file holds rows 0 2 1 3 | 4 6 5 7 of the model.
  const std::vector<float> values = {0, 2, 1, 3, 4, 6, 5, 7};
  matrix_source source = source_of(values, 8, 1);
  source.interleaved_head_dim = 4;
  source.bias = {dtype::f32, 8, reinterpret_cast<const std::byte*>(values.data())};
  const reference::matrix w = b.prepare(std::span(&source, 1), format::f32);
  CHECK(w.weights == std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(w.bias == std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7});
}

TEST_CASE("reference: byte offsets beyond 2^31 elements (A36)") {
  matrix_source source{"large", dtype::f16, 300000, 8960, nullptr, 0, {}};
  CHECK(static_cast<std::size_t>(source.row(239674) - source.data) / 2 + 8959 == 2147487999u);
  CHECK(kv_shape{1, 8, 128, 16, 70000, dtype::f16}.page_bytes() / 2 == 32768);
  CHECK(quena_test::code_of([] { static_cast<void>(b.make_kv_pool({1u << 20, 1u << 20, 1u << 20, 16, 1u << 20, dtype::f32})); }) == errc::out_of_memory);
}

TEST_CASE("reference: embed") {
  auto s = b.make_stream({});
  const reference::matrix w = matrix_of({1, 2, 3, 4, 5, 6}, 3, 2);
  pass p{{2, 0, 2}, {0, 1, 2}, {}, {}, {{0}}, {}, {}, {}};
  std::vector<float> x(6);
  b.embed(s, w, p.rows(), view(x, 3));
  CHECK(x == std::vector<float>{5, 6, 1, 2, 5, 6});
  for (const token_id bad : {3, -1}) {
    p.tokens = {0, 0, bad};
    std::fill(x.begin(), x.end(), 9.0f);
    CHECK_THROWS_WITH_AS(b.embed(s, w, p.rows(), view(x, 3)), ("[embed] expected a token below 3, got " + std::to_string(bad)).c_str(), error);
    CHECK(x == std::vector<float>(6, 9.0f));
  }
}

TEST_CASE("reference: rmsnorm") {
  auto s = b.make_stream({});
  const std::vector<float> gain = {2, -1};
  std::vector<float> x = {3, 3, 0, 0, 1, 7}, y(6);
  b.rmsnorm(s, view(x, 3), gain, 0.0f, view(y, 3).slice(0, 0, 3));
  CHECK(y[0] == 2.0f);
  CHECK(y[1] == -1.0f);
  CHECK(std::isnan(y[2]));  // 0 / 0: what eps is for
  CHECK(y[4] == 0.4f);      // the root mean square of 1 and 7 is 5
  CHECK(y[5] == -1.4f);
  b.rmsnorm(s, view(x, 3), gain, 9.0f, view(x, 3));  // in place; eps under the root: 9 + 9
  CHECK(x[0] == doctest::Approx(2 / std::sqrt(2.0)).epsilon(1e-7));
  CHECK(x[2] == 0.0f);
}

TEST_CASE("reference: swiglu") {
  auto s = b.make_stream({});
  const std::vector<float> gate = {1, 0, 1000, -1000}, up = {3, 5, 1, 1};
  const reference::matrix w = b.prepare_gate_up(source_of(gate, 4, 1), source_of(up, 4, 1), format::f32);
  CHECK(w.rows == 4);
  std::vector<float> x = {1}, y(4);
  b.matmul_swiglu(s, w, view(x, 1), view(y, 1));
  CHECK(y[0] == doctest::Approx(3 * 0.7310585786300049).epsilon(1e-7));  // silu(1) = 1 / (1 + 1/e)
  CHECK(y[1] == 0.0f);
  CHECK(y[2] == 1000.0f);
  CHECK(y[3] == 0.0f);
}

TEST_CASE("reference: a quarter turn pairs the halves of a head") {
  auto s = b.make_stream({});
  reference::kv_pool pool = b.make_kv_pool({1, 1, 4, 16, 2, dtype::f32});
  pass p{{}, {17}, {}, {}, {{1, 0}}, {0, 1}, {1, 0}, {}};  // first pair turned by 90 degrees, second not at all
  std::vector<float> qkv = {1, 2, 3, 4, /* k */ 5, 6, 7, 8, /* v */ 9, 10, 11, 12};
  b.rope_append(s, view(qkv, 1), p.rows(), 0, pool);
  CHECK(std::vector<float>(qkv.begin(), qkv.begin() + 4) == std::vector<float>{-3, 2, 1, 4});
  const float *k = pool.at(0, 0, 0, 0, 1), *v = pool.at(0, 0, 1, 0, 1);  // position 17: second page of the table, offset 1
  CHECK(std::vector<float>(k, k + 4) == std::vector<float>{-7, 6, 5, 8});
  CHECK(std::vector<float>(v, v + 4) == std::vector<float>{9, 10, 11, 12});
  CHECK(pool.at(1, 0, 0, 0, 1)[0] == 0.0f);
}

TEST_CASE("reference: cells hold what their type can") {
  auto s = b.make_stream({});
  for (const auto& [cell, want] : {std::pair{dtype::f32, 0.1f}, {dtype::f16, 0.0999755859f}, {dtype::bf16, 0.100097656f}}) {
    reference::kv_pool pool = b.make_kv_pool({1, 1, 2, 16, 1, cell});
    pass p{{}, {0}, {}, {}, {{0}}, {1}, {0}, {}};
    std::vector<float> qkv = {1, 1, 0.1f, 1, 1, 0.1f};
    b.rope_append(s, view(qkv, 1), p.rows(), 0, pool);
    CHECK(pool.at(0, 0, 0, 0, 0)[0] == want);
    CHECK(pool.at(0, 0, 1, 0, 0)[1] == want);
  }
}

TEST_CASE("reference: attention over two positions, grouped heads") {
  auto s = b.make_stream({});
  reference::kv_pool pool = b.make_kv_pool({1, 2, 2, 16, 1, dtype::f32});
  // Keys of both positions are equal for KV head 0 and differ for KV head 1.
  const auto set = [&](std::size_t values, std::size_t head, std::size_t offset, float x, float y) { pool.at(0, 0, values, head, offset)[0] = x, pool.at(0, 0, values, head, offset)[1] = y; };
  set(0, 0, 0, 1, 1), set(0, 0, 1, 1, 1), set(1, 0, 0, 2, 4), set(1, 0, 1, 4, 8);
  set(0, 1, 0, 0, 0), set(0, 1, 1, 1, 0), set(1, 1, 0, 0, 1), set(1, 1, 1, 1, 0);
  set(0, 0, 2, NAN, NAN), set(1, 1, 2, NAN, INFINITY);  // beyond the position
  pass p{{}, {0, 1}, {0, 0}, {}, {{0}}, {1, 1}, {0, 0}, {}};
  const float root2 = std::sqrt(2.0f);
  std::vector<float> qkv(2 * 16, NAN), out(2 * 8);
  for (std::size_t i = 0; i < 2; ++i)
    for (std::size_t h = 0; h < 4; ++h) qkv[i * 16 + 2 * h] = h == 3 ? std::log(3.0f) * root2 : root2, qkv[i * 16 + 2 * h + 1] = 0;
  b.attend(s, view(qkv, 2), p.rows(), 0, pool, view(out, 2));
  CHECK(std::vector<float>(out.begin(), out.begin() + 8) == std::vector<float>{2, 4, 2, 4, 0, 1, 0, 1});  // one position: its value
  CHECK(std::vector<float>(out.begin() + 8, out.begin() + 12) == std::vector<float>{3, 6, 3, 6});         // heads 0, 1: equal weights
  const float e = std::exp(1.0f);
  CHECK(out[12] == doctest::Approx(e / (1 + e)).epsilon(1e-6));
  CHECK(out[14] == doctest::Approx(0.75).epsilon(1e-6));  // scores 0 and ln 3
  CHECK(out[15] == doctest::Approx(0.25).epsilon(1e-6));
}

TEST_CASE("reference: pages are copied, read and written over all layers") {
  auto s = b.make_stream({});
  reference::kv_pool pool = b.make_kv_pool({2, 1, 2, 16, 3, dtype::bf16});
  CHECK(pool.shape().page_bytes() == 2 * 2 * 16 * 2 * 2);
  std::vector<std::byte> bytes(pool.shape().page_bytes()), back(bytes.size());
  for (std::size_t i = 0; i < bytes.size(); i += 2) bytes[i] = static_cast<std::byte>(i), bytes[i + 1] = std::byte{0x3f};
  b.write_page(s, pool, 1, bytes);
  CHECK(pool.at(1, 0, 0, 0, 0)[0] == 0.5f);  // 0x3f00
  b.copy_page(s, pool, 1, 2);
  b.read_page(s, pool, 2, back);
  CHECK(back == bytes);
  b.read_page(s, pool, 0, back);
  CHECK(back == std::vector<std::byte>(bytes.size()));
}

TEST_CASE("reference: what does not fit is an error with both shapes") {
  auto s = b.make_stream({});
  const reference::matrix w = matrix_of({1, 2, 3, 4, 5, 6}, 2, 3);
  std::vector<float> x(6), y(6);
  CHECK_THROWS_WITH_AS(b.matmul(s, w, view(x, 3), view(y, 3)), "[matmul] expected [3, 3], got [3, 2]", error);
  CHECK_THROWS_WITH_AS(b.matmul_add(s, w, view(x, 2), view(y, 3)), "[matmul_add] expected [2, 2], got [3, 2]", error);
  for (const kv_shape& shape : {kv_shape{1, 1, 0, 16, 1, dtype::f32}, kv_shape{1, 1, 3, 16, 1, dtype::f32}, kv_shape{0, 1, 2, 16, 1, dtype::f32}, kv_shape{1, 1, 2, 16, 1, dtype::q8_0}})
    CHECK(quena_test::code_of([&] { static_cast<void>(b.make_kv_pool(shape)); }) == errc::invalid_argument);
  reference::kv_pool pool = b.make_kv_pool({1, 1, 2, 16, 1, dtype::f32});
  pass p{{}, {16}, {0}, {}, {{0}}, {1}, {0}, {}};
  std::vector<float> qkv(6), out(2);
  CHECK_THROWS_WITH_AS(b.rope_append(s, view(qkv, 1), p.rows(), 0, pool), "[rope_append] expected 2 pages for position 16 of row 0, got 1", error);
  p.tables = {{0, 1}};
  CHECK_THROWS_WITH_AS(b.attend(s, view(qkv, 1), p.rows(), 0, pool, view(out, 1)), "[attend] expected a page below 1, got 1", error);
  p.sequences = {1};
  CHECK_THROWS_WITH_AS(b.attend(s, view(qkv, 1), p.rows(), 0, pool, view(out, 1)), "[attend] expected a sequence below 1, got 1", error);
}
