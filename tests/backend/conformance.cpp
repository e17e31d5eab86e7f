// SPDX-License-Identifier: MIT
#include <quena/backend/conformance.hpp>
#include <quena/backend/cpu/cpu.hpp>

#include <bit>
#include <cmath>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

using namespace quena;

namespace {

void require_conforming(const conformance_report& report) {
  CHECK(report.n_checks > 300);  // it did run: the smallest part of the suite has 376
  for (std::size_t i = 0; i < report.failures.size() && i < 20; ++i) {
    const conformance_failure& f = report.failures[i];
    FAIL_CHECK(f.operation << " (" << f.which << "): expected " << f.expected << ", got " << f.got);
  }
  CHECK(report.failures.size() == 0);
}

std::size_t n_failures_of(const conformance_report& report, const std::string& operation) {
  std::size_t n = 0;
  for (const conformance_failure& f : report.failures) n += f.operation == operation ? 1 : 0;
  return n;
}

using rows_in = tensor_view<const float, 2>;
using rows_out = tensor_view<float, 2>;

/// A backend whose operations can be replaced one by one. (One type, so that the suite is compiled once for all mistakes.)
struct mistaken : reference {
  std::function<matrix(std::span<const matrix_source>, format)> prepare_instead = {};
  std::function<matrix(const matrix_source&, const matrix_source&, format)> prepare_gate_up_instead = {};
  std::function<void(const matrix&, const batch&, rows_out)> embed_instead = {};
  std::function<void(rows_in, const vector&, float, rows_out)> rmsnorm_instead = {};
  std::function<void(const matrix&, rows_in, rows_out)> matmul_instead = {}, matmul_add_instead = {}, matmul_swiglu_instead = {};
  std::function<void(rows_out, const batch&, std::size_t, kv_pool&)> rope_append_instead = {};
  std::function<void(rows_in, const batch&, std::size_t, const kv_pool&, rows_out)> attend_instead = {};
  std::function<void(rows_in, const batch&, rows_out)> select_instead = {};
  std::function<void(kv_pool&, page_id, page_id)> copy_page_instead = {};

