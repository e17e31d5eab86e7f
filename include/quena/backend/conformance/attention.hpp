// SPDX-License-Identifier: MIT
// Conformance of what works on the paged cache: rotation, append, attention, and moving pages.
#pragma once

#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include "../reference.hpp"
#include "rig.hpp"

namespace quena::inline QUENA_ABI {

namespace detail {

/// Sequences with made-up queries, keys and values: each row's depend on nothing but its sequence, position and layer.
struct attention_case {
  kv_shape shape;  // n_pages does not matter
  std::size_t n_heads = 1;
  std::vector<std::size_t> lengths;      // of the sequences
  std::size_t shared = 0;                // this many leading positions of the last sequence are those of the first
  bool coarse = true;                    // values of so few bits that rotating is exact in f32, so rounding to cells is exact, too
  float scale = 1;                       // of the queries
  std::uint64_t seed = 1;
  std::size_t attended = SIZE_MAX;       // only the last rows of each sequence are compared: long contexts are slow on the reference

  [[nodiscard]] std::size_t width() const { return (n_heads + 2 * shape.n_kv_heads) * shape.head_dim; }
  /// The line of a (sequence, position) in results.
  [[nodiscard]] std::size_t line(std::size_t sequence, std::size_t position) const {
    std::size_t at = position;
    for (std::size_t s = 0; s < sequence; ++s) at += lengths[s];
    return at;
  }
  [[nodiscard]] seeded content(std::size_t sequence, std::size_t position, std::size_t layer) const {
    if (sequence + 1 == lengths.size() && position < shared) sequence = 0;
    return seeded(seeded(seed ^ (sequence << 40) ^ (position << 8) ^ layer).next());
  }
  void fill(std::size_t sequence, std::size_t position, std::size_t layer, std::span<float> qkv) const {
    seeded random = content(sequence, position, layer);
    for (std::size_t j = 0; j < qkv.size(); ++j)
      qkv[j] = (coarse ? random.coarse(127, 64) : 1.7f * random.uniform()) * (j < n_heads * shape.head_dim ? scale : 1.0f);
  }
  void angles(std::size_t position, std::span<float> cos, std::span<float> sin) const {
    seeded random(seed + position);
    for (std::size_t t = 0; t < cos.size(); ++t) {
      const double angle = static_cast<double>(position) * std::pow(100.0, -static_cast<double>(t) / static_cast<double>(cos.size()));
      cos[t] = coarse ? random.coarse(16, 16) : static_cast<float>(std::cos(angle));
      sin[t] = coarse ? random.coarse(16, 16) : static_cast<float>(std::sin(angle));
    }
  }
};

inline std::string case_text(const attention_case& c) {
  return "head_dim " + std::to_string(c.shape.head_dim) + ", " + std::to_string(c.n_heads) + " heads on " + std::to_string(c.shape.n_kv_heads) + ", " +
         std::string(dtype_name(c.shape.cell)) + " cells, pages of " + std::to_string(c.shape.page_size) + (c.coarse ? "" : ", real angles") +
         (c.scale != 1 ? ", queries x " + number_text(double{c.scale}) : "") + ", longest " + std::to_string(*std::max_element(c.lengths.begin(), c.lengths.end()));
}

struct cell_row {
  std::uint32_t sequence, position;
};

/// How a case is run: in which passes, on which pages, over which leftovers.
struct attention_plan {
  std::size_t page_size = 16, n_pages = 0;
  std::vector<std::vector<page_id>> tables = {};   // [n_sequences]
  std::vector<std::size_t> first = {};             // [n_sequences] positions that lie on pages of the first sequence already
  std::vector<std::vector<cell_row>> passes = {};
  std::byte leftover = std::byte{0xff};            // what every byte of the pool is before: 0xff makes NaN in each cell type
};

/// Pages in a random order, with unused ones between them. `share`: the last sequence begins on the first one's pages.
inline attention_plan plan_pages(const attention_case& c, std::size_t page_size, bool share) {
  attention_plan plan{.page_size = page_size};
  std::size_t n = 3;
  for (const std::size_t length : c.lengths) n += (length + page_size - 1) / page_size;
  plan.n_pages = n;
  std::vector<page_id> order(n);
  for (std::size_t p = 0; p < n; ++p) order[p] = static_cast<page_id>(p);
  seeded random(c.seed + page_size);
  for (std::size_t p = n; p > 1; --p) std::swap(order[p - 1], order[random.below(p)]);
  for (std::size_t s = 0; s < c.lengths.size(); ++s) {
    const std::size_t n_shared = share && s + 1 == c.lengths.size() ? c.shared / page_size : 0;
    plan.first.push_back(n_shared * page_size);
    plan.tables.emplace_back();
    for (std::size_t p = 0; p < (c.lengths[s] + page_size - 1) / page_size; ++p) {
      plan.tables[s].push_back(p < n_shared ? plan.tables[0][p] : order.back());
      if (p >= n_shared) order.pop_back();
    }
  }
  return plan;
}

/// Cuts every sequence into pieces of `step` rows; a pass takes a piece of each. `mixed`: the rows of a pass come from all
/// sequences in turn, the last sequence first.
inline void plan_passes(const attention_case& c, attention_plan& plan, std::size_t step, bool mixed) {
  const std::size_t n = c.lengths.size(), longest = *std::max_element(c.lengths.begin(), c.lengths.end());
  for (std::size_t begin = 0; begin < longest; begin += step) {
    std::vector<cell_row> pass;
    const auto add = [&](std::size_t s, std::size_t p) {
      if (p >= plan.first[s] && p < c.lengths[s]) pass.push_back({static_cast<std::uint32_t>(s), static_cast<std::uint32_t>(p)});
    };
    if (mixed)
      for (std::size_t p = begin; p < begin + step && p < longest; ++p)
        for (std::size_t s = n; s-- > 0;) add(s, p);
    else
      for (std::size_t s = 0; s < n; ++s)
        for (std::size_t p = begin; p < begin + step && p < longest; ++p) add(s, p);
    if (!pass.empty()) plan.passes.push_back(std::move(pass));
  }
}

/// What each layer gave for each row, at line(sequence, position); NaN where nothing was computed.
struct attention_results {
  std::vector<tensor<float, 2>> q, out;  // [n_layers][n_lines, n_heads * head_dim]
};

template <backend B>
class attention_rig {
 public:
  attention_rig(const B& b, const attention_case& c, const attention_plan& plan)
      : c_(c), plan_(plan), shape_(c.shape), rig_(b, {max_rows(plan), c.width(), c.n_heads, c.shape.head_dim, *std::max_element(c.lengths.begin(), c.lengths.end())}),
        pool_(make_pool(b)) {
    const std::vector<std::byte> bytes(shape_.page_bytes(), plan.leftover);
    for (page_id page = 0; page < plan.n_pages; ++page) b.write_page(rig_.s, pool_, page, bytes);
  }

