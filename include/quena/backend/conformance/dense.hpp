// SPDX-License-Identifier: MIT
// Conformance of what works on rows: weights, products, normalisation, copies.
#pragma once

#include <cmath>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "../reference.hpp"
#include "rig.hpp"

namespace quena::inline QUENA_ABI {

namespace detail {

/// Floats as a file of type `type` (f32, f16, bf16) would hold them.
inline std::vector<std::byte> stored(std::span<const float> values, dtype type) {
  std::vector<std::byte> bytes(n_bytes(type, values.size()));
  store_cells(values.data(), values.size(), type, bytes.data());
  return bytes;
}

/// A weight matrix of a file that doesn't exist.
struct made_matrix {
  std::vector<std::byte> weights, biases;
  matrix_source source;
};

inline made_matrix random_matrix(seeded& random, dtype type, std::size_t rows, std::size_t cols, bool bias, std::size_t interleaved_head_dim = 0) {
  made_matrix m;
  if (is_block_type(type)) {
    m.weights.resize(n_bytes(type, rows * cols));
    for (std::byte& byte : m.weights) byte = static_cast<std::byte>(random.next() & 0xff);
    with_block_type(type, [&]<class Block>(const Block*) {
      for (std::size_t at = 0; at < m.weights.size(); at += sizeof(Block)) {  // random bits, but finite scales
        Block block;
        std::memcpy(&block, m.weights.data() + at, sizeof(Block));
        block.d = f16(random.uniform() * 0.01f);
        if constexpr (requires { block.m; }) block.m = f16(random.uniform() * 0.1f);
        if constexpr (requires { block.dmin; }) block.dmin = f16(random.uniform() * 0.01f);
        std::memcpy(m.weights.data() + at, &block, sizeof(Block));
      }
    });
  } else {
    m.weights = stored(random_rows(random, rows, cols).span(), type);
  }
  m.source = {"random", type, rows, cols, m.weights.data(), interleaved_head_dim, {}};
  if (bias) {
    const dtype bias_type = is_block_type(type) ? dtype::f32 : type;
    m.biases = stored(random_rows(random, 1, rows).span(), bias_type);
    m.source.bias = {bias_type, rows, m.biases.data()};
  }
  return m;
}

/// sum_k |w[r,k] x[i,k]| + |bias[r]|: what the errors of a sum are measured by.
inline double absolute_product(const reference::matrix& w, std::size_t r, tensor_view<const float, 1> x) {
  double sum = std::abs(double{w.bias[r]});
  for (std::size_t k = 0; k < w.cols; ++k) sum += std::abs(double{w.weights[r * w.cols + k]} * double{x[k]});
  return sum;
}

struct dense_case {
  std::vector<made_matrix> sources;
  format stored_as = format::f32;
  std::size_t n = 1;  // rows of x
};

inline std::string case_text(const dense_case& c) {
  std::string text;
  for (const made_matrix& m : c.sources)
    text += (text.empty() ? "" : " + ") + std::to_string(m.source.rows) + (m.source.bias.size != 0 ? " (bias)" : "") +
            (m.source.interleaved_head_dim != 0 ? " (interleaved)" : "");
  return text + " x " + std::to_string(c.sources[0].source.cols) + " of " + std::string(dtype_name(c.sources[0].source.type)) + " as " +
         std::string(format_name(c.stored_as)) + ", " + std::to_string(c.n) + " rows";
}

/// Whether a backend may round activations to 8 bits, a scale for each row and at least 32 columns: where weights are integers.
inline bool rounds_activations(const dense_case& c) { return codes_of(c.stored_as) || (c.stored_as == format::automatic && is_block_type(c.sources[0].source.type)); }

/// The largest error of an activation in a row that is rounded to 8 bits.
inline double rounding_of(const dense_case& c, tensor_view<const float, 1> x) {
  double largest = 0;
  if (rounds_activations(c))
    for (std::size_t k = 0; k < x.extent(0); ++k) largest = (std::max)(largest, std::abs(double{x[k]}));
  return largest / 253;
}
inline double absolute_row(const reference::matrix& w, std::size_t r) {
  double sum = 0;
  for (std::size_t k = 0; k < w.cols; ++k) sum += std::abs(double{w.weights[r * w.cols + k]});
  return sum;
}

/// prepare, embed, matmul, matmul_add on one stack of matrices.
/// Tolerance   a sum of K products in f32, in any order: (K + 3) roundings of at most u * sum |w x| (Higham 2002, section 3.1); and
///             what the weights and activations were narrowed by.
template <backend B>
void check_matrix(conformance_log& log, const B& b, const conformance_options& o, const dense_case& c, seeded random) {
  const std::string which = case_text(c);
  log.guarded("prepare", which, [&] {
    std::vector<matrix_source> sources;
    for (const made_matrix& m : c.sources) sources.push_back(m.source);
    const typename B::matrix w = b.prepare(sources, c.stored_as);
    const reference exact;
    const reference::matrix want_w = exact.prepare(sources, c.stored_as);
    const std::size_t rows = want_w.rows, cols = want_w.cols, max_rows = (std::max)(c.n, std::size_t{16});
    const stream_limits limits{max_rows, (std::max)(rows, cols), 1, 2, max_rows};
    conformance_rig<B> rig(b, limits);

    tensor<float, 2> table({rows, cols});
    tensor<double, 2> table_tolerance({rows, cols});
    for (std::size_t i = 0; i < table.size(); ++i) {
      table.data()[i] = want_w.weights[i];
      table_tolerance.data()[i] = 0;
    }
    log.guarded("embed", which, [&] {  // every token: this shows each weight as the backend has it
      const auto out = rig.make(rows, cols, 3);
      for (std::size_t at = 0; at < rows; at += max_rows) {
        const std::size_t count = (std::min)(max_rows, rows - at);
        b.embed(rig.s, w, rig.begin(plain_batch(count, 2, at)), out.view.slice(0, at, count));
      }
      log.close("embed", which + ", every token", rig.get(out.view), table, table_tolerance);
    });

    const tensor<float, 2> x = random_rows(random, c.n, cols), y = random_rows(random, c.n, rows);
    conformance_rig<reference> oracle(exact, limits);
    tensor<double, 2> product_tolerance({c.n, rows}), sum_tolerance({c.n, rows});
    for (std::size_t i = 0; i < c.n; ++i)
      for (std::size_t r = 0; r < rows; ++r) {
        const double terms = absolute_product(want_w, r, x.view()[i]), per_term = static_cast<double>(cols + 3) * f32_roundoff + o.activation_rounding;
        const double rounding = 1.001 * rounding_of(c, x.view()[i]) * absolute_row(want_w, r) + 1e-37;
        product_tolerance(i, r) = per_term * terms + rounding;
        sum_tolerance(i, r) = per_term * (terms + std::abs(double{y(i, r)})) + rounding;
      }
    const auto product = [](const auto& backend, const auto& matrix) { return [&](auto& s, auto in, auto out) { backend.matmul(s, matrix, in, out); }; };
    const auto sum = [](const auto& backend, const auto& matrix) { return [&](auto& s, auto in, auto out) { backend.matmul_add(s, matrix, in, out); }; };
    check_row_operation(log, rig, "matmul", which, x, nullptr, run_rows(oracle, x, nullptr, rows, 0, product(exact, want_w)), product_tolerance, product(b, w));
    check_row_operation(log, rig, "matmul_add", which, x, &y, run_rows(oracle, x, &y, rows, 0, sum(exact, want_w)), sum_tolerance, sum(b, w));
  });
}

/// prepare_gate_up, matmul_swiglu, and matmul_gate_up with swiglu, where there are these; the case's first two matrices are gate and up, `scale` stretches the input.
/// Tolerance   as above for both products; |silu'| <= 1.1; 8 roundings for silu itself.
template <backend B>
void check_swiglu(conformance_log& log, const B& b, const conformance_options& o, const dense_case& c, float scale, seeded random) {
  const std::string which = case_text(c) + ", inputs up to " + number_text(scale);
  log.guarded("prepare_gate_up", which, [&] {
    const typename B::matrix w = b.prepare_gate_up(c.sources[0].source, c.sources[1].source, c.stored_as);
    const reference exact;
    const reference::matrix want_w = exact.prepare_gate_up(c.sources[0].source, c.sources[1].source, c.stored_as);
    const reference::matrix gate = exact.prepare(std::span(&c.sources[0].source, 1), c.stored_as), up = exact.prepare(std::span(&c.sources[1].source, 1), c.stored_as);
    const std::size_t rows = want_w.rows, cols = want_w.cols;
    const stream_limits limits{(std::max)(c.n, std::size_t{1}), (std::max)(2 * rows, cols), 1, 2, 16};
    conformance_rig<B> rig(b, limits);
    conformance_rig<reference> oracle(exact, limits);

    tensor<float, 2> x = random_rows(random, c.n, cols);
    for (float& value : x.span()) value *= scale;
    const auto product = [&](const reference::matrix& m) {
      return run_rows(oracle, x, nullptr, rows, 0, [&](auto& s, auto in, auto out) { exact.matmul(s, m, in, out); });
    };
    const tensor<float, 2> g = product(gate), u = product(up);
    tensor<double, 2> tolerance({c.n, rows});
    const double per_term = static_cast<double>(cols + 3) * f32_roundoff + o.activation_rounding;
    for (std::size_t i = 0; i < c.n; ++i)
      for (std::size_t r = 0; r < rows; ++r) {
        const double z = double{g(i, r)}, silu = std::abs(z / (1 + std::exp(-z)));
        const double rounding = rounding_of(c, x.view()[i]) * 1.001;
        const double g_error = per_term * absolute_product(gate, r, x.view()[i]) + rounding * absolute_row(gate, r);
        const double u_error = per_term * absolute_product(up, r, x.view()[i]) + rounding * absolute_row(up, r);
        const double silu_error = 1.1 * g_error + 8 * f32_roundoff * silu + 1e-36;
        tolerance(i, r) = silu_error * (std::abs(double{u(i, r)}) + u_error) + silu * u_error + 8 * f32_roundoff * silu * std::abs(double{u(i, r)}) + 1e-36;
      }
    const auto swiglu = [](const auto& backend, const auto& matrix) { return [&](auto& s, auto in, auto out) { backend.matmul_swiglu(s, matrix, in, out); }; };
    check_row_operation(log, rig, "matmul_swiglu", which, x, nullptr, run_rows(oracle, x, nullptr, rows, 0, swiglu(exact, want_w)), tolerance, swiglu(b, w));
    if constexpr (adapter_backend<B>) {
      const auto in = rig.make(x, 2), both = rig.make(c.n, 2 * rows, 2), in_two = rig.make(c.n, rows, 2), at_once = rig.make(c.n, rows, 2);
      b.matmul_gate_up(rig.s, w, in.view, both.view);
      b.swiglu(rig.s, both.view, in_two.view);
      b.matmul_swiglu(rig.s, w, in.view, at_once.view);
      log.same("matmul_gate_up", which + ", then swiglu", rig.get(in_two.view), rig.get(at_once.view));
    }
  });
}

/// Every storage type in every format, stacked and with biases; then shapes around every plausible vector width.
template <backend B>
void check_products(conformance_log& log, const B& b, const conformance_options& o) {
  constexpr std::size_t sizes[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 96, 127, 128, 129, 257};
  constexpr std::size_t counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 16, 17, 25, 33};
  seeded random(o.seed);
  std::size_t turn = 0;
  const auto size = [&] { return sizes[turn++ * 7 % std::size(sizes)]; };
  const auto count = [&] { return counts[turn++ * 5 % std::size(counts)]; };

