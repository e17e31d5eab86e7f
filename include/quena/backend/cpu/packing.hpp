// SPDX-License-Identifier: MIT
// Weight matrices of the CPU backend: checkpoint rows, converted and packed into panels.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "../../core/float16.hpp"
#include "../../core/checked.hpp"
#include "../../core/memory.hpp"
#include "../backend.hpp"
#include "code_layout.hpp"
#include "kernel_table.hpp"

namespace quena::inline QUENA_ABI {

/// How the numbers of a CPU matrix are kept: floats of some type, or integer codes (code_layout.hpp).
struct weight_layout {
  dtype type = dtype::f32;  ///< f32, f16 or bf16, if there are no codes
  std::optional<code_format> codes = {};

  friend bool operator==(const weight_layout&, const weight_layout&) = default;
};

/// A weight matrix as panels of 32 output rows, [ceil(rows / 32)][cols][32] for floats, the missing rows zero (kernel_table.hpp says why).
/// A gate-and-up pair has 16 gate rows and the same 16 up rows in each panel, so that SwiGLU happens where the sums are.
struct cpu_matrix {
  std::size_t rows = 0, cols = 0;  ///< of the product: for a gate-and-up pair those of one of the two
  weight_layout layout;
  bool gate_up = false;
  kept_bytes weights;
  kept_bytes bias;  ///< [n_panels * 32] of f32, or empty
  /// The rows after the first `rows - below->rows`, where stacked sources are kept in different ways.
  std::unique_ptr<cpu_matrix> below;

