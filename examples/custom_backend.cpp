// SPDX-License-Identifier: MIT
// A whole backend on one screen, checked by the conformance suite.   example_custom_backend [MODEL]
// What each operation has to do is said in quena/backend/backend.hpp. This one computes in f32, one row after the other.
#include <quena/backend/conformance.hpp>
#include <quena/backend/support.hpp>
#include <quena/quena.hpp>

#include <algorithm>
#include <cmath>
#include <exception>
#include <iostream>
#include <vector>

using namespace quena;
using rows_in = tensor_view<const float, 2>;
using rows_out = tensor_view<float, 2>;

struct toy {
  using buffer = std::vector<float>;
  using vector = std::vector<float>;
  struct matrix {
    std::size_t rows = 0, cols = 0;
    std::vector<float> weights = {}, bias = {};  // gate and up: all rows of gate, then those of up
    std::size_t n_bytes() const { return (weights.size() + bias.size()) * sizeof(float); }
    float product(std::size_t r, const float* x) const { return bias[r] + dot(&weights[r * cols], x, cols); }
  };
  struct stream {};
  struct kv_pool {
    kv_shape s;
    std::vector<std::byte> bytes = std::vector<std::byte>(checked_cells(s) == 0 ? 0 : s.n_pages * s.page_bytes());
    const kv_shape& shape() const { return s; }
    std::byte* page(page_id p) { return bytes.data() + p * s.page_bytes(); }
    const std::byte* page(page_id p) const { return bytes.data() + p * s.page_bytes(); }
    /// Where in its page the key (part 0) or value (part 1) of a position begins.
    std::size_t offset(std::size_t layer, std::size_t part, std::size_t head, std::size_t position) const {
      return (((layer * 2 + part) * s.n_kv_heads + head) * s.page_size + position % s.page_size) * s.row_bytes();
    }
  };

  static float dot(const float* a, const float* b, std::size_t n) {
    float sum = 0;
    for (std::size_t k = 0; k < n; ++k) sum += a[k] * b[k];
    return sum;
  }

  std::string_view name() const { return "toy"; }
  stream make_stream(const stream_limits&) const { return {}; }
  buffer allocate(std::size_t n) const { return buffer(n); }
  kv_pool make_kv_pool(const kv_shape& shape) const { return {shape}; }
  vector prepare_vector(const vector_source& v) const {
    vector values(v.size);
    dequantize_row(v.type, v.data, values.data(), v.size);
    return values;
  }
  matrix prepare(std::span<const matrix_source> sources, format f) const {
    matrix m{0, sources.front().cols};
    for (const matrix_source& s : sources) {
      check_source("prepare", m.cols, s);
      std::vector<float> row(s.cols);
      for (std::size_t r = 0; r < s.rows; ++r) {
        rounded_row(s, r, f, row);
        m.weights.insert(m.weights.end(), row.begin(), row.end());
        m.bias.push_back(s.bias_f32(r));
      }
      m.rows += s.rows;
    }
    return m;
  }
  matrix prepare_gate_up(const matrix_source& gate, const matrix_source& up, format f) const {
    if (gate.rows != up.rows) fail(errc::invalid_argument, "prepare_gate_up", "expected two matrices of one shape, got others");
    matrix m = prepare(std::vector{gate, up}, f);
    m.rows /= 2;
    return m;
  }

  void begin(stream&, const batch&) const {}
  void embed(stream&, const matrix& w, const batch& b, rows_out x) const {
    check_embed(w.rows, w.cols, b, x);
    for (std::size_t i = 0; i < b.n_rows(); ++i) std::copy_n(&w.weights[static_cast<std::size_t>(b.tokens[i]) * w.cols], w.cols, &x(i, 0));
  }
  void rmsnorm(stream&, rows_in x, const vector& gain, float eps, rows_out y) const {
    check_rmsnorm(gain.size(), x, y);
    for (std::size_t i = 0; i < x.extent(0); ++i) {
      const float scale = 1 / std::sqrt(dot(&x(i, 0), &x(i, 0), gain.size()) / static_cast<float>(gain.size()) + eps);
      for (std::size_t j = 0; j < gain.size(); ++j) y(i, j) = x(i, j) * scale * gain[j];
    }
  }
  void matmul(stream&, const matrix& w, rows_in x, rows_out y) const {
    check_product("matmul", w.rows, w.cols, x, y);
    for (std::size_t i = 0; i < x.extent(0); ++i)
      for (std::size_t r = 0; r < w.rows; ++r) y(i, r) = w.product(r, &x(i, 0));
  }
  void matmul_add(stream&, const matrix& w, rows_in x, rows_out y) const {
    check_product("matmul_add", w.rows, w.cols, x, y);
    for (std::size_t i = 0; i < x.extent(0); ++i)
      for (std::size_t r = 0; r < w.rows; ++r) y(i, r) += w.product(r, &x(i, 0));
  }
  void matmul_swiglu(stream&, const matrix& w, rows_in x, rows_out y) const {
    check_product("matmul_swiglu", w.rows, w.cols, x, y);
    for (std::size_t i = 0; i < x.extent(0); ++i)
      for (std::size_t r = 0; r < w.rows; ++r) {
        const float gate = w.product(r, &x(i, 0));
        y(i, r) = gate / (1 + std::exp(-gate)) * w.product(w.rows + r, &x(i, 0));
      }
  }

