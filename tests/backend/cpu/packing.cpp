// SPDX-License-Identifier: MIT
#include <quena/backend/cpu/cpu.hpp>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

using namespace quena;

namespace {

matrix_source source_of(const std::vector<float>& w, std::size_t rows, std::size_t cols) {
  return {"w", dtype::f32, rows, cols, reinterpret_cast<const std::byte*>(w.data()), 0, {}};
}
std::vector<float> counted(std::size_t n) {
  std::vector<float> v(n);
  for (std::size_t i = 0; i < n; ++i) v[i] = static_cast<float>(i + 1);
  return v;
}

}  // namespace

TEST_CASE("packing: row r, column k is at [r / 32][k][r % 32], missing rows are zero") {
  const cpu b;
  const std::vector<float> w = counted(35 * 3);
  const matrix_source s = source_of(w, 35, 3);
  const cpu_matrix m = b.prepare({&s, 1}, format::automatic);
  REQUIRE(m.layout.type == dtype::f32);
  REQUIRE(m.n_bytes() == 2 * 3 * 32 * 4);
  const float* p = reinterpret_cast<const float*>(m.weights.data());
  for (std::size_t r = 0; r < 64; ++r)
    for (std::size_t k = 0; k < 3; ++k) CHECK(p[(r / 32 * 3 + k) * 32 + r % 32] == (r < 35 ? w[r * 3 + k] : 0.0f));
}

TEST_CASE("packing: gate and up share panels, 16 rows of each") {
  const cpu b;
  const std::vector<float> g = counted(20), u = {-1, -2, -3, -4, -5, -6, -7, -8, -9, -10, -11, -12, -13, -14, -15, -16, -17, -18, -19, -20};
  const cpu_matrix m = b.prepare_gate_up(source_of(g, 20, 1), source_of(u, 20, 1), format::f32);
  CHECK(m.rows == 20);
  REQUIRE(m.weights.size() == 2 * 32 * 4);
  const float* p = reinterpret_cast<const float*>(m.weights.data());
  CHECK(p[0] == 1);
  CHECK(p[15] == 16);
  CHECK(p[16] == -1);
  CHECK(p[31] == -16);
  CHECK(p[32] == 17);
  CHECK(p[36] == 0);
  CHECK(p[48] == -17);
  CHECK(p[52] == 0);
}

TEST_CASE("packing: how a source is kept") {
  const matrix_source a{"a", dtype::f16, 2, 32, nullptr, 0, {}}, c{"c", dtype::bf16, 2, 32, nullptr, 0, {}}, q{"q", dtype::q8_0, 2, 32, nullptr, 0, {}}, k{"k", dtype::q4_0, 2, 32, nullptr, 0, {}};
  CHECK(detail::layout_of(a, format::automatic) == weight_layout{dtype::f16});
  CHECK(detail::layout_of(c, format::automatic) == weight_layout{dtype::bf16});
  CHECK(detail::layout_of(q, format::automatic) == weight_layout{dtype::f32, codes_of(dtype::q8_0)});
  CHECK(detail::layout_of(q, format::bf16) == weight_layout{dtype::bf16});
  CHECK(detail::layout_of(a, format::f32) == weight_layout{dtype::f32});
  CHECK(detail::layout_of(a, format::int4) == weight_layout{dtype::f32, codes_of(format::int4)});
  CHECK(detail::layout_of(a, c, format::automatic) == weight_layout{dtype::f32});
  CHECK(detail::layout_of(q, k, format::automatic) == weight_layout{dtype::f16});
  CHECK(detail::layout_of(q, q, format::automatic) == weight_layout{dtype::f32, codes_of(dtype::q8_0)});
}

