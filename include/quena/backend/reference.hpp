// SPDX-License-Identifier: MIT
// The reference backend: plain loops, one thread, no tricks. It is the specification of every operation, the oracle of the
// tests and the debugger's tour of the model. Weights are rounded through the format and kept as f32; sums are in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "support.hpp"

namespace quena::inline QUENA_ABI {

/// See backend.hpp for what each operation means.
/// Numerics every sum is a double, each result is rounded to f32 once (gate and up before they meet, too); so its error is half an ulp of the exact result for the
///          given inputs, up to cancellation in the double sum.
class reference {
 public:
  using buffer = std::vector<float>;
  using vector = std::vector<float>;

  struct matrix {
    std::size_t rows = 0, cols = 0;  ///< rows of the product: for gate_up, those of one of the two
    std::vector<float> weights;      ///< [rows, cols]; gate_up: all gate rows, then all up rows
    std::vector<float> bias;         ///< the same rows
    [[nodiscard]] std::size_t n_bytes() const noexcept { return (weights.size() + bias.size()) * sizeof(float); }
  };

  class kv_pool {
   public:
    explicit kv_pool(const kv_shape& shape) : shape_(shape), cells_(checked_cells(shape)) {}
    [[nodiscard]] const kv_shape& shape() const noexcept { return shape_; }
    /// The cells [head_dim] of one position of one page; `values`: 0 for the key, 1 for the value.
    [[nodiscard]] float* at(page_id page, std::size_t layer, std::size_t values, std::size_t head, std::size_t offset) noexcept {
      return cells_.data() + index(page, layer, values, head, offset);
    }
    [[nodiscard]] const float* at(page_id page, std::size_t layer, std::size_t values, std::size_t head, std::size_t offset) const noexcept {
      return cells_.data() + index(page, layer, values, head, offset);
    }
    /// Keys and values of one position in a page, over all layers and heads: they lie one after the other.
    [[nodiscard]] std::size_t page_rows() const noexcept { return 2 * shape_.n_layers * shape_.n_kv_heads * shape_.page_size; }

   private:
    [[nodiscard]] std::size_t index(page_id page, std::size_t layer, std::size_t values, std::size_t head, std::size_t offset) const noexcept {
      return ((((page * shape_.n_layers + layer) * 2 + values) * shape_.n_kv_heads + head) * shape_.page_size + offset) * shape_.head_dim;
    }
    kv_shape shape_;
    std::vector<float> cells_;  // rounded through the cell type, kept as f32
  };

  struct stream {
    std::vector<double> scores;
    std::vector<std::byte> cells;
  };

  [[nodiscard]] std::string_view name() const noexcept { return "reference"; }
  [[nodiscard]] stream make_stream(const stream_limits& limits) const {
    stream s;
    s.scores.reserve(limits.max_positions);
    return s;
  }
  [[nodiscard]] buffer allocate(std::size_t n_floats) const { return buffer(n_floats); }

  [[nodiscard]] matrix prepare(std::span<const matrix_source> sources, format f) const {
    matrix m;
    m.cols = sources.empty() ? 0 : sources.front().cols;
    for (const matrix_source& source : sources) {
      check_source("prepare", m.cols, source);
      append(m, source, f);
      m.rows += source.rows;
    }
    return m;
  }
  [[nodiscard]] matrix prepare_gate_up(const matrix_source& gate, const matrix_source& up, format f) const {
    if (gate.rows != up.rows || gate.cols != up.cols)
      detail::expected("prepare_gate_up", "gate and up of one shape", {gate.rows, " and ", up.rows, " rows"});
    matrix m;
    m.rows = gate.rows, m.cols = gate.cols;
    append(m, gate, f);
    append(m, up, f);
    return m;
  }
  [[nodiscard]] vector prepare_vector(const vector_source& source) const {
    vector v(source.size);
    dequantize_row(source.type, source.data, v.data(), v.size());
    return v;
  }
  [[nodiscard]] kv_pool make_kv_pool(const kv_shape& shape) const { return kv_pool(shape); }

  void begin(stream&, const batch&) const {}

  void embed(stream&, const matrix& w, const batch& rows, tensor_view<float, 2> x) const {
    check_embed(w.rows, w.cols, rows, x);
    for (std::size_t i = 0; i < rows.n_rows(); ++i)
      for (std::size_t k = 0; k < w.cols; ++k) x(i, k) = w.weights[static_cast<std::size_t>(rows.tokens[i]) * w.cols + k];
  }