  matrix prepare(std::span<const matrix_source> sources, format f) const { return prepare_instead ? prepare_instead(sources, f) : reference::prepare(sources, f); }
  matrix prepare_gate_up(const matrix_source& gate, const matrix_source& up, format f) const {
    return prepare_gate_up_instead ? prepare_gate_up_instead(gate, up, f) : reference::prepare_gate_up(gate, up, f);
  }
  void embed(stream& s, const matrix& w, const batch& rows, rows_out x) const { embed_instead ? embed_instead(w, rows, x) : reference::embed(s, w, rows, x); }
  void rmsnorm(stream& s, rows_in x, const vector& gain, float eps, rows_out y) const {
    rmsnorm_instead ? rmsnorm_instead(x, gain, eps, y) : reference::rmsnorm(s, x, gain, eps, y);
  }
  void matmul(stream& s, const matrix& w, rows_in x, rows_out y) const { matmul_instead ? matmul_instead(w, x, y) : reference::matmul(s, w, x, y); }
  void matmul_add(stream& s, const matrix& w, rows_in x, rows_out y) const { matmul_add_instead ? matmul_add_instead(w, x, y) : reference::matmul_add(s, w, x, y); }
  void matmul_swiglu(stream& s, const matrix& w, rows_in x, rows_out y) const {
    matmul_swiglu_instead ? matmul_swiglu_instead(w, x, y) : reference::matmul_swiglu(s, w, x, y);
  }
  void rope_append(stream& s, rows_out qkv, const batch& rows, std::size_t layer, kv_pool& pool) const {
    rope_append_instead ? rope_append_instead(qkv, rows, layer, pool) : reference::rope_append(s, qkv, rows, layer, pool);
  }
  void attend(stream& s, rows_in qkv, const batch& rows, std::size_t layer, const kv_pool& pool, rows_out out) const {
    attend_instead ? attend_instead(qkv, rows, layer, pool, out) : reference::attend(s, qkv, rows, layer, pool, out);
  }
  void select(stream& s, rows_in x, const batch& rows, rows_out y) const { select_instead ? select_instead(x, rows, y) : reference::select(s, x, rows, y); }
  void copy_page(stream& s, kv_pool& pool, page_id from, page_id to) const { copy_page_instead ? copy_page_instead(pool, from, to) : reference::copy_page(s, pool, from, to); }
};

const reference right;
reference::stream s;

/// Runs a part of the suite and expects it to blame `operation`.
template <class Part>
void check_found(const char* operation, const mistaken& b, Part&& part) {
  detail::conformance_log log;
  part(log, b);
  const conformance_report report = log.take();
  INFO("a mistake in " << std::string(operation));
  CHECK(n_failures_of(report, operation) > 0);
  for (const conformance_failure& f : report.failures)
    if (f.which.empty() || f.expected.empty() || f.got.empty()) FAIL_CHECK("a failure that does not say where and what");
}
void found_in_products(const char* operation, const mistaken& b) {
  check_found(operation, b, [](auto& log, const mistaken& m) { detail::check_products(log, m, {}); });
}
void found_in_rows(const char* operation, const mistaken& b) {
  check_found(operation, b, [](auto& log, const mistaken& m) { detail::check_rmsnorm(log, m, {}), detail::check_copies(log, m, {}); });
}
void found_in_caches(const char* operation, const mistaken& b) {
  check_found(operation, b, [](auto& log, const mistaken& m) { detail::check_caches(log, m, {}); });
}
void found_in_errors(const char* operation, const mistaken& b) {
  check_found(operation, b, [](auto& log, const mistaken& m) { detail::check_errors(log, m); });
}

/// Attention in plain loops, with a mistake of choice.
enum class mistake { none, head_modulo, page_offset, misses_own_position, wrong_scale, no_maximum, leftovers, page_sized_sums, first_layer_only, position_of_neighbour };
void attend_with(mistake which, rows_in qkv, const batch& rows, std::size_t layer, const reference::kv_pool& pool, rows_out out) {
  right.attend(s, qkv, rows, layer, pool, out);  // for its checks of the arguments
  const kv_shape& shape = pool.shape();
  const std::size_t d = shape.head_dim, n_heads = out.extent(1) / d, group = n_heads / shape.n_kv_heads;
  if (which == mistake::first_layer_only) layer = 0;
  for (std::size_t i = 0; i < rows.n_rows(); ++i)
    for (std::size_t h = 0; h < n_heads; ++h) {
      const std::size_t kv_head = which == mistake::head_modulo ? h % shape.n_kv_heads : h / group;
      std::size_t last = rows.positions[i];
      if (which == mistake::misses_own_position && last > 0) --last;
      if (which == mistake::position_of_neighbour && i > 0 && rows.sequences[i] == rows.sequences[i - 1]) last = rows.positions[i - 1];
      const std::size_t end = which == mistake::leftovers ? (last / shape.page_size + 1) * shape.page_size : last + 1;
      const auto cells = [&](std::size_t values, std::size_t p) {
        const std::size_t page = which == mistake::page_offset && p >= shape.page_size ? (p - 1) / shape.page_size : p / shape.page_size;
        return pool.at(rows.page_tables[rows.sequences[i]][page], layer, values, kv_head, p % shape.page_size);
      };
      std::vector<double> scores(end);
      double largest = -INFINITY;
      for (std::size_t p = 0; p < end; ++p) {
        double dot = 0;
        for (std::size_t t = 0; t < d; ++t) dot += double{qkv(i, h * d + t)} * double{cells(0, p)[t]};
        scores[p] = dot / std::sqrt(static_cast<double>(which == mistake::wrong_scale ? n_heads : d));
        largest = std::max(largest, scores[p]);
      }
      for (std::size_t p = 0; p < end; ++p) {
        scores[p] = which == mistake::no_maximum ? double{std::exp(static_cast<float>(scores[p]))} : std::exp(scores[p] - largest);
        if (p > last) scores[p] = 0;  // masked after the fact: 0 * NaN is NaN
      }
      for (std::size_t t = 0; t < d; ++t) {
        double sum = 0, value = 0, page_sum = 0, page_value = 0;
        for (std::size_t p = 0; p < end; ++p) {
          page_sum += scores[p];
          page_value += scores[p] * double{cells(1, p)[t]};
          if (which == mistake::page_sized_sums && (p + 1) % shape.page_size != 0 && p + 1 != end) continue;
          sum += page_sum, value += page_value;
          if (which == mistake::page_sized_sums) sum = double{static_cast<float>(sum)}, value = double{static_cast<float>(value)};
          page_sum = page_value = 0;
        }
        out(i, h * d + t) = static_cast<float>(value / sum);
      }
    }
}

}  // namespace

TEST_CASE("conformance: the reference backend conforms [slow]") { require_conforming(check_backend(reference{})); }

