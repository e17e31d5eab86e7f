// SPDX-License-Identifier: MIT
#include <quena/backend/cpu/cpu.hpp>
#include <quena/backend/cpu/kernels.hpp>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

using namespace quena;

namespace {

constexpr format own_formats[] = {format::int8, format::int8_g64, format::int8_g32, format::int8_row, format::int4, format::int4_g64, format::int4_g128, format::int4z, format::int4z_g64, format::int4z_g128};
constexpr dtype block_types[] = {dtype::q8_0, dtype::q4_0, dtype::q4_1, dtype::q5_0, dtype::q5_1, dtype::q4_k, dtype::q5_k, dtype::q6_k};

std::vector<float> random_floats(std::size_t n, unsigned seed, float scale = 1) {
  std::mt19937 gen(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> v(n);
  for (float& x : v) x = normal(gen);
  return v;
}

/// Random blocks of a GGUF type: any codes, scales of moderate size.
std::vector<std::byte> random_blocks(dtype type, std::size_t n, unsigned seed) {
  std::mt19937 gen(seed);
  std::vector<std::byte> bytes(n_bytes(type, n));
  for (std::byte& b : bytes) b = static_cast<std::byte>(gen());
  const std::size_t size = block_bytes(type);
  const auto put = [&](std::size_t at) {
    const f16 value(0.001f * static_cast<float>(1 + gen() % 50));
    std::memcpy(bytes.data() + at, &value, 2);
  };
  for (std::size_t at = 0; at < bytes.size(); at += size) {
    put(type == dtype::q6_k ? at + 208 : at);
    if (type == dtype::q4_1 || type == dtype::q5_1 || type == dtype::q4_k || type == dtype::q5_k) put(at + 2);
  }
  return bytes;
}

matrix_source source_of(dtype type, const void* data, std::size_t rows, std::size_t cols) { return {"w", type, rows, cols, static_cast<const std::byte*>(data), 0, {}}; }

/// The weights as the backend has them.
std::vector<float> weights_of(const cpu_matrix& m) {
  std::vector<float> w(m.rows * m.cols);
  for (std::size_t r = 0; r < m.rows; ++r) detail::unpack_row(m, r, w.data() + r * m.cols);
  return w;
}

/// Activations as the products see them: a scale for each 256 columns, codes to nearest.
std::vector<double> rounded_activations(const std::vector<float>& x, std::size_t cols) {
  std::vector<double> out(x.size());
  for (std::size_t row = 0; row < x.size(); row += cols)
    for (std::size_t k = 0; k < cols; k += 256) {
      const std::size_t n = std::min<std::size_t>(256, cols - k);
      float top = 0;
      for (std::size_t j = 0; j < n; ++j) top = std::max(top, std::fabs(x[row + k + j]));
      for (std::size_t j = 0; j < n; ++j)
        out[row + k + j] = top == 0 ? 0 : double{top / 127.0f} * static_cast<double>(std::nearbyint(x[row + k + j] * (127.0f / top)));
    }
  return out;
}

/// Products of every row count against sums in double, and with == against those of each row alone.
void check_products(const cpu& b, const cpu_matrix& m, const std::string& what) {
  CAPTURE(what);
  const std::size_t n = 31, rows = m.rows, cols = m.cols;
  const std::vector<float> w = weights_of(m), x = random_floats(n * cols, 7, 2);
  const std::vector<double> rounded = rounded_activations(x, cols);
  std::vector<float> y(n * rows), one(rows);
  cpu::stream s = b.make_stream({n, std::max(rows, cols), 1, 2, 1});
  const tensor_view<const float, 2> in(x.data(), {n, cols});
  b.matmul(s, m, in, tensor_view<float, 2>(y.data(), {n, rows}));
  double worst = 0;
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t r = 0; r < rows; ++r) {
      double want = 0, size = 0;
      for (std::size_t k = 0; k < cols; ++k) {
        const double term = double{w[r * cols + k]} * rounded[i * cols + k];
        want += term, size += std::fabs(term);
      }
      // Every group is exact as integers and its scale exact; a minimum splits a weight into two terms of up to 16 times its size. Then
      // at most (groups + blocks + 2) roundings of at most 2^-24 of the sum.
      const double tolerance = (static_cast<double>(cols) / 16 + 8) * 0x1p-24 * 20 * size + 1e-30;
      worst = std::max(worst, std::fabs(double{y[i * rows + r]} - want) / tolerance);
    }
  CHECK(worst <= 1);
  bool same = true;
  for (std::size_t i = 0; i < n; ++i) {
    b.matmul(s, m, in.slice(0, i, 1), tensor_view<float, 2>(one.data(), {1, rows}));
    same &= std::memcmp(one.data(), y.data() + i * rows, rows * sizeof(float)) == 0;
  }
  for (std::size_t count = 2; count < n; ++count) {
    std::vector<float> some(count * rows);
    b.matmul(s, m, in.slice(0, 0, count), tensor_view<float, 2>(some.data(), {count, rows}));
    same &= std::memcmp(some.data(), y.data(), some.size() * sizeof(float)) == 0;
  }
  CHECK(same);
}

}  // namespace