  [[nodiscard]] conformance_rig<B>& rig() { return rig_; }
  [[nodiscard]] typename B::kv_pool& pool() { return pool_; }

  /// rope_append and attend for every pass and layer.
  attention_results run() {
    const std::size_t n_lines = c_.line(c_.lengths.size(), 0), q_width = c_.n_heads * shape_.head_dim;
    attention_results results;
    for (std::size_t layer = 0; layer < shape_.n_layers; ++layer)
      for (std::vector<tensor<float, 2>>* part : {&results.q, &results.out}) std::fill_n(part->emplace_back(std::array{n_lines, q_width}).data(), n_lines * q_width, quiet_nan);
    for (const std::vector<cell_row>& pass : plan_.passes) {
      std::vector<typename conformance_rig<B>::activations> qkv;
      for (std::size_t layer = 0; layer < shape_.n_layers; ++layer) {
        tensor<float, 2> values({pass.size(), c_.width()});
        for (std::size_t i = 0; i < pass.size(); ++i) c_.fill(pass[i].sequence, pass[i].position, layer, values.view()[i].span());
        qkv.push_back(rig_.make(values, 6));
      }
      const auto out = rig_.make(pass.size(), q_width, 6);
      const batch rows = rig_.begin(batch_of(pass));
      for (std::size_t layer = 0; layer < shape_.n_layers; ++layer) {
        rig_.b.rope_append(rig_.s, qkv[layer].view, rows, layer, pool_);
        keep(pass, rig_.get(qkv[layer].view.slice(1, 0, q_width)), results.q[layer]);
        if (!compared(pass)) continue;
        rig_.b.attend(rig_.s, qkv[layer].view, rows, layer, pool_, out.view);
        keep(pass, rig_.get(out.view), results.out[layer]);
      }
    }
    return results;
  }

