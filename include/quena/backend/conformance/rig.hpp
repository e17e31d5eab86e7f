// SPDX-License-Identifier: MIT
// One stream of a backend, driven from host memory through nothing but the operations of the concept.
#pragma once

#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "../backend.hpp"
#include "report.hpp"

namespace quena::inline QUENA_ABI {

namespace detail {

/// A batch that owns its arrays.
struct host_batch {
  std::vector<token_id> tokens = {};
  std::vector<std::uint32_t> positions = {}, sequences = {}, selected = {};
  std::vector<std::vector<page_id>> tables = {};
  tensor<float, 2> cos = {}, sin = {};               // [n_rows, head_dim / 2]
  std::vector<std::span<const page_id>> spans = {};  // of tables

  [[nodiscard]] batch view() {
    spans.clear();
    for (const std::vector<page_id>& table : tables) spans.emplace_back(table);
    return {tokens, positions, sequences, spans, cos.view(), sin.view(), selected};
  }
};

/// Rows 0 … n-1 of one sequence; row i has token first + i.
inline host_batch plain_batch(std::size_t n, std::size_t head_dim, std::size_t first = 0) {
  host_batch rows{.cos = tensor<float, 2>({n, head_dim / 2}), .sin = tensor<float, 2>({n, head_dim / 2})};
  for (std::size_t i = 0; i < n; ++i) {
    rows.tokens.push_back(static_cast<token_id>(first + i));
    rows.positions.push_back(static_cast<std::uint32_t>(i));
    rows.sequences.push_back(0);
  }
  rows.tables.emplace_back();
  for (std::size_t p = 0; p <= n / 16; ++p) rows.tables[0].push_back(static_cast<page_id>(p));
  return rows;
}

inline tensor<float, 2> random_rows(seeded& random, std::size_t n, std::size_t width) {
  tensor<float, 2> rows({n, width});
  for (float& value : rows.span()) value = random.uniform();
  return rows;
}

inline tensor<float, 2> gathered(const tensor<float, 2>& from, std::span<const std::size_t> rows) {
  tensor<float, 2> to({rows.size(), from.extent(1)});
  for (std::size_t i = 0; i < rows.size(); ++i)
    for (std::size_t j = 0; j < from.extent(1); ++j) to(i, j) = from(rows[i], j);
  return to;
}

inline constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();

template <backend B>
class conformance_rig {
 public:
  /// Activations in the backend's memory. What lies between the rows is NaN: reading it spoils a result, writing it shows.
  struct activations {
    typename B::buffer memory;
    std::size_t n_floats;
    tensor_view<float, 2> view;
  };

  conformance_rig(const B& backend, const stream_limits& limits) : b(backend), s(backend.make_stream(limits)), limits_(limits) {}

  const B& b;
  typename B::stream s;

  /// n rows of NaN, `padding` floats apart.
  activations make(std::size_t n, std::size_t width, std::size_t padding) {
    const std::size_t stride = width + padding, n_floats = (std::max)(n * stride, std::size_t{1});
    activations r{b.allocate(n_floats), n_floats, {}};
    r.view = {r.memory.data(), {n, width}, {static_cast<std::ptrdiff_t>(stride), 1}};
    tensor<float, 2> nan({1, n_floats});
    std::fill_n(nan.data(), n_floats, quiet_nan);
    put({r.memory.data(), {1, n_floats}}, nan);
    return r;
  }
  activations make(const tensor<float, 2>& values, std::size_t padding) {
    activations r = make(values.extent(0), values.extent(1), padding);
    put(r.view, values);
    return r;
  }