TEST_CASE("codes: products of our formats are right for any shape, and the same for one row and many") {
  for (const isa level : {isa::portable, isa::avx2, isa::avx512}) {
    const cpu b({.threads = 2, .level = level, .task_work = 1});
    if (b.level() != level) continue;
    for (const format f : own_formats)
      for (const auto& [rows, cols] : {std::pair<std::size_t, std::size_t>{1, 1}, {33, 100}, {64, 256}, {35, 321}, {70, 768}}) {
        const std::vector<float> w = random_floats(rows * cols, 1 + static_cast<unsigned>(cols));
        const matrix_source source = source_of(dtype::f32, w.data(), rows, cols);
        check_products(b, b.prepare({&source, 1}, f), std::string(isa_name(level)) + " " + std::string(format_name(f)) + " " + std::to_string(rows) + " x " + std::to_string(cols));
      }
  }
}

TEST_CASE("codes: blocks of GGUF types are kept without loss and multiplied as they are") {
  for (const isa level : {isa::portable, isa::avx2, isa::avx512}) {
    const cpu b({.threads = 2, .level = level, .task_work = 1});
    if (b.level() != level) continue;
    for (const dtype type : block_types) {
      const std::size_t rows = 37, cols = block_elements(type) * 3;
      const std::vector<std::byte> blocks = random_blocks(type, rows * cols, 3);
      const matrix_source source = source_of(type, blocks.data(), rows, cols);
      const cpu_matrix m = b.prepare({&source, 1}, format::automatic);
      std::vector<float> want(rows * cols);
      dequantize_row(type, blocks.data(), want.data(), want.size());
      CHECK_MESSAGE(weights_of(m) == want, dtype_name(type));
      check_products(b, m, std::string(isa_name(level)) + " " + std::string(dtype_name(type)));
    }
  }
}

TEST_CASE("codes: sources of different types are stacked, gate and up of different types become f16") {
  const cpu b;
  const std::size_t cols = 256;
  const std::vector<std::byte> q4 = random_blocks(dtype::q4_k, 40 * cols, 1), q6 = random_blocks(dtype::q6_k, 9 * cols, 2);
  const std::vector<float> wide = random_floats(5 * cols, 3);
  std::vector<float> bias(9, 1.5f);
  matrix_source sources[] = {source_of(dtype::q4_k, q4.data(), 40, cols), source_of(dtype::q6_k, q6.data(), 9, cols), source_of(dtype::f32, wide.data(), 5, cols)};
  const cpu_matrix m = b.prepare(sources, format::automatic);
  CHECK(m.rows == 54);
  CHECK(m.n_bytes() == 2 * detail::code_panel_bytes(*codes_of(dtype::q4_k), cols) + detail::code_panel_bytes(*codes_of(dtype::q6_k), cols) + 32 * cols * 4);
  std::vector<float> want(54 * cols);
  dequantize_row(dtype::q4_k, q4.data(), want.data(), 40 * cols);
  dequantize_row(dtype::q6_k, q6.data(), want.data() + 40 * cols, 9 * cols);
  std::copy(wide.begin(), wide.end(), want.begin() + 49 * static_cast<std::ptrdiff_t>(cols));
  CHECK(weights_of(m) == want);
  sources[1].bias = {dtype::f32, 9, reinterpret_cast<const std::byte*>(bias.data())};
  const cpu_matrix biased = b.prepare(sources, format::automatic);
  const std::vector<float> x(cols, 0.0f);
  std::vector<float> y(54, -1.0f);
  cpu::stream s = b.make_stream({1, cols, 1, 2, 1});
  b.matmul(s, biased, tensor_view<const float, 2>(x.data(), {1, cols}), tensor_view<float, 2>(y.data(), {1, 54}));
  for (std::size_t r = 0; r < 54; ++r) CHECK(y[r] == (r >= 40 && r < 49 ? 1.5f : 0.0f));

  const cpu_matrix mixed = b.prepare_gate_up(source_of(dtype::q4_k, q4.data(), 9, cols), sources[1], format::automatic);
  CHECK(!mixed.layout.codes);
  CHECK(mixed.layout.type == dtype::f16);
}

TEST_CASE("codes: nibbles of a q4_0 block (known failure A16)") {
  std::vector<std::byte> block(18);
  block[1] = std::byte{0x3c};
  for (int i = 0; i < 16; ++i) block[static_cast<std::size_t>(2 + i)] = static_cast<std::byte>(i | (15 - i) << 4);
  const matrix_source source = source_of(dtype::q4_0, block.data(), 1, 32);
  std::vector<float> x(32, 0.0f);
  x[0] = 1, x[1] = 10, x[16] = 100;
  for (const isa level : {isa::portable, isa::avx2, isa::avx512}) {
    const cpu b({.level = level});
    const cpu_matrix m = b.prepare({&source, 1}, format::automatic);
    cpu::stream s = b.make_stream({1, 32, 1, 2, 1});
    float y = 0;
    b.matmul(s, m, tensor_view<const float, 2>(x.data(), {1, 32}), tensor_view<float, 2>(&y, {1, 1}));
    // 1, 10 and 100 become codes 1, 13, 127 of 100 / 127: -8 * 1 - 7 * 13 + 7 * 127 = 790, times the scale.
    CHECK(y == doctest::Approx(790.0 * 100 / 127).epsilon(1e-6));
    const cpu_matrix exact = b.prepare({&source, 1}, format::f32);
    b.matmul(s, exact, tensor_view<const float, 2>(x.data(), {1, 32}), tensor_view<float, 2>(&y, {1, 1}));
    CHECK(y == 622.0f);
  }
}