  for (std::size_t t = 0; t < n_dtypes; ++t) {
    const auto type = static_cast<dtype>(t);
    if (!is_weight_type(type)) continue;
    for (const format f : {format::automatic, format::f32, format::f16, format::bf16, format::int8, format::int8_row, format::int4, format::int4z_g64}) {
      const std::size_t cols = is_block_type(type) ? block_elements(type) * (1 + random.below(256 / block_elements(type))) : size();
      dense_case c{{}, f, count()};  // as q, k and v: two of them with their rotary pairs side by side, not all with a bias
      c.sources.push_back(random_matrix(random, type, 3 * 12, cols, turn % 2 == 0, 12));
      c.sources.push_back(random_matrix(random, type, 2 * 8, cols, true, 8));
      c.sources.push_back(random_matrix(random, type, size(), cols, turn % 3 == 0));
      check_matrix(log, b, o, c, random);
      dense_case gated{{}, f, count()};
      const std::size_t rows = size();
      for (int i = 0; i < 2; ++i) gated.sources.push_back(random_matrix(random, type, rows, cols, (turn + static_cast<std::size_t>(i)) % 2 == 0));
      check_swiglu(log, b, o, gated, 1, random);
    }
  }
  for (const auto& [type, f] : {std::pair{dtype::f32, format::f32}, {dtype::f16, format::f16}, {dtype::bf16, format::bf16}})
    for (const std::size_t n : sizes) {
      dense_case wide{{}, f, count()}, tall{{}, f, count()}, gated{{}, f, count()};
      wide.sources.push_back(random_matrix(random, type, size(), n, false));
      tall.sources.push_back(random_matrix(random, type, n, size(), true));
      const std::size_t cols = size();
      for (int i = 0; i < 2; ++i) gated.sources.push_back(random_matrix(random, type, n, cols, i == 1));
      check_matrix(log, b, o, wide, random);
      check_matrix(log, b, o, tall, random);
      check_swiglu(log, b, o, gated, n % 2 == 0 ? 1.0f : 60.0f, random);
    }
  for (const format f : {format::f32, format::f16, format::bf16}) {  // no rows; and values where rounding is hard: ties, subnormals, the largest
    dense_case none{{}, f, 0};
    none.sources.push_back(random_matrix(random, dtype::f32, 5, 20, true));
    none.sources.push_back(random_matrix(random, dtype::f32, 5, 20, true));
    check_swiglu(log, b, o, none, 1, random);
    check_matrix(log, b, o, none, random);
    dense_case hard{{}, f, 1};
    hard.sources.push_back(random_matrix(random, dtype::f32, 4, 5, false));
    const float values[] = {0.0f, -0.0f, 1 + 0x1p-11f, 1 + 0x3p-11f, -1 - 0x1p-8f, 1 + 0x3p-8f, 65504.0f, -65519.0f, 0x1p-24f, 0x1p-25f,
                            0x3p-25f, -0x1p-14f, 0x1.ffcp-15f, 0x1.ffep-15f, 1e-8f, -1e-7f, 3.14159274f, 0x1.fep0f, 0x1.ffp0f, -0x1.ffep0f};
    hard.sources[0].weights = stored(values, dtype::f32);
    hard.sources[0].source.data = hard.sources[0].weights.data();
    check_matrix(log, b, o, hard, random);
  }
}

/// Tolerance   half the error of a sum of squares, (N + 3) / 2 roundings, and 5 for the root, the quotient and two products.
template <backend B>
void check_rmsnorm(conformance_log& log, const B& b, const conformance_options& o) {
  seeded random(o.seed + 1);
  std::size_t turn = 0;
  for (const std::size_t width : {1u, 2u, 7u, 8u, 9u, 15u, 16u, 17u, 33u, 64u, 100u, 129u, 1027u})
    for (const float eps : {1e-5f, 1e-6f, 0.01f}) {
      const std::size_t n = turn % 4 == 0 ? 1 : turn * 5 % 19;
      const dtype type = turn % 3 == 0 ? dtype::f32 : turn % 3 == 1 ? dtype::f16 : dtype::bf16;
      const float scale = turn % 2 == 0 ? 1.0f : 1e-3f;  // where eps matters
      ++turn;
      const std::string which = std::to_string(n) + " rows of " + std::to_string(width) + ", eps " + number_text(double{eps}) + ", gain of " + std::string(dtype_name(type));
      log.guarded("rmsnorm", which, [&] {
        const std::vector<std::byte> bytes = stored(random_rows(random, 1, width).span(), type);
        const vector_source source{type, width, bytes.data()};
        const reference exact;
        const typename B::vector gain = b.prepare_vector(source);
        const reference::vector want_gain = exact.prepare_vector(source);
        const stream_limits limits{(std::max)(n, std::size_t{1}), width, 1, 2, 16};
        conformance_rig<B> rig(b, limits);
        conformance_rig<reference> oracle(exact, limits);
        tensor<float, 2> x = random_rows(random, n, width);
        for (float& value : x.span()) value *= scale;
        if (n > 1) std::fill_n(x.data(), width, 0.0f);  // eps alone
        const auto norm = [eps](const auto& backend, const auto& g) { return [&backend, &g, eps](auto& s, auto in, auto out) { backend.rmsnorm(s, in, g, eps, out); }; };
        const auto in_place = [&](auto& s, auto, auto out) { b.rmsnorm(s, out, gain, eps, out); };
        const tensor<float, 2> want = run_rows(oracle, x, nullptr, width, 0, norm(exact, want_gain));
        tensor<double, 2> tolerance({n, width});
        for (std::size_t i = 0; i < want.size(); ++i)
          tolerance.data()[i] = (static_cast<double>(width + 3) / 2 + 5) * f32_roundoff * std::abs(double{want.data()[i]}) + 1e-37;
        check_row_operation(log, rig, "rmsnorm", which, x, nullptr, want, tolerance, norm(b, gain));
        log.same("rmsnorm", which + ", in place", run_rows(rig, x, &x, width, 5, in_place), run_rows(rig, x, nullptr, width, 0, norm(b, gain)));
      });
    }
}

template <backend B>
void check_copies(conformance_log& log, const B& b, const conformance_options& o) {
  seeded random(o.seed + 2);
  for (const std::size_t width : {1u, 7u, 16u, 33u, 100u}) {
    const std::string which = "9 rows of " + std::to_string(width);
    conformance_rig<B> rig(b, {9, width, 1, 2, 16});
    const tensor<float, 2> x = random_rows(random, 9, width);
    for (const std::vector<std::uint32_t>& selected : {std::vector<std::uint32_t>{}, {8}, {0, 3, 8}, {0, 1, 2, 3, 4, 5, 6, 7, 8}})
      log.guarded("select", which, [&] {
        const auto in = rig.make(x, 4), out = rig.make(selected.size(), width, 4);
        host_batch rows = plain_batch(9, 2);
        rows.selected = selected;
        const batch batch = rig.begin(std::move(rows));
        b.select(rig.s, in.view, batch, out.view);
        log.same("select", which + ", " + std::to_string(selected.size()) + " selected", rig.get(out.view),
                 gathered(x, std::vector<std::size_t>(selected.begin(), selected.end())));
      });
    log.guarded("read", which, [&] {
      const auto in = rig.make(x, 4);
      log.same("read", which, rig.get(in.view), x);
      tensor<float, 2> part({3, (width + 1) / 2});
      for (std::size_t i = 0; i < part.extent(0); ++i)
        for (std::size_t j = 0; j < part.extent(1); ++j) part(i, j) = x(i + 4, j + width / 2);
      log.same("read", which + ", a part", rig.get(in.view.slice(0, 4, 3).slice(1, width / 2, (width + 1) / 2)), part);
    });
  }
}

}  // namespace detail

}  // namespace quena::inline QUENA_ABI