  [[nodiscard]] std::size_t own_rows() const noexcept { return below ? rows - below->rows : rows; }
  [[nodiscard]] std::size_t rows_per_panel() const noexcept { return gate_up ? detail::panel_rows / 2 : detail::panel_rows; }
  [[nodiscard]] std::size_t n_panels() const noexcept { return (own_rows() + rows_per_panel() - 1) / rows_per_panel(); }
  [[nodiscard]] std::size_t panel_bytes() const noexcept {
    return layout.codes ? detail::code_panel_bytes(*layout.codes, cols) : cols * detail::panel_rows * block_bytes(layout.type);
  }
  [[nodiscard]] std::size_t n_bytes() const noexcept { return weights.size() + bias.size() + (below ? below->n_bytes() : 0); }
};

namespace detail {

/// f(name, layout) for every way to keep a matrix that an artifact may name, until one returns true.
template <class F>
void for_each_layout(F&& f) {
  for (const dtype d : {dtype::f32, dtype::f16, dtype::bf16})
    if (f(dtype_name(d), weight_layout{d})) return;
  for (std::size_t i = 0; i < std::size(format_names); ++i)
    if (const auto codes = codes_of(static_cast<format>(i)); codes && f(format_names[i], weight_layout{dtype::f32, codes})) return;
  for (std::size_t i = 0; i < n_dtypes; ++i)
    if (const auto codes = codes_of(static_cast<dtype>(i)); codes && f(dtype_name(static_cast<dtype>(i)), weight_layout{dtype::f32, codes})) return;
}
inline std::string_view layout_name(const weight_layout& layout) {
  std::string_view found;
  for_each_layout([&](std::string_view name, const weight_layout& l) { return l == layout ? found = name, true : false; });
  return found;
}
inline std::optional<weight_layout> layout_named(std::string_view wanted) {
  std::optional<weight_layout> found;
  for_each_layout([&](std::string_view name, const weight_layout& l) { return name == wanted ? found = l, true : false; });
  return found;
}

/// What `format` means for a source. automatic: as it is.
inline weight_layout layout_of(const matrix_source& source, format f) noexcept {
  switch (f) {
    case format::f32: return {dtype::f32};
    case format::f16: return {dtype::f16};
    case format::bf16: return {dtype::bf16};
    case format::automatic: break;
    default: return {dtype::f32, codes_of(f)};
  }
  if (is_block_type(source.type)) return source.deltas.empty() ? weight_layout{dtype::f32, codes_of(source.type)} : weight_layout{dtype::f16};  // sums have no codes
  return {source.type};
}
/// What it means for a gate-and-up pair, which is kept in one way: f16 where two block types meet, f32 for two dense types.
inline weight_layout layout_of(const matrix_source& gate, const matrix_source& up, format f) noexcept {
  const weight_layout a = layout_of(gate, f), b = layout_of(up, f);
  return a == b ? a : weight_layout{a.codes || b.codes ? dtype::f16 : dtype::f32};
}

/// Row r of the stacked sources, or nothing (a padding row).
struct source_row {
  const matrix_source* source = nullptr;
  std::size_t row = 0;
};
inline source_row find_row(std::span<const matrix_source> sources, std::size_t r) noexcept {
  for (const matrix_source& m : sources) {
    if (r < m.rows) return {&m, r};
    r -= m.rows;
  }
  return {};
}
inline source_row panel_row(const cpu_matrix& m, std::span<const matrix_source> sources, std::size_t panel, std::size_t lane) noexcept {
  if (!m.gate_up) return find_row(sources, panel * panel_rows + lane);
  constexpr std::size_t half = panel_rows / 2;
  const std::size_t r = panel * half + lane % half;
  return r < m.rows ? source_row{&sources[lane / half], r} : source_row{};
}

/// Bytes of scratch that packing a panel needs: a strip of 256 columns of one row in f32 and of 32 rows in the stored type.
inline constexpr std::size_t pack_strip = code_block_cols;
inline constexpr std::size_t pack_scratch = pack_strip * sizeof(float) * (1 + panel_rows);

/// Columns [k, k + n) of a source's row, as stored.
inline const std::byte* strip_of(const source_row& from, std::size_t k) noexcept {
  return from.source->row(from.row) + k / block_elements(from.source->type) * block_bytes(from.source->type);
}

/// Fills panel p of floats. A strip at a time, so that nothing but the strip is ever held twice.
template <class Cell>
void pack_floats(const kernel_table& kernels, cpu_matrix& m, std::span<const matrix_source> sources, std::size_t p, std::byte* scratch) {
  float* const wide = reinterpret_cast<float*>(scratch);
  Cell* const strip = reinterpret_cast<Cell*>(scratch + pack_strip * sizeof(float));
  Cell* to = reinterpret_cast<Cell*>(m.weights.own()) + p * m.cols * panel_rows;
  for (std::size_t k = 0; k < m.cols; k += pack_strip) {
    const std::size_t n = (std::min)(pack_strip, m.cols - k);
    for (std::size_t lane = 0; lane < panel_rows; ++lane) {
      Cell* const row = strip + lane * pack_strip;
      const source_row from = panel_row(m, sources, p, lane);
      if (from.source == nullptr) {
        std::fill_n(row, n, Cell{});
        continue;
      }
      if (from.source->type == m.layout.type && from.source->deltas.empty()) {
        std::memcpy(row, strip_of(from, k), n * sizeof(Cell));  // bits are kept, NaN payloads too
      } else {
        from.source->strip_f32(from.row, k, n, wide);
        kernels.narrow[m.layout.type](wide, row, n);
      }
    }
    for (std::size_t j = 0; j < n; ++j, to += panel_rows)
      for (std::size_t lane = 0; lane < panel_rows; ++lane) to[lane] = strip[lane * pack_strip + j];
  }
}

/// The largest magnitude in a row.
inline float peak_of(const source_row& from, std::size_t cols, float* wide) {
  float peak = 0;
  for (std::size_t k = 0; k < cols; k += pack_strip) {
    const std::size_t n = (std::min)(pack_strip, cols - k);
    from.source->strip_f32(from.row, k, n, wide);
    for (std::size_t j = 0; j < n; ++j) peak = (std::max)(peak, std::fabs(wide[j]));
  }
  return peak;
}

/// Fills panel p of codes: those of the file, or rounded to the nearest.
inline void pack_codes(cpu_matrix& m, std::span<const matrix_source> sources, std::size_t p, std::byte* scratch) {
  float* const wide = reinterpret_cast<float*>(scratch);
  const code_format& f = *m.layout.codes;
  std::byte* const panel = m.weights.own() + p * m.panel_bytes();
  std::memset(panel, 0, m.panel_bytes());
  code_block block{};
  for (std::size_t lane = 0; lane < panel_rows; ++lane) {
    const source_row from = panel_row(m, sources, p, lane);
    if (from.source == nullptr) continue;  // scales of zero
    const code_block* const given = from.source->codes == nullptr ? nullptr : from.source->codes + from.row * ((m.cols + code_block_cols - 1) / code_block_cols);
    const bool kept = given == nullptr && from.source->deltas.empty() && codes_of(from.source->type) == f;
    const float peak = !given && !kept && f.group == code_block_cols ? peak_of(from, m.cols, wide) : 0;
    std::byte* to = panel;
    for (std::size_t k = 0; k < m.cols; k += pack_strip) {
      const std::size_t n = (std::min)(pack_strip, m.cols - k);
      if (given != nullptr) {
        block = given[k / code_block_cols];
      } else if (kept) {
        read_block(from.source->type, strip_of(from, k), n, block);
      } else {
        from.source->strip_f32(from.row, k, n, wide);
        encode_block(f, wide, n, peak, block);
      }
      put_codes(f, block, n, lane, to);
      to += code_block_bytes(f, n);
    }
  }
}

inline void pack_panel(const kernel_table& kernels, cpu_matrix& m, std::span<const matrix_source> sources, std::size_t p, std::byte* scratch) {
  if (m.layout.codes) pack_codes(m, sources, p, scratch);
  else if (m.layout.type == dtype::f16) pack_floats<f16>(kernels, m, sources, p, scratch);
  else if (m.layout.type == dtype::bf16) pack_floats<bf16>(kernels, m, sources, p, scratch);
  else pack_floats<float>(kernels, m, sources, p, scratch);
}

/// Output rows of all panels, padding included.
/// Errors   out_of_memory: the matrix is larger than memory can be.
inline std::size_t n_cells(const cpu_matrix& m, std::string_view where) {
  const std::size_t cells = checked_product(m.n_panels(), panel_rows, where);
  static_cast<void>(checked_product(checked_product(cells, m.cols, where), 2 * sizeof(float), where));  // so that panel_bytes() is exact
  return cells;
}

/// Checks sources that are kept in one way and makes room; the panels are filled by the backend, in parallel.
inline cpu_matrix empty_matrix(std::string_view where, std::span<const matrix_source> sources, const weight_layout& layout, bool gate_up) {
  cpu_matrix m;
  m.gate_up = gate_up;
  m.cols = sources.empty() ? 0 : sources.front().cols;
  m.layout = layout;
  for (const matrix_source& s : sources) {
    if (s.cols != m.cols)
      fail(errc::invalid_argument, where, {"expected ", m.cols, " columns, got ", s.cols, " in ", s.name});
    if (!is_weight_type(s.type)) fail(errc::unsupported, where, {"expected a float or block type, got ", dtype_name(s.type), " in ", s.name});
    if (s.cols % block_elements(s.type) != 0)
      fail(errc::invalid_argument, where, {"expected whole blocks of ", block_elements(s.type), " columns, got ", s.cols, " in ", s.name});
    if (s.bias.size != 0 && (s.bias.size != s.rows || block_elements(s.bias.type) != 1 || !is_weight_type(s.bias.type)))
      fail(errc::invalid_argument, where, {"expected a bias of ", s.rows, " floats, got ", s.bias.size, " of ", dtype_name(s.bias.type), " in ", s.name});
    m.rows += s.rows;
  }
  if (gate_up) {
    if (sources[0].rows != sources[1].rows)
      fail(errc::invalid_argument, where, {"expected gate and up of one shape, got ", sources[0].rows, " and ", sources[1].rows, " rows"});
    m.rows /= 2;
  }
  const std::size_t cells = n_cells(m, where);
  m.weights = kept_bytes(aligned_buffer(m.n_panels() * m.panel_bytes()));
  if (std::any_of(sources.begin(), sources.end(), [](const matrix_source& s) { return s.bias.size != 0; })) {
    m.bias = kept_bytes(aligned_buffer(cells * sizeof(float)));
    float* const bias = reinterpret_cast<float*>(m.bias.own());
    for (std::size_t i = 0; i < cells; ++i) {
      const source_row from = panel_row(m, sources, i / panel_rows, i % panel_rows);
      bias[i] = from.source == nullptr ? 0.0f : from.source->bias_f32(from.row);
    }
  }
  return m;
}

/// Row r of a matrix in f32.
inline void unpack_row(const cpu_matrix& m, std::size_t r, float* out) noexcept {
  if (r >= m.own_rows()) return unpack_row(*m.below, r - m.own_rows(), out);
  const std::byte* const panel = m.weights.data() + r / panel_rows * m.panel_bytes();
  if (m.layout.codes) {
    const std::byte* block = panel;
    code_block codes{};
    for (std::size_t k = 0; k < m.cols; k += code_block_cols) {
      const std::size_t n = (std::min)(code_block_cols, m.cols - k);
      get_codes(*m.layout.codes, block, n, r % panel_rows, codes);
      decode_block(*m.layout.codes, codes, n, out + k);
      block += code_block_bytes(*m.layout.codes, n);
    }
    return;
  }
  const auto copy = [&](const auto* cells) {
    for (std::size_t k = 0; k < m.cols; ++k) out[k] = static_cast<float>(cells[k * panel_rows + r % panel_rows]);
  };
  if (m.layout.type == dtype::f16) copy(reinterpret_cast<const f16*>(panel));
  else if (m.layout.type == dtype::bf16) copy(reinterpret_cast<const bf16*>(panel));
  else copy(reinterpret_cast<const float*>(panel));
}

}  // namespace detail
}  // namespace quena::inline QUENA_ABI