  void rmsnorm(stream&, tensor_view<const float, 2> x, const vector& gain, float eps, tensor_view<float, 2> y) const {
    check_rmsnorm(gain.size(), x, y);
    for (std::size_t i = 0; i < x.extent(0); ++i) {
      double squares = 0;
      for (std::size_t j = 0; j < gain.size(); ++j) squares += double{x(i, j)} * double{x(i, j)};
      const double scale = 1 / std::sqrt(squares / static_cast<double>(gain.size()) + double{eps});
      for (std::size_t j = 0; j < gain.size(); ++j) y(i, j) = static_cast<float>(double{x(i, j)} * scale * double{gain[j]});
    }
  }

  void matmul(stream&, const matrix& w, tensor_view<const float, 2> x, tensor_view<float, 2> y) const {
    check_product("matmul", w.rows, w.cols, x, y);
    for (std::size_t i = 0; i < x.extent(0); ++i)
      for (std::size_t r = 0; r < w.rows; ++r) y(i, r) = static_cast<float>(product(w, r, x[i]));
  }
  void matmul_add(stream&, const matrix& w, tensor_view<const float, 2> x, tensor_view<float, 2> y) const {
    check_product("matmul_add", w.rows, w.cols, x, y);
    for (std::size_t i = 0; i < x.extent(0); ++i)
      for (std::size_t r = 0; r < w.rows; ++r) y(i, r) = static_cast<float>(double{y(i, r)} + product(w, r, x[i]));
  }
  void matmul_swiglu(stream&, const matrix& w, tensor_view<const float, 2> x, tensor_view<float, 2> y) const {
    check_product("matmul_swiglu", w.rows, w.cols, x, y);
    for (std::size_t i = 0; i < x.extent(0); ++i)
      for (std::size_t r = 0; r < w.rows; ++r) y(i, r) = silu_times(static_cast<float>(product(w, r, x[i])), static_cast<float>(product(w, w.rows + r, x[i])));
  }
  void matmul_gate_up(stream&, const matrix& w, tensor_view<const float, 2> x, tensor_view<float, 2> y) const {
    check_product("matmul_gate_up", 2 * w.rows, w.cols, x, y);
    for (std::size_t i = 0; i < x.extent(0); ++i)
      for (std::size_t r = 0; r < 2 * w.rows; ++r) y(i, r) = static_cast<float>(product(w, r, x[i]));
  }
  void swiglu(stream&, tensor_view<const float, 2> gate_up, tensor_view<float, 2> y) const {
    check_swiglu(gate_up, y);
    for (std::size_t i = 0; i < y.extent(0); ++i)
      for (std::size_t r = 0; r < y.extent(1); ++r) y(i, r) = silu_times(gate_up(i, r), gate_up(i, y.extent(1) + r));
  }

  void rope_append(stream& s, tensor_view<float, 2> qkv, const batch& rows, std::size_t layer, kv_pool& pool) const {
    const kv_shape& shape = pool.shape();
    s.cells.resize(shape.row_bytes());
    const std::size_t d = shape.head_dim, n_kv_heads = shape.n_kv_heads, n_heads = checked_query_heads("rope_append", qkv, rows, layer, shape);
    for (std::size_t i = 0; i < rows.n_rows(); ++i) {
      const auto [page, offset] = locate(rows, i, rows.positions[i], shape);
      for (std::size_t h = 0; h < n_heads + n_kv_heads; ++h)
        for (std::size_t t = 0; t < d / 2; ++t) {
          float &a = qkv(i, h * d + t), &b = qkv(i, h * d + d / 2 + t);
          const double cos = double{rows.cos(i, t)}, sin = double{rows.sin(i, t)}, first = double{a}, second = double{b};
          a = static_cast<float>(first * cos - second * sin);
          b = static_cast<float>(second * cos + first * sin);
        }
      for (std::size_t values = 0; values < 2; ++values)
        for (std::size_t h = 0; h < n_kv_heads; ++h) {
          store_cells(&qkv(i, (n_heads + values * n_kv_heads + h) * d), d, shape.cell, s.cells.data());
          load_cells(shape.cell, s.cells.data(), pool.at(page, layer, values, h, offset), d);
        }
    }
  }