  void rope_append(stream&, rows_out qkv, const batch& b, std::size_t layer, kv_pool& pool) const {
    const std::size_t d = pool.s.head_dim, n_kv = pool.s.n_kv_heads, n_heads = checked_query_heads("rope_append", qkv, b, layer, pool.s);
    for (std::size_t i = 0; i < b.n_rows(); ++i) {
      for (std::size_t h = 0; h < n_heads + n_kv; ++h)
        for (std::size_t t = 0; t < d / 2; ++t) {
          const float x = qkv(i, h * d + t), y = qkv(i, h * d + d / 2 + t);
          qkv(i, h * d + t) = x * b.cos(i, t) - y * b.sin(i, t);
          qkv(i, h * d + d / 2 + t) = y * b.cos(i, t) + x * b.sin(i, t);
        }
      std::byte* const page = pool.page(b.page_tables[b.sequences[i]][b.positions[i] / pool.s.page_size]);
      for (std::size_t h = 0; h < 2 * n_kv; ++h)
        store_cells(&qkv(i, (n_heads + h) * d), d, pool.s.cell, page + pool.offset(layer, h / n_kv, h % n_kv, b.positions[i]));
    }
  }
  void attend(stream&, rows_in qkv, const batch& b, std::size_t layer, const kv_pool& pool, rows_out out) const {
    const std::size_t d = pool.s.head_dim, n_heads = checked_query_heads("attend", qkv, b, layer, pool.s), group = n_heads / pool.s.n_kv_heads;
    check_rows("attend", out, b.n_rows(), n_heads * d);
    for (std::size_t i = 0; i < b.n_rows(); ++i)
      for (std::size_t h = 0; h < n_heads; ++h) {
        std::vector<float> weight(std::size_t{b.positions[i]} + 1), cells(d), value(d);
        const auto load = [&](std::size_t part, std::size_t p) {
          const page_id page = b.page_tables[b.sequences[i]][p / pool.s.page_size];
          load_cells(pool.s.cell, pool.page(page) + pool.offset(layer, part, h / group, p), cells.data(), d);
        };
        for (std::size_t p = 0; p < weight.size(); ++p) load(0, p), weight[p] = dot(&qkv(i, h * d), cells.data(), d) / std::sqrt(static_cast<float>(d));
        const float largest = *std::max_element(weight.begin(), weight.end());
        float sum = 0;
        for (std::size_t p = 0; p < weight.size(); ++p) {
          load(1, p);
          sum += weight[p] = std::exp(weight[p] - largest);
          for (std::size_t t = 0; t < d; ++t) value[t] += weight[p] * cells[t];
        }
        for (std::size_t t = 0; t < d; ++t) out(i, h * d + t) = value[t] / sum;
      }
  }

  void select(stream&, rows_in x, const batch& b, rows_out y) const {
    check_select(x, b, y);
    for (std::size_t i = 0; i < y.extent(0); ++i) std::copy_n(&x(b.selected_rows[i], 0), x.extent(1), &y(i, 0));
  }
  void read(stream&, rows_in x, std::span<float> host) const {
    check_read(x, host.size());
    for (std::size_t i = 0; i < x.extent(0); ++i) std::copy_n(&x(i, 0), x.extent(1), host.data() + i * x.extent(1));
  }
  void copy_page(stream&, kv_pool& pool, page_id from, page_id to) const {
    check_page("copy_page", pool.s, from), check_page("copy_page", pool.s, to);
    std::copy_n(pool.page(from), pool.s.page_bytes(), pool.page(to));
  }
  void read_page(stream&, const kv_pool& pool, page_id page, std::span<std::byte> host) const {
    check_page("read_page", pool.s, page, host.size());
    std::copy_n(pool.page(page), host.size(), host.data());
  }
  void write_page(stream&, kv_pool& pool, page_id page, std::span<const std::byte> host) const {
    check_page("write_page", pool.s, page, host.size());
    std::copy_n(host.data(), host.size(), pool.page(page));
  }
};

static_assert(backend<toy>);

int main(int argc, char** argv) {
  const conformance_report report = check_backend(toy{});
  for (const conformance_failure& f : report.failures)
    std::cout << f.operation << " (" << f.which << "): expected " << f.expected << ", got " << f.got << '\n';
  std::cout << report.n_checks << " checks, " << report.failures.size() << " failures\n";
  if (!report.passed()) return 1;
  if (argc < 2) return 0;
  try {
    const auto llm = load(argv[1], {}, toy{});
    for (const std::string_view piece : generate(llm, "Once upon a time", {.max_tokens = 60})) std::cout << piece << std::flush;
    std::cout << '\n';
  } catch (const std::exception& e) {
    std::cerr << e.what() << '\n';
    return 1;
  }
}
