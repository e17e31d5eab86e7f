// SPDX-License-Identifier: MIT
// tensor_view: a pointer with a shape and strides. tensor: one that owns its memory.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <type_traits>

#include "checked.hpp"
#include "error.hpp"
#include "memory.hpp"

namespace quena::inline QUENA_ABI {

/// An extent known at run time only, in the list of a tensor_view's static extents.
inline constexpr std::size_t dynamic_extent = std::dynamic_extent;

namespace detail {

template <std::size_t Rank>
std::string shape_text(const std::array<std::size_t, Rank>& shape) {
  std::string s = "[";
  for (std::size_t d = 0; d < Rank; ++d) s += (d ? ", " : "") + std::to_string(shape[d]);
  return s + "]";
}

template <std::size_t Rank>
constexpr std::array<std::ptrdiff_t, Rank> row_major(const std::array<std::size_t, Rank>& shape) noexcept {
  std::array<std::ptrdiff_t, Rank> strides{};
  std::ptrdiff_t step = 1;
  for (std::size_t d = Rank; d-- > 0;) {
    strides[d] = step;
    step *= static_cast<std::ptrdiff_t>(shape[d]);
  }
  return strides;
}

}  // namespace detail

/// A view of `Rank` dimensions: element (i, j, …) is data[i*stride(0) + j*stride(1) + …]. Strides count elements and may be
/// anything (a slice, a transpose, padded rows). Owns nothing; as cheap to copy as its few numbers.
///   tensor_view<float, 2>                  every extent at run time
///   tensor_view<float, 2, dynamic_extent, 64>   the second extent is 64, checked once, a constant afterwards
/// Errors   construction, at(), slice(), reshape(), span(): quena::error with the shapes. operator() and operator[] don't check.
template <class T, std::size_t Rank, std::size_t... Static>
class tensor_view {
  static_assert(Rank > 0);
  static_assert(sizeof...(Static) == 0 || sizeof...(Static) == Rank, "give all extents or none");

 public:
  using value_type = std::remove_cv_t<T>;
  using shape_type = std::array<std::size_t, Rank>;
  using strides_type = std::array<std::ptrdiff_t, Rank>;

  constexpr tensor_view() noexcept
    requires(sizeof...(Static) == 0)
  = default;
  constexpr tensor_view(T* data, const shape_type& shape) : tensor_view(data, shape, detail::row_major(shape)) {}
  constexpr tensor_view(T* data, const shape_type& shape, const strides_type& strides) : data_(data), shape_(shape), strides_(strides) {
    check_static();
  }
  constexpr tensor_view(std::span<T> values)  // NOLINT(google-explicit-constructor): a span is a rank-1 view
    requires(Rank == 1)
      : tensor_view(values.data(), {values.size()}) {}
  /// From a view of the same rank: T may gain const, extents may become static (checked) or dynamic.
  template <class U, std::size_t... Other>
    requires std::convertible_to<U (*)[], T (*)[]>
  constexpr tensor_view(const tensor_view<U, Rank, Other...>& other)  // NOLINT(google-explicit-constructor)
      : tensor_view(other.data(), other.shape(), other.strides()) {}

  [[nodiscard]] constexpr T* data() const noexcept { return data_; }
  [[nodiscard]] constexpr const shape_type& shape() const noexcept { return shape_; }
  [[nodiscard]] constexpr const strides_type& strides() const noexcept { return strides_; }
  [[nodiscard]] constexpr std::size_t extent(std::size_t d) const noexcept {
    if constexpr (sizeof...(Static) != 0)
      if (constexpr shape_type fixed{Static...}; fixed[d] != dynamic_extent) return fixed[d];
    return shape_[d];
  }
  [[nodiscard]] constexpr std::ptrdiff_t stride(std::size_t d) const noexcept { return strides_[d]; }
  [[nodiscard]] constexpr std::size_t size() const noexcept {
    std::size_t n = 1;
    for (std::size_t d = 0; d < Rank; ++d) n *= extent(d);
    return n;
  }
  [[nodiscard]] constexpr bool empty() const noexcept { return size() == 0; }
  /// Whether the elements lie one after the other in row-major order, without holes.
  [[nodiscard]] constexpr bool is_contiguous() const noexcept {
    std::ptrdiff_t step = 1;
    for (std::size_t d = Rank; d-- > 0;) {
      if (shape_[d] != 1 && strides_[d] != step) return false;
      step *= static_cast<std::ptrdiff_t>(shape_[d]);
    }
    return true;
  }

  template <std::convertible_to<std::size_t>... Index>
    requires(sizeof...(Index) == Rank)
  [[nodiscard]] constexpr T& operator()(Index... index) const noexcept {
    return data_[offset({static_cast<std::size_t>(index)...})];
  }
  template <std::convertible_to<std::size_t>... Index>
    requires(sizeof...(Index) == Rank)
  [[nodiscard]] constexpr T& at(Index... index) const {
    const shape_type at{static_cast<std::size_t>(index)...};
    for (std::size_t d = 0; d < Rank; ++d)
      if (at[d] >= extent(d))
        fail(errc::invalid_argument, "tensor", {"expected an index inside ", detail::shape_text(shape_), ", got ", detail::shape_text(at)});
    return data_[offset(at)];
  }
  /// The i-th element (rank 1) or the i-th sub-view (rank - 1).
  [[nodiscard]] constexpr decltype(auto) operator[](std::size_t i) const noexcept {
    T* const start = data_ + static_cast<std::ptrdiff_t>(i) * strides_[0];
    if constexpr (Rank == 1) {
      return (*start);
    } else {
      std::array<std::size_t, Rank - 1> shape{};
      std::array<std::ptrdiff_t, Rank - 1> strides{};
      for (std::size_t d = 1; d < Rank; ++d) shape[d - 1] = shape_[d], strides[d - 1] = strides_[d];
      return tensor_view<T, Rank - 1>(start, shape, strides);
    }
  }