TEST_CASE("packing: a type that is kept keeps its bits; others are rounded to nearest even") {
  const cpu b;
  std::mt19937 gen(1);
  std::vector<std::uint16_t> bits(40 * 300);
  for (auto& v : bits) v = static_cast<std::uint16_t>(gen());
  for (const dtype t : {dtype::f16, dtype::bf16}) {
    const matrix_source s{"w", t, 40, 300, reinterpret_cast<const std::byte*>(bits.data()), 0, {}};
    const cpu_matrix m = b.prepare({&s, 1}, format::automatic);
    const auto* p = reinterpret_cast<const std::uint16_t*>(m.weights.data());
    std::size_t wrong = 0;
    for (std::size_t r = 0; r < 40; ++r)
      for (std::size_t k = 0; k < 300; ++k) wrong += p[(r / 32 * 300 + k) * 32 + r % 32] == bits[r * 300 + k] ? 0 : 1;
    CHECK(wrong == 0);
  }
  const std::vector<float> w{1.00390625f, 1.01171875f, 1e-8f, 70000};  // ties of bf16; too small and too large for f16
  const matrix_source s = source_of(w, 1, 4);
  std::vector<float> row(4);
  detail::unpack_row(b.prepare({&s, 1}, format::bf16), 0, row.data());
  for (std::size_t k = 0; k < 4; ++k) CHECK(row[k] == static_cast<float>(bf16(w[k])));
  detail::unpack_row(b.prepare({&s, 1}, format::f16), 0, row.data());
  for (std::size_t k = 0; k < 4; ++k) CHECK(row[k] == static_cast<float>(f16(w[k])));
}

TEST_CASE("packing: stacked sources, biases, interleaved rotary rows, block types") {
  const cpu b(cpu_options{.threads = 3, .task_work = 1});
  const std::vector<float> w1 = counted(8 * 2), w2 = counted(33 * 2), bias = counted(33);
  matrix_source s1 = source_of(w1, 8, 2), s2 = source_of(w2, 33, 2);
  s1.interleaved_head_dim = 4;  // file rows 0 1 2 3 are Hugging Face's 0 2 1 3
  s2.bias = {dtype::f32, 33, reinterpret_cast<const std::byte*>(bias.data())};
  const matrix_source both[] = {s1, s2};
  const cpu_matrix m = b.prepare(both, format::f32);
  std::vector<float> row(2);
  for (const auto& [r, first] : {std::pair<std::size_t, float>{0, 1}, {1, 5}, {2, 3}, {3, 7}, {4, 9}, {8, 1}, {40, 65}}) {
    detail::unpack_row(m, r, row.data());
    CHECK(row[0] == first);
  }
  const float* packed_bias = reinterpret_cast<const float*>(m.bias.data());
  CHECK(packed_bias[7] == 0);
  CHECK(packed_bias[8] == 1);
  CHECK(packed_bias[40] == 33);
  CHECK(packed_bias[41] == 0);

  std::mt19937 gen(2);
  std::vector<std::byte> blocks(3 * 2 * 144);  // q4_k, 512 columns
  for (std::byte& x : blocks) x = static_cast<std::byte>(gen());
  for (std::size_t i = 0; i < 6; ++i) blocks[i * 144 + 1] = blocks[i * 144 + 3] = std::byte{0x30};  // finite scales
  const matrix_source q{"q", dtype::q4_k, 3, 512, blocks.data(), 0, {}};
  const cpu_matrix mq = b.prepare({&q, 1}, format::f32);
  std::vector<float> right(512), got(512);
  for (std::size_t r = 0; r < 3; ++r) {
    q.row_f32(r, right.data());
    detail::unpack_row(mq, r, got.data());
    CHECK(got == right);
  }
}

TEST_CASE("packing: sources that don't fit together are errors that name the tensor") {
  const cpu b;
  const std::vector<float> w(64);
  const matrix_source a = source_of(w, 2, 8), c = source_of(w, 2, 4);
  const matrix_source both[] = {a, c};
  CHECK_THROWS_WITH_AS(static_cast<void>(b.prepare(both, format::f32)), "[prepare] expected 8 columns, got 4 in w", error);
  CHECK_THROWS_AS(static_cast<void>(b.prepare_gate_up(a, source_of(w, 3, 8), format::f32)), error);
  matrix_source ints = a;
  ints.type = dtype::i32;
  CHECK_THROWS_WITH_AS(static_cast<void>(b.prepare({&ints, 1}, format::f32)), "[prepare] expected a float or block type, got i32 in w", error);
  matrix_source bad_bias = a;
  bad_bias.bias = {dtype::f32, 3, a.data};
  CHECK_THROWS_AS(static_cast<void>(b.prepare({&bad_bias, 1}, format::f32)), error);
  matrix_source huge = a;
  huge.rows = std::size_t{1} << 40, huge.cols = std::size_t{1} << 40;
  CHECK_THROWS_AS(static_cast<void>(b.prepare({&huge, 1}, format::f32)), error);
  CHECK(b.prepare({}, format::automatic).n_bytes() == 0);
}