TEST_CASE("codes: zero, tiny and not finite activations and weights (known failure A17)") {
  for (const isa level : {isa::portable, isa::avx2, isa::avx512}) {
    const cpu b({.level = level});
    for (const format f : own_formats)
      for (const float size : {0.0f, 1e-8f, 1e-40f}) {
        const std::vector<float> w(32, size);
        const matrix_source source = source_of(dtype::f32, w.data(), 1, 32);
        const cpu_matrix m = b.prepare({&source, 1}, f);
        for (const float value : weights_of(m)) CHECK(std::fabs(value) <= 1e-7f);
        cpu::stream s = b.make_stream({1, 32, 1, 2, 1});
        for (const float in : {0.0f, 1e-40f, 1e-30f, 1.0f}) {
          const std::vector<float> x(32, in);
          float y = NAN;
          b.matmul(s, m, tensor_view<const float, 2>(x.data(), {1, 32}), tensor_view<float, 2>(&y, {1, 1}));
          CHECK(std::fabs(y) <= 1e-5f);
        }
        for (const float bad : {NAN, std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
          std::vector<float> x(32, 1.0f);
          x[17] = bad;
          float y = 0;
          b.matmul(s, m, tensor_view<const float, 2>(x.data(), {1, 32}), tensor_view<float, 2>(&y, {1, 1}));
          CHECK(std::isnan(y));
        }
      }
  }
}

TEST_CASE("codes: the extreme codes of every width don't saturate") {
  // All weights -128 (or the largest code), all activations at the largest magnitude: what 16-bit sums of pairs would clip.
  for (const isa level : {isa::portable, isa::avx2, isa::avx512}) {
    const cpu b({.level = level});
    for (const dtype type : {dtype::q8_0, dtype::q6_k, dtype::q5_0, dtype::q4_0}) {
      std::vector<std::byte> blocks(n_bytes(type, 256), type == dtype::q8_0 ? std::byte{0x80} : std::byte{0xff});
      const std::size_t d = type == dtype::q6_k ? 208 : 0;  // where a block has its scale, which becomes 1; the others of Q6_K are -1
      for (std::size_t at = d; at < blocks.size(); at += block_bytes(type)) blocks[at] = std::byte{0}, blocks[at + 1] = std::byte{0x3c};
      const matrix_source source = source_of(type, blocks.data(), 1, 256);
      const cpu_matrix m = b.prepare({&source, 1}, format::automatic);
      const float weight = weights_of(m)[0];
      CHECK(weight == (type == dtype::q8_0 ? -128.0f : type == dtype::q6_k ? -31.0f : type == dtype::q5_0 ? 15.0f : 7.0f));
      cpu::stream s = b.make_stream({40, 256, 1, 2, 1});
      for (const std::size_t n : {8u, 40u})  // 40: unpacked
        for (const float in : {127.0f, -127.0f}) {
          const std::vector<float> x(n * 256, in);
          std::vector<float> y(n);
          b.matmul(s, m, tensor_view<const float, 2>(x.data(), {n, 256}), tensor_view<float, 2>(y.data(), {n, 1}));
          for (const float value : y) CHECK(value == 256 * weight * in);
        }
    }
  }
}

TEST_CASE("codes: a kernel alone gives what the backend gives") {
  const cpu b;
  const cpu_kernels kernels;
  const std::size_t rows = 70, cols = 300, n = 250;
  const std::vector<float> w = random_floats(rows * cols, 1), x = random_floats(n * cols, 2);
  const matrix_source source = source_of(dtype::f32, w.data(), rows, cols);
  for (const format f : {format::int8, format::int4z}) {
    const cpu_matrix m = b.prepare({&source, 1}, f), same = kernels.pack(tensor_view<const float, 2>(w.data(), {rows, cols}), f);
    REQUIRE(m.weights.size() == same.weights.size());
    CHECK(std::memcmp(m.weights.data(), same.weights.data(), m.weights.size()) == 0);
    std::vector<float> y(n * rows), z(n * rows);
    cpu::stream s = b.make_stream({n, cols, 1, 2, 1});
    b.matmul(s, m, tensor_view<const float, 2>(x.data(), {n, cols}), tensor_view<float, 2>(y.data(), {n, rows}));
    kernels.matmul(same, tensor_view<const float, 2>(x.data(), {n, cols}), tensor_view<float, 2>(z.data(), {n, rows}));
    CHECK(y == z);
  }
}