TEST_CASE("conformance: it does with other inputs, too [slow]") {
  for (const std::uint64_t seed : {2u, 3u, 4u}) require_conforming(check_backend(reference{}, {.seed = seed}));
}

TEST_CASE("conformance: a report of nothing is not a pass") { CHECK(!conformance_report{}.passed()); }

TEST_CASE("conformance: the CPU backend conforms") { require_conforming(check_backend(cpu(cpu_options{.threads = 1}))); }

TEST_CASE("conformance: it does under every instruction set and with any number of threads [slow]") {
  for (const isa level : {isa::portable, isa::avx2, isa::avx512})
    for (const int threads : {1, 3}) {
      if (best_isa(level) != level) continue;
      const cpu b(cpu_options{.threads = threads, .level = level});
      CAPTURE(std::string(b.name()));
      CAPTURE(threads);
      require_conforming(check_backend(b, {.seed = static_cast<std::uint64_t>(threads)}));
    }
}

TEST_CASE("conformance: one backend serves two threads [slow]") {
  const cpu shared(cpu_options{.threads = 2});
  conformance_report other;
  std::thread thread([&] { other = check_backend(shared, {.seed = 7}); });
  require_conforming(check_backend(shared, {.seed = 8}));
  thread.join();
  require_conforming(other);
}

TEST_CASE("conformance: mistakes in weights are found [slow]") {
  mistaken b;
  b.prepare_instead = [](std::span<const matrix_source> sources, format f) {
    std::vector<matrix_source> bare(sources.begin(), sources.end());
    for (matrix_source& source : bare) source.bias = {};
    return right.prepare(bare, f);
  };
  found_in_products("matmul", b);
  b.prepare_instead = [](std::span<const matrix_source> sources, format f) {  // the rows of GGUF's q and k as they are
    std::vector<matrix_source> plain(sources.begin(), sources.end());
    for (matrix_source& source : plain) source.interleaved_head_dim = 0;
    return right.prepare(plain, f);
  };
  found_in_products("embed", b);
  b.prepare_instead = [](std::span<const matrix_source> sources, format f) {  // only their biases
    reference::matrix m = right.prepare(sources, f);
    std::size_t row = 0;
    for (const matrix_source& source : sources)
      for (std::size_t r = 0; r < source.rows; ++r) {
        matrix_source plain = source;
        plain.interleaved_head_dim = 0;
        m.bias[row++] = plain.bias_f32(r);
      }
    return m;
  };
  found_in_products("matmul", b);
  b.prepare_instead = [](std::span<const matrix_source> sources, format f) {  // bf16 cut off instead of rounded
    reference::matrix m = right.prepare(sources, f == format::bf16 ? format::f32 : f);
    if (f == format::bf16)
      for (float& w : m.weights) w = std::bit_cast<float>(std::bit_cast<std::uint32_t>(w) & 0xffff0000u);
    return m;
  };
  found_in_products("embed", b);
  b.prepare_instead = [](std::span<const matrix_source> sources, format f) {  // f16 subnormals flushed to zero
    reference::matrix m = right.prepare(sources, f);
    if (f == format::f16)
      for (float& w : m.weights) w = std::abs(w) < 0x1p-14f ? 0 : w;
    return m;
  };
  found_in_products("embed", b);
  b.prepare_instead = {};
  b.prepare_gate_up_instead = [](const matrix_source& gate, const matrix_source& up, format f) { return right.prepare_gate_up(up, gate, f); };
  found_in_products("matmul_swiglu", b);
}

