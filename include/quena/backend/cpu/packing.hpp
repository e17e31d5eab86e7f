// SPDX-License-Identifier: MIT
// Weight matrices of the CPU backend: checkpoint rows, converted and packed into panels.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "../../core/float16.hpp"
#include "../../core/checked.hpp"
#include "../../core/memory.hpp"
#include "../backend.hpp"
#include "kernel_table.hpp"

namespace quena::inline QUENA_ABI {

/// A weight matrix as panels of 32 output rows, [ceil(rows / 32)][cols][32], the missing rows zero (kernel_table.hpp says why).
/// A gate-and-up pair has 16 gate rows and the same 16 up rows in each panel, so that SwiGLU happens where the sums are.
struct cpu_matrix {
  std::size_t rows = 0, cols = 0;  ///< of the product: for a gate-and-up pair those of one of the two
  dtype type = dtype::f32;         ///< f32, f16 or bf16
  bool gate_up = false;
  aligned_buffer weights;
  aligned_buffer bias;  ///< [n_panels * 32] of f32, or empty

  [[nodiscard]] std::size_t rows_per_panel() const noexcept { return gate_up ? detail::panel_rows / 2 : detail::panel_rows; }
  [[nodiscard]] std::size_t n_panels() const noexcept { return (rows + rows_per_panel() - 1) / rows_per_panel(); }
  [[nodiscard]] std::size_t n_bytes() const noexcept { return weights.size() + bias.size(); }
};

namespace detail {

/// Which type `format` means for these sources. automatic: theirs if they are of one dense type, f16 if one is block-quantised,
/// f32 for a mixture of dense types.
inline dtype stored_type(std::span<const matrix_source> sources, format f) noexcept {
  switch (f) {
    case format::f32: return dtype::f32;
    case format::f16: return dtype::f16;
    case format::bf16: return dtype::bf16;
    case format::automatic: break;
  }
  if (std::any_of(sources.begin(), sources.end(), [](const matrix_source& m) { return is_block_type(m.type); })) return dtype::f16;
  const bool same = std::all_of(sources.begin(), sources.end(), [&](const matrix_source& m) { return m.type == sources.front().type; });
  return same && !sources.empty() ? sources.front().type : dtype::f32;
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

/// Bytes of scratch that pack_panel needs: a strip of 256 columns of one row in f32 and of 32 rows in the stored type.
inline constexpr std::size_t pack_strip = 256;
inline constexpr std::size_t pack_scratch = pack_strip * sizeof(float) * (1 + panel_rows);

/// Fills panel p. A strip at a time, so that nothing but the strip is ever held twice.
template <class Cell>
void pack_panel(const kernel_table& kernels, cpu_matrix& m, std::span<const matrix_source> sources, std::size_t p, std::byte* scratch) {
  float* const wide = reinterpret_cast<float*>(scratch);
  Cell* const strip = reinterpret_cast<Cell*>(scratch + pack_strip * sizeof(float));
  Cell* to = reinterpret_cast<Cell*>(m.weights.data()) + p * m.cols * panel_rows;
  for (std::size_t k = 0; k < m.cols; k += pack_strip) {
    const std::size_t n = (std::min)(pack_strip, m.cols - k);
    for (std::size_t lane = 0; lane < panel_rows; ++lane) {
      Cell* const row = strip + lane * pack_strip;
      const source_row from = panel_row(m, sources, p, lane);
      if (from.source == nullptr) {
        std::fill_n(row, n, Cell{});
        continue;
      }
      const std::byte* data = from.source->row(from.row) + k / block_elements(from.source->type) * block_bytes(from.source->type);
      if (from.source->type == m.type) {
        std::memcpy(row, data, n * sizeof(Cell));  // bits are kept, NaN payloads too
      } else {
        dequantize_row(from.source->type, data, wide, n);
        kernels.narrow[m.type](wide, row, n);
      }
    }
    for (std::size_t j = 0; j < n; ++j, to += panel_rows)
      for (std::size_t lane = 0; lane < panel_rows; ++lane) to[lane] = strip[lane * pack_strip + j];
  }
}

/// The same for the matrix's type.
inline void pack_panel_of(const kernel_table& kernels, cpu_matrix& m, std::span<const matrix_source> sources, std::size_t p, std::byte* scratch) {
  if (m.type == dtype::f16) pack_panel<f16>(kernels, m, sources, p, scratch);
  else if (m.type == dtype::bf16) pack_panel<bf16>(kernels, m, sources, p, scratch);
  else pack_panel<float>(kernels, m, sources, p, scratch);
}

/// Checks sources and makes room; the panels are filled by the backend, in parallel.
inline cpu_matrix empty_matrix(std::string_view where, std::span<const matrix_source> sources, format f, bool gate_up) {
  cpu_matrix m;
  m.gate_up = gate_up;
  m.cols = sources.empty() ? 0 : sources.front().cols;
  m.type = stored_type(sources, f);
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
  const std::size_t cells = checked_product(m.n_panels(), panel_rows, where);
  m.weights = aligned_buffer(checked_product(checked_product(cells, m.cols, where), block_bytes(m.type), where));
  if (std::any_of(sources.begin(), sources.end(), [](const matrix_source& s) { return s.bias.size != 0; })) {
    m.bias = aligned_buffer(cells * sizeof(float));
    float* const bias = reinterpret_cast<float*>(m.bias.data());
    for (std::size_t i = 0; i < cells; ++i) {
      const source_row from = panel_row(m, sources, i / panel_rows, i % panel_rows);
      bias[i] = from.source == nullptr ? 0.0f : from.source->bias_f32(from.row);
    }
  }
  return m;
}

/// Row r of a matrix in f32.
inline void unpack_row(const cpu_matrix& m, std::size_t r, float* out) noexcept {
  const auto copy = [&](const auto* cells) {
    const auto* from = cells + r / panel_rows * m.cols * panel_rows + r % panel_rows;
    for (std::size_t k = 0; k < m.cols; ++k) out[k] = static_cast<float>(from[k * panel_rows]);
  };
  if (m.type == dtype::f16) copy(reinterpret_cast<const f16*>(m.weights.data()));
  else if (m.type == dtype::bf16) copy(reinterpret_cast<const bf16*>(m.weights.data()));
  else copy(reinterpret_cast<const float*>(m.weights.data()));
}

}  // namespace detail
}  // namespace quena::inline QUENA_ABI
