// SPDX-License-Identifier: MIT
// GPTQ: rounding a matrix column by column, each column's error spread over the columns that are still free so that the output changes
// least. For W x with inputs x of second moment H = sum x x^T the change is tr(dW H dW^T).
//
// Source   Frantar et al. 2022, arXiv:2210.17323: with H^-1 = U^T U (U upper), quantizing column j with error e_j = (w_j - q_j) / U_jj
//          changes the later columns by -e_j U_j,k. Columns go by falling H_jj (its "act-order"), groups keep their places.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include <Eigen/Cholesky>
#include <Eigen/Core>

#include "../core/error.hpp"
#include "rounding.hpp"

namespace quena::inline QUENA_ABI {

using float_matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// What GPTQ needs of the inputs of one matrix; the same for all rows.
class gptq_inputs {
 public:
  /// H: [cols, cols], both halves. Columns that no input used count for nothing.
  /// Numerics in double; `damping` times the mean of the diagonal is added to it.
  /// Errors   non_finite: H is not finite, or has no factors also then.
  explicit gptq_inputs(const float_matrix& H, double damping = 0.01) : order_(static_cast<std::size_t>(H.rows())) {
    const Eigen::Index n = H.rows();
    if (!H.allFinite()) fail(errc::non_finite, "gptq", "expected finite inputs, got NaN or infinity");
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    const auto at = [](std::size_t i) { return static_cast<Eigen::Index>(i); };
    std::stable_sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) { return H(at(a), at(a)) > H(at(b), at(b)); });
    // H = R R^T with R upper is the Cholesky decomposition of H read backwards; U = R^-1.
    Eigen::MatrixXd reversed(n, n);
    const double extra = damping * H.diagonal().cast<double>().mean();
    for (Eigen::Index i = 0; i < n; ++i) {
      for (Eigen::Index j = 0; j < n; ++j) reversed(i, j) = static_cast<double>(H(at(order_[static_cast<std::size_t>(n - 1 - i)]), at(order_[static_cast<std::size_t>(n - 1 - j)])));
      reversed(i, i) += reversed(i, i) > 0 ? extra : 1;
    }
    const Eigen::LLT<Eigen::Ref<Eigen::MatrixXd>> factors(reversed);
    if (factors.info() != Eigen::ComputationInfo{})  // not Eigen::Success: X11 has a macro of that name
      fail(errc::non_finite, "gptq", "expected inputs whose second moments are positive, got others");
    Eigen::MatrixXd inverse = Eigen::MatrixXd::Identity(n, n);
    factors.matrixL().solveInPlace(inverse);
    U_ = inverse.reverse().cast<float>();
  }

  [[nodiscard]] std::span<const std::size_t> order() const noexcept { return order_; }
  [[nodiscard]] const float_matrix& U() const noexcept { return U_; }

 private:
  std::vector<std::size_t> order_;
  float_matrix U_;  // upper, in that order
};

/// Rounds some rows.   w: [n, cols] in the matrix's own order; fits: [n][groups]; codes: [n][cols]
/// Cost     n * cols^2 / 2 multiply-adds; blocks of columns, so that U is read once for all rows.
inline void gptq_round(const code_format& f, const gptq_inputs& inputs, const float_matrix& w, std::span<const group_fit> fits, std::span<std::uint8_t> codes) {
  constexpr Eigen::Index block = 64;
  const Eigen::Index n = w.rows(), cols = w.cols();
  const std::size_t group = group_columns(f, static_cast<std::size_t>(cols)), n_groups = fits.size() / static_cast<std::size_t>(n);
  const std::span<const std::size_t> order = inputs.order();
  const float_matrix& U = inputs.U();
  float_matrix rest(n, cols), errors(n, block);
  for (Eigen::Index j = 0; j < cols; ++j) rest.col(j) = w.col(static_cast<Eigen::Index>(order[static_cast<std::size_t>(j)]));
  for (Eigen::Index first = 0; first < cols; first += block) {
    const Eigen::Index width = (std::min)(block, cols - first);
    for (Eigen::Index r = 0; r < n; ++r)
      for (Eigen::Index j = 0; j < width; ++j) {
        const std::size_t col = order[static_cast<std::size_t>(first + j)];
        const group_fit& fit = fits[static_cast<std::size_t>(r) * n_groups + col / group];
        const float value = rest(r, first + j);
        const std::uint8_t code = detail::code_of(f, fit, detail::inverse_or_zero(fit.scale), value);
        codes[static_cast<std::size_t>(r) * static_cast<std::size_t>(cols) + col] = code;
        const float e = (value - fit.scale * static_cast<float>(code - fit.zero)) / U(first + j, first + j);
        errors(r, j) = e;
        for (Eigen::Index k = j + 1; k < width; ++k) rest(r, first + k) -= e * U(first + j, first + k);
      }
    if (const Eigen::Index later = cols - first - width; later > 0)
      rest.rightCols(later).noalias() -= errors.leftCols(width) * U.block(first, first + width, width, later);
  }
}

}  // namespace quena::inline QUENA_ABI
