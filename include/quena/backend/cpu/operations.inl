// SPDX-License-Identifier: MIT
// The operations of the CPU backend: check shapes, split the work, call the kernel. Included by cpu.hpp, which declares them.

#include <initializer_list>
#include <memory>

#include "../support.hpp"

namespace quena::inline QUENA_ABI {

inline cpu::stream cpu::make_stream(const stream_limits& limits) const {
  stream s;
  s.limits = limits;
  s.worker_floats = ((std::max)({detail::many_scratch, detail::code_scratch, detail::attend_scratch(limits.head_dim)}) + 31) / 16 * 16;
  s.workers = aligned_buffer(checked_product(checked_product(n_workers_, s.worker_floats, "make_stream"), sizeof(float), "make_stream"));
  // Attention is split along positions only for so few rows that heads alone don't occupy the workers.
  const std::size_t n_chunks = limits.max_positions / detail::chunk_positions + 1, n_rows = (std::min)(limits.max_rows, std::size_t{8});
  s.partial_floats = n_workers_ == 1 ? 0 : checked_product(checked_product(n_chunks, n_rows * limits.n_heads, "make_stream"), limits.head_dim + 2, "make_stream");
  s.partials = aligned_buffer(checked_product(s.partial_floats, sizeof(float), "make_stream"));
  s.rounded = aligned_buffer(checked_product(limits.max_rows, detail::code_row_bytes(limits.max_width), "make_stream"));
  return s;
}

inline cpu::matrix cpu::prepare(std::span<const matrix_source> sources, format f) const {
  // Neighbours that are kept in the same way become one matrix, the others stand below it.
  std::size_t n = 0;
  const weight_layout layout = sources.empty() ? weight_layout{} : detail::layout_of(sources.front(), f);
  while (n < sources.size() && detail::layout_of(sources[n], f) == layout) ++n;
  matrix m = pack(detail::empty_matrix("prepare", sources.first(n), layout, false), sources.first(n));
  if (n == sources.size()) return m;
  m.below = std::make_unique<matrix>(prepare(sources.subspan(n), f));
  if (m.below->cols != m.cols) detail::expected("prepare", {m.cols, " columns"}, {m.below->cols, " in ", sources[n].name});
  m.rows += m.below->rows;
  return m;
}

inline cpu::matrix cpu::pack(matrix m, std::span<const matrix_source> sources) const {
  aligned_buffer scratch(n_workers_ * detail::pack_scratch);
  split(m.n_panels(), m.weights.size(), [&](std::size_t first, std::size_t last, std::size_t worker) {
    std::byte* const mine = scratch.data() + worker * detail::pack_scratch;
    for (std::size_t p = first; p < last; ++p) detail::pack_panel(*kernels_, m, sources, p, mine);
  });
  return m;
}

inline std::vector<packed_part> cpu::parts(const matrix& m) const {
  std::vector<packed_part> out;
  for (const matrix* part = &m; part != nullptr; part = part->below.get())
    out.push_back({part->own_rows(), part->cols, detail::layout_name(part->layout), part->gate_up, part->weights.bytes(), part->bias.bytes()});
  return out;
}

inline cpu::matrix cpu::adopt(std::span<const packed_part> parts, const std::shared_ptr<const void>& keeper) const {
  const auto bad = [](const error_message& what) { fail(errc::malformed, "adopt", what); };
  if (parts.empty()) bad("expected a matrix, got no parts");
  const packed_part& p = parts.front();
  const std::optional<weight_layout> layout = detail::layout_named(p.layout);
  if (!layout) bad({"expected a known layout, got ", detail::shortened(p.layout)});
  matrix m;
  m.rows = p.rows, m.cols = p.cols, m.layout = *layout, m.gate_up = p.gate_up;
  const std::size_t cells = detail::n_cells(m, "adopt");
  if (p.weights.size() != m.n_panels() * m.panel_bytes()) bad({"expected ", m.n_panels() * m.panel_bytes(), " bytes of weights, got ", p.weights.size()});
  if (!p.bias.empty() && p.bias.size() != cells * sizeof(float)) bad({"expected ", cells * sizeof(float), " bytes of bias, got ", p.bias.size()});
  const auto keep = [&](std::span<const std::byte> bytes) {
    if (reinterpret_cast<std::uintptr_t>(bytes.data()) % aligned_buffer::alignment == 0) return kept_bytes(bytes, keeper);
    aligned_buffer copy(bytes.size());  // memory of the caller's that lies as it likes
    std::memcpy(copy.data(), bytes.data(), bytes.size());
    return kept_bytes(std::move(copy));
  };
  m.weights = keep(p.weights), m.bias = keep(p.bias);
  if (parts.size() == 1) return m;
  if (parts[1].cols != m.cols || m.gate_up || parts[1].gate_up) bad({"expected parts of one width, got ", m.cols, " and ", parts[1].cols, " columns"});
  m.below = std::make_unique<matrix>(adopt(parts.subspan(1), keeper));
  m.rows += m.below->rows;
  return m;
}

inline void cpu::product(std::string_view where, stream& s, const matrix& w, tensor_view<const float, 2> x, tensor_view<float, 2> y, detail::epilogue mode) const {
  const bool pair = mode == detail::epilogue::pair;
  check_product(where, pair ? 2 * w.rows : w.rows, w.cols, x, y);
  if (w.gate_up != (pair || mode == detail::epilogue::swiglu))
    detail::expected(where, w.gate_up ? "one matrix" : "a matrix from prepare_gate_up", w.gate_up ? "a gate-and-up pair" : "another");
  if (x.extent(0) == 0) return;
  float* out = y.data();
  for (const matrix* part = &w; part != nullptr; out += part->own_rows(), part = part->below.get()) {
    if (part->own_rows() == 0) continue;
    const detail::matmul_args args{part->weights.data(), reinterpret_cast<const float*>(part->bias.data()), w.cols, part->own_rows(), x.data(), x.stride(0), x.extent(0), out, y.stride(0), mode, ahead_};
    if (part->layout.codes) code_product(s, *part, args);
    else float_product(s, *part, args);
  }
}

inline void cpu::float_product(stream& s, const matrix& w, const detail::matmul_args& args) const {
  const std::size_t n_rows = args.n_rows, work = n_rows * w.n_panels() * detail::panel_rows * w.cols;
  if (n_rows <= kernels_->few_rows[w.layout.type]) {  // bound by reading the weights: long contiguous streams
    const auto kernel = kernels_->matmul_few[w.layout.type];
    split(w.n_panels(), work, [&](std::size_t first, std::size_t last, std::size_t) { kernel(args, first, last); }, 4);
    return;
  }
  // Bound by multiplying: blocks of rows times groups of panels, more of them than workers.
  const auto kernel = kernels_->matmul_many[w.layout.type];
  const std::size_t n_blocks = (n_rows + detail::many_rows - 1) / detail::many_rows, block = ((n_rows + n_blocks - 1) / n_blocks + 11) / 12 * 12;
  share_blocks(w, n_blocks, block, n_rows, work, [&](std::size_t first, std::size_t last, std::size_t row, std::size_t end, std::size_t worker) {
    kernel(args, first, last, row, end, reinterpret_cast<float*>(s.workers.data()) + worker * s.worker_floats);
  });
}

inline void cpu::code_product(stream& s, const matrix& w, const detail::matmul_args& product) const {
  const std::size_t n_rows = product.n_rows, work = n_rows * w.n_panels() * detail::panel_rows * w.cols;
  if (n_rows * detail::code_row_bytes(w.cols) > s.rounded.size()) detail::expected("matmul", "rows and columns within the stream's limits", {n_rows, " x ", w.cols});
  const detail::code_args args = detail::rounded_args(product, *w.layout.codes, w.panel_bytes(), s.rounded.data());
  constexpr std::size_t step = detail::code_rows_step;
  split((n_rows + step - 1) / step, n_rows * w.cols * 2, [&](std::size_t first, std::size_t last, std::size_t) {
    kernels_->quantize(args, first * step, (std::min)(n_rows, last * step));
  });
  const auto kernel = kernels_->matmul_codes;
  const auto scratch = [&](std::size_t worker) { return reinterpret_cast<float*>(s.workers.data()) + worker * s.worker_floats; };
  if (n_rows <= detail::few_rows_limit) {
    share_panels(w, work, [&](std::size_t first, std::size_t last, std::size_t worker) { kernel(args, first, last, 0, n_rows, scratch(worker)); });
    return;
  }
  const std::size_t n_blocks = (n_rows + detail::code_rows - 1) / detail::code_rows, block = ((n_rows + n_blocks - 1) / n_blocks + step - 1) / step * step;
  share_blocks(w, n_blocks, block, n_rows, work, [&](std::size_t first, std::size_t last, std::size_t row, std::size_t end, std::size_t worker) {
    kernel(args, first, last, row, end, scratch(worker));
  });
}

inline void cpu::embed(stream&, const matrix& w, const batch& rows, tensor_view<float, 2> x) const {
  check_embed(w.rows, w.cols, rows, x);
  if (w.gate_up) detail::expected("embed", "one matrix", "a gate-and-up pair");
  split(rows.n_rows(), rows.n_rows() * w.cols * 8, [&](std::size_t first, std::size_t last, std::size_t) {
    for (std::size_t i = first; i < last; ++i) detail::unpack_row(w, static_cast<std::size_t>(rows.tokens[i]), &x(i, std::size_t{0}));
  });
}

inline void cpu::rmsnorm(stream&, tensor_view<const float, 2> x, const vector& gain, float eps, tensor_view<float, 2> y) const {
  check_rmsnorm(gain.size, x, y);
  split(x.extent(0), x.size() * 4, [&](std::size_t first, std::size_t last, std::size_t) {
    for (std::size_t i = first; i < last; ++i) kernels_->rmsnorm(&x(i, std::size_t{0}), gain.values.data(), eps, gain.size, &y(i, std::size_t{0}));
  });
}

inline void cpu::swiglu(stream&, tensor_view<const float, 2> gate_up, tensor_view<float, 2> y) const {
  check_swiglu(gate_up, y);
  const std::size_t width = y.extent(1);
  split(y.extent(0), y.size() * 16, [&](std::size_t first, std::size_t last, std::size_t) {
    for (std::size_t i = first; i < last; ++i) kernels_->swiglu(&gate_up(i, std::size_t{0}), &gate_up(i, std::size_t{0}) + width, &y(i, std::size_t{0}), width);
  });
}

inline void cpu::rope_append(stream&, tensor_view<float, 2> qkv, const batch& rows, std::size_t layer, kv_pool& pool) const {
  const kv_shape& shape = pool.shape();
  const std::size_t d = shape.head_dim, n_heads = checked_query_heads("rope_append", qkv, rows, layer, shape), cell = block_bytes(shape.cell);
  const auto append = kernels_->append[shape.cell];
  check_rows("rope_append", rows.cos, rows.n_rows(), d / 2);
  check_rows("rope_append", rows.sin, rows.n_rows(), d / 2);
  split(rows.n_rows(), qkv.size() * 4, [&](std::size_t first, std::size_t last, std::size_t) {
    for (std::size_t i = first; i < last; ++i) {
      float* const q = &qkv(i, std::size_t{0});
      float *const k = q + n_heads * d, *const v = k + shape.n_kv_heads * d;
      kernels_->rotate(q, n_heads + shape.n_kv_heads, d, &rows.cos(i, std::size_t{0}), &rows.sin(i, std::size_t{0}));
      const std::size_t position = rows.positions[i], at = position % shape.page_size;
      std::byte* const page = pool.page(rows.page_tables[rows.sequences[i]][position / shape.page_size]);
      for (std::size_t h = 0; h < shape.n_kv_heads; ++h) {
        std::byte *const keys = page + pool.head_offset(layer, h), *const values = keys + pool.head_bytes();
        const std::size_t block = at / detail::block_positions, lane = at % detail::block_positions;
        const float key_scale = append(k + h * d, d, keys + (block * detail::block_positions * d + lane) * cell, detail::block_positions);
        const float value_scale = append(v + h * d, d, values + at * d * cell, 1);
        if (shape.cell != dtype::i8) continue;
        std::memcpy(keys + shape.page_size * d + at * sizeof(float), &key_scale, sizeof key_scale);
        std::memcpy(values + shape.page_size * d + at * sizeof(float), &value_scale, sizeof value_scale);
      }
    }
  });
}

inline void cpu::attend(stream& s, tensor_view<const float, 2> qkv, const batch& rows, std::size_t layer, const kv_pool& pool, tensor_view<float, 2> out) const {
  const kv_shape& shape = pool.shape();
  const std::size_t d = shape.head_dim, n_heads = checked_query_heads("attend", qkv, rows, layer, shape), group = n_heads / shape.n_kv_heads;
  check_rows("attend", out, rows.n_rows(), n_heads * d);
  if (d > s.limits.head_dim) detail::expected("attend", {"a head_dim of at most ", s.limits.head_dim}, std::to_string(d));
  const std::size_t n_rows = rows.n_rows(), heads_per_call = (std::min)(group, detail::attend_lanes);
  if (n_rows == 0) return;
  const auto kernel = kernels_->attend[shape.cell];

  // The query heads [from, from + n) of one KV head for rows [row, row + n_rows) of one sequence.
  const auto call = [&](std::size_t row, std::size_t count, std::size_t kv_head, std::size_t from, std::size_t n, std::size_t worker) {
    const std::size_t head = kv_head * group + from;
    return detail::attend_args{&qkv(row, head * d), qkv.stride(0), count, n, d, rows.positions.data() + row, pool.page(0) + pool.head_offset(layer, kv_head),
                               shape.page_bytes(), pool.head_bytes(), shape.page_size, rows.page_tables[rows.sequences[row]].data(),
                               reinterpret_cast<float*>(s.workers.data()) + worker * s.worker_floats, nullptr, &out(row, head * d), out.stride(0)};
  };
  const auto n_chunks = [&](std::size_t row) { return std::size_t{rows.positions[row]} / detail::chunk_positions + 1; };

  std::size_t longest = 0, work = 0;
  for (std::size_t i = 0; i < n_rows; ++i) longest = (std::max)(longest, n_chunks(i)), work += rows.positions[i] * std::size_t{2} * n_heads * d;
  const std::size_t partials_of_row = longest * n_heads * (d + 2);
  if (n_workers_ > 1 && longest > 1 && group <= detail::attend_lanes && n_rows * shape.n_kv_heads < 2 * n_workers_ && n_rows * partials_of_row <= s.partial_floats) {
    // A few rows with much to attend to: split along positions too, then merge each head's chunks in their order.
    float* const partials = reinterpret_cast<float*>(s.partials.data());  // [row][kv head][chunk][group][d + 2]
    const auto partials_at = [&](std::size_t row, std::size_t kv_head) { return partials + (row * shape.n_kv_heads + kv_head) * longest * group * (d + 2); };
    share(n_rows * shape.n_kv_heads * longest, work, [&](std::size_t item, std::size_t worker) {
      const std::size_t row = item / longest / shape.n_kv_heads, kv_head = item / longest % shape.n_kv_heads, chunk = item % longest;
      if (chunk >= n_chunks(row)) return;
      detail::attend_args args = call(row, 1, kv_head, 0, group, worker);
      args.partials = partials_at(row, kv_head);
      kernel(args, chunk, chunk + 1);
    });
    for (std::size_t row = 0; row < n_rows; ++row)
      for (std::size_t h = 0; h < n_heads; ++h)
        kernels_->merge(partials_at(row, h / group) + h % group * (d + 2), n_chunks(row), group * (d + 2), d, &out(row, h * d));
    return;
  }

  // Tiles of neighbouring rows of one sequence times KV heads; the later tiles, which attend to more, first.
  const std::size_t rows_per_tile = (std::max)(std::size_t{1}, detail::attend_lanes / heads_per_call);
  const auto starts_tile = [&](std::size_t row) {
    return row % rows_per_tile == 0 || rows.sequences[row] != rows.sequences[row - 1] || rows.positions[row] < rows.positions[row - 1];
  };
  share(n_rows * shape.n_kv_heads, work, [&](std::size_t item, std::size_t worker) {
    const std::size_t row = n_rows - 1 - item / shape.n_kv_heads, kv_head = item % shape.n_kv_heads;
    if (!starts_tile(row)) return;
    std::size_t end = row + 1;
    while (end < n_rows && !starts_tile(end)) ++end;
    for (std::size_t from = 0; from < group; from += heads_per_call)
      kernel(call(row, end - row, kv_head, from, (std::min)(heads_per_call, group - from), worker), 0, n_chunks(end - 1));
  });
}

inline void cpu::select(stream&, tensor_view<const float, 2> x, const batch& rows, tensor_view<float, 2> y) const {
  check_rows("select", x, x.extent(0), x.extent(1));
  check_select(x, rows, y);
  for (std::size_t i = 0; i < rows.selected_rows.size(); ++i)
    std::copy_n(x.data() + static_cast<std::ptrdiff_t>(rows.selected_rows[i]) * x.stride(0), x.extent(1), y.data() + static_cast<std::ptrdiff_t>(i) * y.stride(0));
}

inline void cpu::read(stream&, tensor_view<const float, 2> view, std::span<float> host) const {
  check_read(view, host.size());
  check_rows("read", view, view.extent(0), view.extent(1));
  for (std::size_t i = 0; i < view.extent(0); ++i)
    std::copy_n(view.data() + static_cast<std::ptrdiff_t>(i) * view.stride(0), view.extent(1), host.data() + i * view.extent(1));
}

inline void cpu::copy_page(stream&, kv_pool& pool, page_id from, page_id to) const {
  check_page("copy_page", pool.shape(), from);
  check_page("copy_page", pool.shape(), to);
  if (from != to) std::memcpy(pool.page(to), pool.page(from), pool.shape().page_bytes());
}
inline void cpu::read_page(stream&, const kv_pool& pool, page_id page, std::span<std::byte> host) const {
  check_page("read_page", pool.shape(), page, host.size());
  std::memcpy(host.data(), pool.page(page), host.size());
}
inline void cpu::write_page(stream&, kv_pool& pool, page_id page, std::span<const std::byte> host) const {
  check_page("write_page", pool.shape(), page, host.size());
  std::memcpy(pool.page(page), host.data(), host.size());
}

}  // namespace quena::inline QUENA_ABI
