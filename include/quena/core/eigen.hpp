// SPDX-License-Identifier: MIT
// Tensors seen as Eigen matrices and the other way round, without a copy. Not in the umbrella header: Eigen is a second of
// compile time.
#pragma once

#include <cstddef>

#include <Eigen/Core>

#include "tensor.hpp"

namespace quena::inline QUENA_ABI {

template <class T>
using eigen_map = Eigen::Map<std::conditional_t<std::is_const_v<T>, const Eigen::Matrix<std::remove_const_t<T>, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>,
                                                Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>,
                             Eigen::Unaligned, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>>;

/// A rank-2 view as an Eigen::Map with the same strides.
template <class T, std::size_t... Static>
eigen_map<T> as_eigen(const tensor_view<T, 2, Static...>& view) {
  return {view.data(), static_cast<Eigen::Index>(view.extent(0)), static_cast<Eigen::Index>(view.extent(1)),
          Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>(view.stride(0), view.stride(1))};
}

/// An Eigen matrix, array, map or block with direct access as a rank-2 view.
template <class Derived>
tensor_view<typename Derived::Scalar, 2> as_view(Eigen::DenseBase<Derived>& m) {
  auto& d = m.derived();
  const std::ptrdiff_t inner = d.innerStride(), outer = d.outerStride();
  return {d.data(), {static_cast<std::size_t>(d.rows()), static_cast<std::size_t>(d.cols())},
          Derived::IsRowMajor ? std::array{outer, inner} : std::array{inner, outer}};
}

}  // namespace quena::inline QUENA_ABI
