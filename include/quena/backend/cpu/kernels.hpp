// SPDX-License-Identifier: MIT
// The CPU backend's kernels one by one, over spans, for programs that want just that: on the caller's thread, no model, no
// stream. examples/kernels.cpp shows them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "../../core/float16.hpp"
#include "../../core/tensor.hpp"
#include "../support.hpp"
#include "cpuid.hpp"
#include "dispatch.hpp"
#include "packing.hpp"

namespace quena::inline QUENA_ABI {

/// Kernels for the best instruction set of this machine. Immutable: any number of threads may use one object.
/// Errors   invalid_argument: lengths or shapes that don't match. Inputs and outputs may be the same memory, not overlap otherwise.
class cpu_kernels {
 public:
  explicit cpu_kernels(std::optional<isa> cap = {}) : table_(&detail::kernels_for(best_isa(cap))) {}
  [[nodiscard]] isa level() const noexcept { return table_->level; }

  /// Packs weights [rows, cols] for matmul(), rounded to `f` (automatic: f32).
  [[nodiscard]] cpu_matrix pack(tensor_view<const float, 2> weights, format f = format::automatic) const {
    if (weights.stride(1) != 1 && weights.extent(1) > 1) fail(errc::invalid_argument, "pack", {"expected rows of neighbouring floats, got a column stride of ", weights.stride(1)});
    const std::size_t rows = weights.extent(0), cols = weights.extent(1);
    matrix_source source{"weights", dtype::f32, rows, cols, nullptr, 0, {}};
    cpu_matrix m = detail::empty_matrix("pack", {&source, 1}, detail::layout_of(source, f), false);
    aligned_buffer scratch(detail::pack_scratch);
    std::vector<float> panel(detail::panel_rows * cols);
    for (std::size_t p = 0; p < m.n_panels(); ++p) {
      const std::size_t first = p * detail::panel_rows, n = (std::min)(detail::panel_rows, rows - first);
      for (std::size_t r = 0; r < n; ++r) std::copy_n(weights.data() + static_cast<std::ptrdiff_t>(first + r) * weights.stride(0), cols, panel.data() + r * cols);
      source.rows = n, source.data = reinterpret_cast<const std::byte*>(panel.data());
      cpu_matrix one = detail::empty_matrix("pack", {&source, 1}, detail::layout_of(source, f), false);
      detail::pack_panel(*table_, one, {&source, 1}, 0, scratch.data());
      std::copy_n(one.weights.data(), one.weights.size(), m.weights.own() + p * one.weights.size());
    }
    return m;
  }
  /// y[i, r] = sum_k w[r, k] * x[i, k].  x: [n, cols], y: [n, rows]; one row or many give the same bits. Allocates for integer weights.
  void matmul(const cpu_matrix& w, tensor_view<const float, 2> x, tensor_view<float, 2> y) const;

  /// y[i] = gain[i] * x[i] / sqrt(mean(x^2) + eps)
  void rmsnorm(std::span<const float> x, std::span<const float> gain, float eps, std::span<float> y) const {
    same("rmsnorm", x.size(), gain.size()), same("rmsnorm", x.size(), y.size());
    if (!x.empty()) table_->rmsnorm(x.data(), gain.data(), eps, x.size(), y.data());
  }
  /// x = exp(x - max) / sum. Numerics: see exp.
  void softmax(std::span<float> x) const noexcept { table_->softmax(x.data(), x.size()); }
  /// Error at most 2 ulp.
  void exp(std::span<const float> x, std::span<float> y) const {
    same("exp", x.size(), y.size());
    table_->exp(x.data(), y.data(), x.size());
  }
  /// y[i] = up[i] * gate[i] / (1 + exp(-gate[i]))
  void swiglu(std::span<const float> gate, std::span<const float> up, std::span<float> y) const {
    same("swiglu", gate.size(), up.size()), same("swiglu", gate.size(), y.size());
    table_->swiglu(gate.data(), up.data(), y.data(), gate.size());
  }
  /// Rotates the pairs (t, t + n/2) of one head by the angles whose cosines and sines are given, n/2 of each.
  void rotate(std::span<float> head, std::span<const float> cos, std::span<const float> sin) const {
    same("rotate", cos.size(), sin.size()), same("rotate", head.size(), 2 * cos.size());
    table_->rotate(head.data(), 1, head.size(), cos.data(), sin.data());
  }
  /// To nearest even; back exactly.
  void convert(std::span<const float> x, std::span<f16> y) const { convert_with(table_->narrow.f16, x, y); }
  void convert(std::span<const float> x, std::span<bf16> y) const { convert_with(table_->narrow.bf16, x, y); }
  void convert(std::span<const f16> x, std::span<float> y) const { convert_with(table_->widen.f16, x, y); }
  void convert(std::span<const bf16> x, std::span<float> y) const { convert_with(table_->widen.bf16, x, y); }

 private:
  static void same(std::string_view where, std::size_t a, std::size_t b) {
    if (a != b) fail(errc::invalid_argument, where, {"expected spans of one length, got ", a, " and ", b});
  }
  template <class Kernel, class From, class To>
  static void convert_with(Kernel kernel, std::span<const From> x, std::span<To> y) {
    same("convert", x.size(), y.size());
    kernel(x.data(), y.data(), x.size());
  }

  const detail::kernel_table* table_;
  std::size_t ahead_ = stream_ahead();
};

inline void cpu_kernels::matmul(const cpu_matrix& w, tensor_view<const float, 2> x, tensor_view<float, 2> y) const {
  const std::size_t n_rows = x.extent(0);
  check_product("matmul", w.rows, w.cols, x, y);
  if (w.gate_up) fail(errc::invalid_argument, "matmul", "expected one matrix, got a gate-and-up pair");
  const std::size_t step = w.layout.codes ? detail::code_rows : detail::few_rows_limit;
  aligned_buffer rounded(w.layout.codes ? (std::min)(step, n_rows) * detail::code_row_bytes(w.cols) : 0), scratch(w.layout.codes ? detail::code_scratch * sizeof(float) : 0);
  for (std::size_t i = 0; i < n_rows; i += step) {
    const auto at = static_cast<std::ptrdiff_t>(i);
    const detail::matmul_args args{w.weights.data(), nullptr, w.cols, w.rows, x.data() + at * x.stride(0), x.stride(0), (std::min)(step, n_rows - i), y.data() + at * y.stride(0), y.stride(0), detail::epilogue::store, ahead_};
    if (!w.layout.codes) {
      table_->matmul_few[w.layout.type](args, 0, w.n_panels());
      continue;
    }
    const detail::code_args codes = detail::rounded_args(args, *w.layout.codes, w.panel_bytes(), rounded.data());
    table_->quantize(codes, 0, args.n_rows);
    table_->matmul_codes(codes, 0, w.n_panels(), 0, args.n_rows, reinterpret_cast<float*>(scratch.data()));
  }
}

}  // namespace quena::inline QUENA_ABI