  void attend(stream& s, tensor_view<const float, 2> qkv, const batch& rows, std::size_t layer, const kv_pool& pool, tensor_view<float, 2> out) const {
    const kv_shape& shape = pool.shape();
    const std::size_t d = shape.head_dim, n_heads = checked_query_heads("attend", qkv, rows, layer, shape), group = n_heads / shape.n_kv_heads;
    check_rows("attend", out, rows.n_rows(), n_heads * d);
    for (std::size_t i = 0; i < rows.n_rows(); ++i)
      for (std::size_t h = 0; h < n_heads; ++h) {
        s.scores.assign(std::size_t{rows.positions[i]} + 1, 0.0);
        double largest = -INFINITY, sum = 0;
        for (std::uint32_t p = 0; p <= rows.positions[i]; ++p) {
          const auto [page, offset] = locate(rows, i, p, shape);
          const float* key = pool.at(page, layer, 0, h / group, offset);
          double dot = 0;
          for (std::size_t t = 0; t < d; ++t) dot += double{qkv(i, h * d + t)} * double{key[t]};
          s.scores[p] = dot / std::sqrt(static_cast<double>(d));
          largest = (std::max)(largest, s.scores[p]);
        }
        for (double& score : s.scores) sum += score = std::exp(score - largest);
        for (std::size_t t = 0; t < d; ++t) {
          double value = 0;
          for (std::uint32_t p = 0; p <= rows.positions[i]; ++p) {
            const auto [page, offset] = locate(rows, i, p, shape);
            value += s.scores[p] * double{pool.at(page, layer, 1, h / group, offset)[t]};
          }
          out(i, h * d + t) = static_cast<float>(value / sum);
        }
      }
  }

  void select(stream&, tensor_view<const float, 2> x, const batch& rows, tensor_view<float, 2> y) const {
    check_select(x, rows, y);
    for (std::size_t i = 0; i < rows.selected_rows.size(); ++i)
      for (std::size_t k = 0; k < x.extent(1); ++k) y(i, k) = x(rows.selected_rows[i], k);
  }

  void read(stream&, tensor_view<const float, 2> view, std::span<float> host) const {
    check_read(view, host.size());
    for (std::size_t i = 0; i < view.extent(0); ++i)
      for (std::size_t k = 0; k < view.extent(1); ++k) host[i * view.extent(1) + k] = view(i, k);
  }
  void copy_page(stream&, kv_pool& pool, page_id from, page_id to) const {
    check_page("copy_page", pool.shape(), from);
    check_page("copy_page", pool.shape(), to);
    std::copy_n(pool.at(from, 0, 0, 0, 0), pool.page_rows() * pool.shape().head_dim, pool.at(to, 0, 0, 0, 0));
  }
  void read_page(stream&, const kv_pool& pool, page_id page, std::span<std::byte> host) const {
    check_page("read_page", pool.shape(), page, host.size());
    const std::size_t d = pool.shape().head_dim;
    for (std::size_t r = 0; r < pool.page_rows(); ++r) store_cells(pool.at(page, 0, 0, 0, 0) + r * d, d, pool.shape().cell, host.data() + r * pool.shape().row_bytes());
  }
  void write_page(stream&, kv_pool& pool, page_id page, std::span<const std::byte> host) const {
    check_page("write_page", pool.shape(), page, host.size());
    const std::size_t d = pool.shape().head_dim;
    for (std::size_t r = 0; r < pool.page_rows(); ++r) load_cells(pool.shape().cell, host.data() + r * pool.shape().row_bytes(), pool.at(page, 0, 0, 0, 0) + r * d, d);
  }

 private:
  struct place {
    page_id page;
    std::size_t offset;
  };
  static place locate(const batch& rows, std::size_t i, std::uint32_t position, const kv_shape& shape) {
    return {rows.page_tables[rows.sequences[i]][position / shape.page_size], position % shape.page_size};
  }

  static float silu_times(float gate, float up) { return static_cast<float>(double{gate} / (1 + std::exp(-double{gate})) * double{up}); }
  static double product(const matrix& w, std::size_t r, tensor_view<const float, 1> x) {
    double sum = 0;
    for (std::size_t k = 0; k < w.cols; ++k) sum += double{w.weights[r * w.cols + k]} * double{x[k]};
    return sum + double{w.bias[r]};
  }

  static void append(matrix& m, const matrix_source& source, format f) {
    std::vector<float> row(source.cols);
    for (std::size_t r = 0; r < source.rows; ++r) {
      rounded_row(source, r, f, row);
      m.weights.insert(m.weights.end(), row.begin(), row.end());
      m.bias.push_back(source.bias_f32(r));
    }
  }
};

static_assert(adapter_backend<reference>);

}  // namespace quena::inline QUENA_ABI