TEST_CASE("conformance: mistakes in products are found [slow]") {
  mistaken b;
  b.matmul_instead = [](const reference::matrix& w, rows_in x, rows_out y) {  // the sum over K is split when there is one row
    right.matmul(s, w, x, y);
    const std::size_t step = x.extent(0) == 1 ? 4 : 1;
    for (std::size_t i = 0; i < x.extent(0); ++i)
      for (std::size_t r = 0; r < w.rows; ++r) {
        float sums[4] = {};
        for (std::size_t k = 0; k < w.cols; ++k) sums[k % step] += w.weights[r * w.cols + k] * x(i, k);
        y(i, r) = (sums[0] + sums[1]) + (sums[2] + sums[3]) + w.bias[r];
      }
  };
  found_in_products("matmul", b);
  b.matmul_instead = [](const reference::matrix& w, rows_in x, rows_out y) {  // whole vectors are stored
    right.matmul(s, w, x, y);
    if (y.stride(0) > static_cast<std::ptrdiff_t>(w.rows))
      for (std::size_t i = 0; i < y.extent(0); ++i) y(i, w.rows) = 0;
  };
  found_in_products("matmul", b);
  b.matmul_instead = [](const reference::matrix& w, rows_in x, rows_out y) {  // activations in bf16
    tensor<float, 2> rounded({x.extent(0), x.extent(1)});
    for (std::size_t i = 0; i < x.extent(0); ++i)
      for (std::size_t k = 0; k < x.extent(1); ++k) rounded(i, k) = static_cast<float>(bf16(x(i, k)));
    right.matmul(s, w, rounded, y);
  };
  found_in_products("matmul", b);
  {
    detail::conformance_log log;
    detail::check_products(log, b, {.activation_rounding = 0x1p-8});  // which a backend may declare
    CHECK(log.take().passed());
  }
  b.matmul_instead = {};
  b.matmul_add_instead = [](const reference::matrix& w, rows_in x, rows_out y) {  // whole vectors are read: 0 * NaN is NaN
    right.matmul_add(s, w, x, y);
    if (x.stride(0) > static_cast<std::ptrdiff_t>(w.cols))
      for (std::size_t i = 0; i < y.extent(0); ++i)
        for (std::size_t r = 0; r < w.rows; ++r) y(i, r) += 0 * x(i, w.cols);
  };
  found_in_products("matmul_add", b);
  b.matmul_add_instead = [](const reference::matrix& w, rows_in x, rows_out y) { right.matmul(s, w, x, y); };
  found_in_products("matmul_add", b);
  b.matmul_add_instead = {};
  b.matmul_swiglu_instead = [](const reference::matrix& w, rows_in x, rows_out y) {  // inf / inf for large gates
    right.matmul_swiglu(s, w, x, y);
    for (std::size_t i = 0; i < x.extent(0); ++i)
      for (std::size_t r = 0; r < w.rows; ++r) {
        float g = w.bias[r], u = w.bias[w.rows + r];
        for (std::size_t k = 0; k < w.cols; ++k) g += w.weights[r * w.cols + k] * x(i, k), u += w.weights[(w.rows + r) * w.cols + k] * x(i, k);
        y(i, r) = g * std::exp(g) / (1 + std::exp(g)) * u;
      }
  };
  found_in_products("matmul_swiglu", b);
}

TEST_CASE("conformance: mistakes in row operations are found [slow]") {
  mistaken b;
  b.rmsnorm_instead = [](rows_in x, const reference::vector& gain, float eps, rows_out y) {  // eps outside the root
    right.rmsnorm(s, x, gain, eps, y);
    if (x.data() == y.data()) return;
    for (std::size_t i = 0; i < x.extent(0); ++i) {
      double squares = 0;
      for (std::size_t j = 0; j < gain.size(); ++j) squares += double{x(i, j)} * double{x(i, j)};
      const double scale = 1 / (std::sqrt(squares / static_cast<double>(gain.size())) + double{eps});
      for (std::size_t j = 0; j < gain.size(); ++j) y(i, j) = static_cast<float>(double{x(i, j)} * scale * double{gain[j]});
    }
  };
  found_in_rows("rmsnorm", b);
  b.rmsnorm_instead = [](rows_in x, const reference::vector& gain, float eps, rows_out y) {  // writes y while x is needed
    if (x.data() == y.data())
      for (std::size_t i = 0; i < y.extent(0); ++i) y(i, 0) *= 2;
    right.rmsnorm(s, x, gain, eps, y);
  };
  found_in_rows("rmsnorm", b);
  b.rmsnorm_instead = {};
  b.select_instead = [](rows_in x, const batch& rows, rows_out y) {
    right.select(s, x, rows, y);
    for (std::size_t i = 0; i + 1 < rows.selected_rows.size(); ++i)
      for (std::size_t j = 0; j < x.extent(1); ++j) y(i, j) = x(rows.selected_rows[i] + 1, j);
  };
  found_in_rows("select", b);
}