  /// attend alone, for the last row of every sequence, with queries that are rotated already; lines as in `tables`.
  tensor<float, 2> attend_last(std::size_t layer, const tensor<float, 2>& q, typename B::kv_pool& pool, const std::vector<std::vector<page_id>>& tables) {
    std::vector<cell_row> rows;
    for (std::size_t s = 0; s < c_.lengths.size(); ++s) rows.push_back({static_cast<std::uint32_t>(s), static_cast<std::uint32_t>(c_.lengths[s] - 1)});
    tensor<float, 2> values({rows.size(), c_.width()});
    std::fill_n(values.data(), values.size(), quiet_nan);
    for (std::size_t s = 0; s < rows.size(); ++s)
      for (std::size_t j = 0; j < q.extent(1); ++j) values(s, j) = q(c_.line(s, rows[s].position), j);
    const auto qkv = rig_.make(values, 6), out = rig_.make(rows.size(), q.extent(1), 6);
    host_batch batch = batch_of(rows);
    batch.tables = tables;
    const quena::batch view = rig_.begin(std::move(batch));
    rig_.b.attend(rig_.s, qkv.view, view, layer, pool, out.view);
    return rig_.get(out.view);
  }

 private:
  static std::size_t max_rows(const attention_plan& plan) {
    std::size_t most = 0;
    for (const std::vector<cell_row>& pass : plan.passes) most = (std::max)(most, pass.size());
    return (std::max)(most, plan.tables.size());
  }
  typename B::kv_pool make_pool(const B& b) {
    shape_.page_size = plan_.page_size;
    shape_.n_pages = plan_.n_pages;
    return b.make_kv_pool(shape_);
  }
  [[nodiscard]] host_batch batch_of(const std::vector<cell_row>& pass) const {
    const std::size_t half = shape_.head_dim / 2;
    host_batch rows{.tables = plan_.tables, .cos = tensor<float, 2>({pass.size(), half}), .sin = tensor<float, 2>({pass.size(), half})};
    for (std::size_t i = 0; i < pass.size(); ++i) {
      rows.tokens.push_back(0);
      rows.positions.push_back(pass[i].position);
      rows.sequences.push_back(pass[i].sequence);
      c_.angles(pass[i].position, rows.cos.view()[i].span(), rows.sin.view()[i].span());
    }
    return rows;
  }
  [[nodiscard]] bool compared(const std::vector<cell_row>& pass) const {
    for (const cell_row& row : pass)
      if (c_.lengths[row.sequence] - row.position <= c_.attended) return true;
    return false;
  }
  void keep(const std::vector<cell_row>& pass, const tensor<float, 2>& part, tensor<float, 2>& all) const {
    for (std::size_t i = 0; i < pass.size(); ++i)
      for (std::size_t j = 0; j < part.extent(1); ++j) all(c_.line(pass[i].sequence, pass[i].position), j) = part(i, j);
  }