  /// Elements [begin, begin + count) of dimension d; the rest as it is.
  [[nodiscard]] constexpr tensor_view<T, Rank> slice(std::size_t d, std::size_t begin, std::size_t count) const {
    if (d >= Rank || begin > extent(d) || count > extent(d) - begin)
      fail(errc::invalid_argument, "tensor", {"expected a slice inside ", detail::shape_text(shape_), ", got [", begin, ", +", count, ") of dimension ", d});
    shape_type shape = shape_;
    shape[d] = count;
    return {data_ + static_cast<std::ptrdiff_t>(begin) * strides_[d], shape, strides_};
  }
  [[nodiscard]] constexpr tensor_view<T, Rank> transposed() const
    requires(Rank == 2)
  {
    return {data_, {shape_[1], shape_[0]}, {strides_[1], strides_[0]}};
  }
  template <std::size_t R>
  [[nodiscard]] constexpr tensor_view<T, R> reshape(const std::array<std::size_t, R>& shape) const {
    std::size_t n = 1;
    for (const std::size_t e : shape) n *= e;
    if (!is_contiguous() || n != size())
      fail(errc::invalid_argument, "tensor", {"expected a contiguous view of ", n, " elements, got ", detail::shape_text(shape_), (is_contiguous() ? "" : " with strides")});
    return {data_, shape};
  }
  /// All elements, row-major.
  [[nodiscard]] constexpr std::span<T> span() const {
    if (!is_contiguous()) fail(errc::invalid_argument, "tensor", {"expected a contiguous view, got strides in ", detail::shape_text(shape_)});
    return {data_, size()};
  }

 private:
  [[nodiscard]] constexpr std::ptrdiff_t offset(const shape_type& index) const noexcept {
    std::ptrdiff_t o = 0;
    for (std::size_t d = 0; d < Rank; ++d) o += static_cast<std::ptrdiff_t>(index[d]) * strides_[d];
    return o;
  }
  constexpr void check_static() const {
    if constexpr (sizeof...(Static) != 0) {
      constexpr shape_type fixed{Static...};
      for (std::size_t d = 0; d < Rank; ++d)
        if (fixed[d] != dynamic_extent && fixed[d] != shape_[d])
          fail(errc::invalid_argument, "tensor", {"expected extent ", fixed[d], " in dimension ", d, ", got ", detail::shape_text(shape_)});
    }
  }

  T* data_ = nullptr;
  shape_type shape_{};
  strides_type strides_{};
};

/// Owns a row-major array of trivially copyable elements, aligned to 64 bytes, zero at the start. Moves; copies only by clone().
/// Errors   out_of_memory, also when the product of the extents does not fit.
template <class T, std::size_t Rank>
class tensor {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  using shape_type = std::array<std::size_t, Rank>;

  tensor() = default;
  explicit tensor(const shape_type& shape) : shape_(shape) {
    std::size_t n = sizeof(T);
    for (const std::size_t e : shape) n = checked_product(n, e, "tensor");
    memory_ = aligned_buffer(n);
    std::uninitialized_fill_n(data(), n / sizeof(T), T{});
  }

  [[nodiscard]] T* data() noexcept { return reinterpret_cast<T*>(memory_.data()); }
  [[nodiscard]] const T* data() const noexcept { return reinterpret_cast<const T*>(memory_.data()); }
  [[nodiscard]] const shape_type& shape() const noexcept { return shape_; }
  [[nodiscard]] std::size_t extent(std::size_t d) const noexcept { return shape_[d]; }
  [[nodiscard]] std::size_t size() const noexcept { return memory_.size() / sizeof(T); }
  [[nodiscard]] tensor_view<T, Rank> view() noexcept { return {data(), shape_}; }
  [[nodiscard]] tensor_view<const T, Rank> view() const noexcept { return {data(), shape_}; }
  [[nodiscard]] std::span<T> span() noexcept { return {data(), size()}; }
  [[nodiscard]] std::span<const T> span() const noexcept { return {data(), size()}; }
  operator tensor_view<T, Rank>() noexcept { return view(); }                    // NOLINT(google-explicit-constructor)
  operator tensor_view<const T, Rank>() const noexcept { return view(); }        // NOLINT(google-explicit-constructor)
  template <std::convertible_to<std::size_t>... Index>
  [[nodiscard]] T& operator()(Index... index) noexcept { return view()(index...); }
  template <std::convertible_to<std::size_t>... Index>
  [[nodiscard]] const T& operator()(Index... index) const noexcept { return view()(index...); }
  [[nodiscard]] tensor clone() const {
    tensor copy(shape_);
    std::uninitialized_copy_n(data(), size(), copy.data());
    return copy;
  }

 private:
  shape_type shape_{};
  aligned_buffer memory_;
};

}  // namespace quena::inline QUENA_ABI