TEST_CASE("conformance: mistakes in rotation and cache are found [slow]") {
  mistaken b;
  b.rope_append_instead = [](rows_out qkv, const batch& rows, std::size_t layer, reference::kv_pool& pool) {  // neighbours are pairs
    const std::size_t d = pool.shape().head_dim, n_heads = qkv.extent(1) / d - pool.shape().n_kv_heads;
    const auto reorder = [&](bool back) {
      std::vector<float> head(d);
      for (std::size_t i = 0; i < qkv.extent(0); ++i)
        for (std::size_t h = 0; h < n_heads; ++h) {
          for (std::size_t t = 0; t < d; ++t) head[t] = qkv(i, h * d + t);
          for (std::size_t t = 0; t < d; ++t) {
            const std::size_t neighbour = 2 * (t % (d / 2)) + t / (d / 2);
            if (back) qkv(i, h * d + neighbour) = head[t];
            else qkv(i, h * d + t) = head[neighbour];
          }
        }
    };
    const bool fits = qkv.extent(0) == rows.n_rows() && qkv.extent(1) % d == 0;
    if (fits) reorder(false);
    right.rope_append(s, qkv, rows, layer, pool);
    if (fits) reorder(true);
  };
  found_in_caches("rope_append", b);
  b.rope_append_instead = [](rows_out qkv, const batch& rows, std::size_t layer, reference::kv_pool& pool) {  // the other way round
    tensor<float, 2> sin({rows.sin.extent(0), rows.sin.extent(1)});
    for (std::size_t i = 0; i < sin.extent(0); ++i)
      for (std::size_t t = 0; t < sin.extent(1); ++t) sin(i, t) = -rows.sin(i, t);
    batch other = rows;
    other.sin = sin.view();
    right.rope_append(s, qkv, other, layer, pool);
  };
  found_in_caches("rope_append", b);
  b.rope_append_instead = [](rows_out qkv, const batch& rows, std::size_t layer, reference::kv_pool& pool) {  // values also one position further
    right.rope_append(s, qkv, rows, layer, pool);
    const kv_shape& shape = pool.shape();
    for (std::size_t i = 0; i < rows.n_rows(); ++i) {
      const std::size_t offset = rows.positions[i] % shape.page_size;
      const page_id page = rows.page_tables[rows.sequences[i]][rows.positions[i] / shape.page_size];
      if (offset > 0) std::copy_n(pool.at(page, layer, 1, 0, offset - 1), shape.head_dim, pool.at(page, layer, 1, 0, offset));
    }
  };
  found_in_caches("attend", b);
  b.rope_append_instead = {};
  b.copy_page_instead = [](reference::kv_pool& pool, page_id from, page_id to) {  // half of it
    std::vector<std::byte> source(pool.shape().page_bytes()), target(source.size());
    right.read_page(s, pool, from, source), right.read_page(s, pool, to, target);
    std::copy_n(source.begin(), source.size() / 2, target.begin());
    right.write_page(s, pool, to, target);
  };
  found_in_caches("copy_page", b);
}

TEST_CASE("conformance: mistakes in attention are found [slow]") {
  mistaken b;
  b.attend_instead = [](rows_in qkv, const batch& rows, std::size_t layer, const reference::kv_pool& pool, rows_out out) { attend_with(mistake::none, qkv, rows, layer, pool, out); };
  detail::conformance_log log;
  detail::check_caches(log, b, {});
  require_conforming(log.take());  // without a mistake the loops are right
  for (const mistake which : {mistake::head_modulo, mistake::page_offset, mistake::misses_own_position, mistake::wrong_scale, mistake::no_maximum, mistake::leftovers,
                              mistake::page_sized_sums, mistake::first_layer_only, mistake::position_of_neighbour}) {
    CAPTURE(static_cast<int>(which));
    b.attend_instead = [which](rows_in qkv, const batch& rows, std::size_t layer, const reference::kv_pool& pool, rows_out out) { attend_with(which, qkv, rows, layer, pool, out); };
    found_in_caches("attend", b);
  }
}

TEST_CASE("conformance: mistakes in errors are found") {
  mistaken b;
  b.select_instead = [](rows_in x, const batch& rows, rows_out y) {  // does nothing instead of refusing
    if (y.extent(0) == rows.selected_rows.size() && y.extent(1) == x.extent(1) && (rows.selected_rows.empty() || rows.selected_rows.back() < x.extent(0))) right.select(s, x, rows, y);
  };
  found_in_errors("select", b);
  b.select_instead = [](rows_in, const batch&, rows_out) { throw 7; };
  found_in_errors("select", b);
  b.select_instead = {};
  b.embed_instead = [](const reference::matrix& w, const batch& rows, rows_out x) {  // writes before it refuses
    if (x.extent(1) == w.cols && x.extent(0) == rows.n_rows() && x.extent(0) > 0 && rows.tokens[0] == 0) x(0, 0) = w.weights[0];
    right.embed(s, w, rows, x);
  };
  found_in_errors("embed", b);
}