  const attention_case& c_;
  const attention_plan& plan_;
  kv_shape shape_;
  conformance_rig<B> rig_;
  typename B::kv_pool pool_;
};

/// Tolerance of attend: a score is off by at most e = (head_dim + 16) roundings of |q||k| / sqrt(head_dim) (the product, and 4 of
/// each rotated element) and 4 of itself; then each weight is off by a factor exp(2 e), and the two sums over n positions and
/// their quotient by n + 16 roundings. Weights below f32's range count as nothing.
inline tensor<double, 2> attention_tolerance(const attention_case& c, const attention_plan& plan, const reference::kv_pool& pool, std::size_t layer,
                                             const tensor<float, 2>& q, double activation_rounding) {
  const std::size_t d = c.shape.head_dim, group = c.n_heads / c.shape.n_kv_heads;
  tensor<double, 2> tolerance({q.extent(0), q.extent(1)});
  std::vector<double> weights;
  for (std::size_t s = 0; s < c.lengths.size(); ++s)
    for (std::size_t i = c.lengths[s] - (std::min)(c.attended, c.lengths[s]); i < c.lengths[s]; ++i)
      for (std::size_t h = 0; h < c.n_heads; ++h) {
        const float* query = &q(c.line(s, i), h * d);
        const auto cells = [&](std::size_t values, std::size_t p) { return pool.at(plan.tables[s][p / plan.page_size], layer, values, h / group, p % plan.page_size); };
        double largest = -INFINITY, off = 0, sum = 0;
        weights.assign(i + 1, 0);
        for (std::size_t p = 0; p <= i; ++p) {
          double dot = 0, qq = 0, kk = 0;
          const float* key = cells(0, p);
          for (std::size_t t = 0; t < d; ++t) dot += double{query[t]} * double{key[t]}, qq += double{query[t]} * double{query[t]}, kk += double{key[t]} * double{key[t]};
          weights[p] = dot / std::sqrt(static_cast<double>(d));
          largest = (std::max)(largest, weights[p]);
          off = (std::max)(off, (static_cast<double>(d + 16) * f32_roundoff + 2 * activation_rounding) * std::sqrt(qq * kk / static_cast<double>(d)) +
                                    4 * f32_roundoff * std::abs(weights[p]));
        }
        for (double& w : weights) sum += w = std::exp(w - largest);
        for (std::size_t t = 0; t < d; ++t) {
          double size = 0, largest_value = 0;
          for (std::size_t p = 0; p <= i; ++p) {
            const double value = std::abs(double{cells(1, p)[t]});
            size += weights[p] * value;
            largest_value = (std::max)(largest_value, value);
          }
          tolerance(c.line(s, i), h * d + t) =
              size / sum * (2 * std::expm1(2 * off) + (static_cast<double>(i) + 16) * f32_roundoff + activation_rounding) + 1e-30 * largest_value;
        }
      }
  return tolerance;
}

/// The lines of the case that are compared, without those that `plan` does not compute.
inline std::vector<std::size_t> compared_lines(const attention_case& c, const attention_plan& plan) {
  std::vector<std::size_t> lines;
  for (std::size_t s = 0; s < c.lengths.size(); ++s)
    for (std::size_t p = (std::max)(plan.first[s], c.lengths[s] - (std::min)(c.attended, c.lengths[s])); p < c.lengths[s]; ++p) lines.push_back(c.line(s, p));
  return lines;
}

/// Moves every page of a finished run: through the host into another pool, then onto other pages of the same pool.
template <backend B>
void check_pages(conformance_log& log, attention_rig<B>& done, const attention_plan& plan, const attention_results& results, const std::string& which) {
  const B& b = done.rig().b;
  auto& s = done.rig().s;
  kv_shape shape = done.pool().shape();
  const page_id n = static_cast<page_id>(shape.n_pages);
  std::vector<tensor<float, 2>> before;
  for (std::size_t layer = 0; layer < shape.n_layers; ++layer) before.push_back(done.attend_last(layer, results.q[layer], done.pool(), plan.tables));

  shape.n_pages += 2;
  typename B::kv_pool other = b.make_kv_pool(shape);
  std::vector<std::byte> bytes(shape.page_bytes()), again(shape.page_bytes());
  bool equal = true;
  for (page_id page = 0; page < n; ++page) {
    b.read_page(s, done.pool(), page, bytes);
    b.write_page(s, other, n + 1 - page, bytes);
    b.read_page(s, other, n + 1 - page, again);
    equal = equal && bytes == again;
  }
  log.expect(equal, "read_page", which, "the bytes that write_page was given", "others");
  std::vector<std::vector<page_id>> tables = plan.tables;
  for (std::vector<page_id>& table : tables)
    for (page_id& page : table) page = n + 1 - page;
  for (std::size_t layer = 0; layer < shape.n_layers; ++layer)
    log.same("write_page", which + ", all pages in another pool", done.attend_last(layer, results.q[layer], other, tables), before[layer]);

  const page_id spare = 0, moved = tables[0].back();  // a page of the other pool that no table names
  b.copy_page(s, other, moved, spare);
  std::fill(bytes.begin(), bytes.end(), std::byte{0xff});
  b.write_page(s, other, moved, bytes);
  for (std::vector<page_id>& table : tables)
    for (page_id& page : table)
      if (page == moved) page = spare;
  for (std::size_t layer = 0; layer < shape.n_layers; ++layer)
    log.same("copy_page", which + ", original overwritten", done.attend_last(layer, results.q[layer], other, tables), before[layer]);
}

template <backend B>
void check_attention(conformance_log& log, const B& b, const conformance_options& o, const attention_case& c) {
  const std::string which = case_text(c);
  log.guarded("attend", which, [&] {
    attention_plan plan = plan_pages(c, c.shape.page_size, false);
    plan_passes(c, plan, c.attended == SIZE_MAX ? *std::max_element(c.lengths.begin(), c.lengths.end()) : 64, false);
    const reference exact;
    attention_rig<reference> oracle(exact, c, plan);
    const attention_results want = oracle.run();
    attention_rig<B> rig(b, c, plan);
    const attention_results got = rig.run();
    const std::vector<std::size_t> lines = compared_lines(c, plan);
    for (std::size_t layer = 0; layer < c.shape.n_layers; ++layer) {
      tensor<double, 2> exactly({want.q[layer].extent(0), want.q[layer].extent(1)});
      if (!c.coarse)  // two products and a sum: 4 roundings of |a cos| + |b sin|, at most sqrt(2) times the largest input, 1.7
        for (std::size_t i = 0; i < exactly.size(); ++i) exactly.data()[i] = 4 * f32_roundoff * 2.5 * double{c.scale};
      log.close("rope_append", which + ", q in place", got.q[layer], want.q[layer], exactly);
      const tensor<double, 2> tolerance = attention_tolerance(c, plan, oracle.pool(), layer, want.q[layer], o.activation_rounding);
      tensor<double, 2> compared({lines.size(), tolerance.extent(1)});
      for (std::size_t i = 0; i < lines.size(); ++i)
        for (std::size_t j = 0; j < tolerance.extent(1); ++j) compared(i, j) = tolerance(lines[i], j);
      log.close("attend", which, gathered(got.out[layer], lines), gathered(want.out[layer], lines), compared);
    }
    check_pages(log, rig, plan, got, which);

    const auto again = [&](const char* how, std::size_t page_size, bool share, std::size_t step, bool mixed, std::byte leftover) {
      attention_plan other = plan_pages(c, page_size, share);
      other.leftover = leftover;
      plan_passes(c, other, step, mixed);
      const attention_results result = attention_rig<B>(b, c, other).run();
      const std::vector<std::size_t> same_lines = compared_lines(c, other);
      for (std::size_t layer = 0; layer < c.shape.n_layers; ++layer)
        log.same("attend", which + how, gathered(result.out[layer], same_lines), gathered(got.out[layer], same_lines));
    };
    again(", in pieces of 7 rows, sequences mixed, over large leftovers", c.shape.page_size, false, 7, true, std::byte{0x7b});
    again(", with a page size of 64", 64, false, 64, true, std::byte{0xff});
    again(", on shared pages", c.shape.page_size, true, 16, false, std::byte{0xff});
    if (c.attended == SIZE_MAX) again(", position by position", c.shape.page_size == 16 ? 32 : 16, false, 1, true, std::byte{0});
    attention_case alone = c;
    alone.lengths.resize(1);
    alone.shared = 0;
    attention_plan own = plan_pages(alone, c.shape.page_size, false);
    plan_passes(alone, own, 33, false);
    const attention_results single = attention_rig<B>(b, alone, own).run();
    const std::vector<std::size_t> own_lines = compared_lines(alone, own);
    for (std::size_t layer = 0; layer < c.shape.n_layers; ++layer)
      log.same("attend", which + ", the first sequence alone", gathered(single.out[layer], own_lines), gathered(got.out[layer], own_lines));
  });
}

template <backend B>
void check_caches(conformance_log& log, const B& b, const conformance_options& o) {
  std::size_t turn = 0;
  for (const std::size_t head_dim : {2u, 8u, 12u, 16u, 64u, 80u, 128u})
    for (const dtype cell : {dtype::f32, dtype::f16, dtype::bf16, dtype::i8}) {
      const std::size_t group = std::size_t{1} << (turn % 4), n_kv_heads = head_dim < 64 || group == 1 ? 1 + turn % 3 : 1, n_layers = head_dim < 64 ? 2 : 1;
      check_attention(log, b, o, {{n_layers, n_kv_heads, head_dim, 16 * (1 + turn % 3), 0, cell}, n_kv_heads * group, {37, 1, 18, 41}, 35, true, 1, o.seed + turn});
      ++turn;
    }
  for (const std::size_t head_dim : {8u, 64u})  // plain angles and inputs
    for (const float scale : {1.0f, 200.0f})  // 200: softmax over scores in the hundreds
      check_attention(log, b, o, {{1, 2, head_dim, 16, 0, dtype::f32}, 6, {40, 17}, 0, false, scale, o.seed + turn});
  for (const dtype cell : {dtype::f32, dtype::f16})
    check_attention(log, b, o, {{1, 1, 16, 16, 0, cell}, 2, {1030, 515}, 512, true, 1, o.seed + turn, 4});
}

}  // namespace detail

}  // namespace quena::inline QUENA_ABI