  /// Copies values from the host by way of embed: the one way in that every backend has.
  void put(tensor_view<float, 2> to, const tensor<float, 2>& values) {
    const std::size_t n = values.extent(0), step = (std::max)(limits_.max_rows, std::size_t{1});
    if (n == 0) return;
    const matrix_source source{"values", dtype::f32, n, values.extent(1), reinterpret_cast<const std::byte*>(values.data()), 0, {}};
    const typename B::matrix table = b.prepare(std::span(&source, 1), format::f32);
    for (std::size_t at = 0; at < n; at += step) {
      const std::size_t count = (std::min)(step, n - at);
      b.embed(s, table, begin(plain_batch(count, limits_.head_dim, at)), to.slice(0, at, count));
    }
  }
  [[nodiscard]] tensor<float, 2> get(tensor_view<const float, 2> from) {
    tensor<float, 2> values({from.extent(0), from.extent(1)});
    b.read(s, from, values.span());
    return values;
  }
  /// Whether all that make() left between the rows is still there.
  [[nodiscard]] bool padding_untouched(const activations& r) {
    const tensor<float, 2> all = get({r.memory.data(), {1, r.n_floats}});
    const std::size_t stride = static_cast<std::size_t>(r.view.stride(0));
    for (std::size_t i = 0; i < r.view.extent(0); ++i)
      for (std::size_t j = r.view.extent(1); j < stride; ++j)
        if (!std::isnan(all(0, i * stride + j))) return false;
    return true;
  }

  /// Begins a pass; the batch lives until the next one.
  batch begin(host_batch rows) {
    current_ = std::move(rows);
    const batch view = current_.view();
    b.begin(s, view);
    return view;
  }
  /// A pass over n rows whose tokens and positions don't matter.
  batch begin(std::size_t n) { return begin(plain_batch(n, limits_.head_dim)); }

 private:
  stream_limits limits_;
  host_batch current_;
};

/// The result of an operation on rows: y = f(x), or y = f(x, y) when `y` is given.   f(stream, x, y) calls the operation.
template <backend B, class F>
tensor<float, 2> run_rows(conformance_rig<B>& rig, const tensor<float, 2>& x, const tensor<float, 2>* y, std::size_t out_width, std::size_t padding, F&& f,
                          bool* untouched = nullptr) {
  const auto in = rig.make(x, padding);
  const auto out = y != nullptr ? rig.make(*y, padding) : rig.make(x.extent(0), out_width, padding);
  rig.begin(x.extent(0));
  f(rig.s, in.view, out.view);
  tensor<float, 2> result = rig.get(out.view);
  if (untouched != nullptr) *untouched = rig.padding_untouched(in) && rig.padding_untouched(out);
  return result;
}

/// Checks an operation whose rows are independent of each other: against `want`, and for the same bits with other distances
/// between the rows, each row alone, in other company and at another place.
template <backend B, class F>
void check_row_operation(conformance_log& log, conformance_rig<B>& rig, std::string_view operation, const std::string& which, const tensor<float, 2>& x,
                const tensor<float, 2>* y, const tensor<float, 2>& want, const tensor<double, 2>& tolerance, F&& f) {
  log.guarded(operation, which, [&] {
    const std::size_t n = x.extent(0), width = want.extent(1);
    const tensor<float, 2> all = run_rows(rig, x, y, width, 0, f);
    log.close(operation, which, all, want, tolerance);
    bool untouched = false;
    log.same(operation, which + ", rows 5 floats apart", run_rows(rig, x, y, width, 5, f, &untouched), all);
    log.expect(untouched, operation, which + ", rows 5 floats apart", "the space between rows as it was", "it is overwritten");
    if (n == 0) return;

    std::vector<std::size_t> rows;
    const auto regrouped = [&](const char* how) {
      const tensor<float, 2> x_part = gathered(x, rows), y_part = y != nullptr ? gathered(*y, rows) : tensor<float, 2>();
      log.same(operation, which + how, run_rows(rig, x_part, y != nullptr ? &y_part : nullptr, width, 16, f), gathered(all, rows));
    };
    for (const std::size_t i : {std::size_t{0}, n / 2, n - 1}) rows = {i}, regrouped(", a row alone");
    for (const std::size_t step : {std::size_t{2}, std::size_t{3}, std::size_t{7}}) {
      if (step >= n) break;
      for (std::size_t end = n; end > 0; end -= (std::min)(step, end)) {
        rows.clear();
        for (std::size_t i = end; i > 0 && end - i < step; --i) rows.push_back(i - 1);
        regrouped(", cut into pieces");
      }
    }
    rows.clear();
    for (std::size_t i = 0; i < n; ++i) rows.push_back((i * 7 + 3) % n);
    regrouped(", in another order");
  });
}

}  // namespace detail

}  // namespace quena::inline QUENA_ABI
