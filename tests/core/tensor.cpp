// SPDX-License-Identifier: MIT
#include <quena/core/eigen.hpp>
#include <quena/core/tensor.hpp>

#include <cstdint>
#include <numeric>
#include <vector>

#include <doctest/doctest.h>

using quena::dynamic_extent;
using quena::tensor;
using quena::tensor_view;

namespace {
std::vector<int> counted(std::size_t n) {
  std::vector<int> v(n);
  std::iota(v.begin(), v.end(), 0);
  return v;
}
}  // namespace

TEST_CASE("tensor: owns zeroed memory aligned to 64 bytes, moves, clones") {
  for (const std::size_t n : {1u, 15u, 16u, 17u, 1000u, 700000u}) {
    tensor<float, 2> t({n, 3});
    CHECK(reinterpret_cast<std::uintptr_t>(t.data()) % 64 == 0);
    CHECK(t.size() == 3 * n);
    for (const float x : t.span()) REQUIRE(x == 0.0f);
    t(n - 1, 2) = 5;
    tensor<float, 2> copy = t.clone();
    const float* const where = t.data();
    tensor<float, 2> moved = std::move(t);
    CHECK(moved.data() == where);
    CHECK(copy.data() != where);
    CHECK(copy(n - 1, 2) == 5.0f);
  }
  tensor<float, 2> none({0, 7});
  CHECK(none.size() == 0);
  CHECK(none.view().empty());
}

TEST_CASE("tensor: sizes that do not fit are errors") {
  CHECK_THROWS_AS((tensor<float, 2>({std::size_t{1} << 40, std::size_t{1} << 40})), quena::error);
  CHECK_THROWS_AS((tensor<double, 3>({SIZE_MAX, 2, 2})), quena::error);
  CHECK_THROWS_AS((tensor<char, 1>({SIZE_MAX})), quena::error);
  CHECK_THROWS_AS((tensor<char, 1>({SIZE_MAX / 2})), quena::error);
}

TEST_CASE("tensor_view: indexing, sub-views, slices, transposes") {
  std::vector<int> v = counted(24);
  const tensor_view<int, 3> t(v.data(), {2, 3, 4});
  CHECK(t(1, 2, 3) == 23);
  CHECK(t[1][2][3] == 23);
  CHECK(&t[1](0, 1) == &v[13]);
  CHECK(t.is_contiguous());
  const auto middle = t.slice(1, 1, 2);
  CHECK(middle.shape() == std::array<std::size_t, 3>{2, 2, 4});
  CHECK(middle(1, 0, 0) == 16);
  CHECK_FALSE(middle.is_contiguous());
  CHECK(t.slice(0, 1, 1).is_contiguous());
  const auto across = t[1].transposed();
  CHECK(across(3, 2) == t(1, 2, 3));
  CHECK_FALSE(across.is_contiguous());
  CHECK(t.reshape<2>({6, 4})(5, 3) == 23);
  CHECK(t.span().size() == 24);
  const tensor_view<int, 2> flat(v.data(), {6, 4});
  CHECK(flat.slice(0, 2, 2).span()[0] == 8);
}

TEST_CASE("tensor_view: errors say shapes and leave the view usable") {
  std::vector<int> v = counted(12);
  const tensor_view<int, 2> t(v.data(), {3, 4});
  CHECK_THROWS_WITH_AS(static_cast<void>(t.at(3, 0)), "[tensor] expected an index inside [3, 4], got [3, 0]", quena::error);
  CHECK_THROWS_AS(static_cast<void>(t.slice(0, 2, 2)), quena::error);
  CHECK_THROWS_AS(static_cast<void>(t.slice(0, SIZE_MAX, 2)), quena::error);
  CHECK_THROWS_AS(static_cast<void>(t.slice(2, 0, 0)), quena::error);
  CHECK_THROWS_AS(static_cast<void>(t.transposed().span()), quena::error);
  CHECK_THROWS_AS(static_cast<void>(t.reshape<1>({11})), quena::error);
  CHECK_THROWS_AS(static_cast<void>(t.transposed().reshape<1>({12})), quena::error);
  CHECK(t.at(2, 3) == 11);
}

TEST_CASE("tensor_view: static extents are checked once and constant afterwards") {
  std::vector<int> v = counted(12);
  const tensor_view<int, 2> t(v.data(), {3, 4});
  const tensor_view<const int, 2, dynamic_extent, 4> fixed = t;
  CHECK(fixed.extent(0) == 3);
  CHECK(fixed.extent(1) == 4);
  CHECK(fixed(2, 3) == 11);
  using wrong = tensor_view<int, 2, dynamic_extent, 5>;
  CHECK_THROWS_WITH_AS(static_cast<void>(wrong(t)), "[tensor] expected extent 5 in dimension 1, got [3, 4]", quena::error);
  static_assert(std::is_convertible_v<tensor_view<int, 2>, tensor_view<const int, 2>>);
  static_assert(!std::is_convertible_v<tensor_view<const int, 2>, tensor_view<int, 2>>);
}

TEST_CASE("tensor_view: spans and Eigen share the memory") {
  std::vector<int> v = counted(6);
  const tensor_view<int, 1> line = std::span<int>(v);
  line[2] = 40;
  CHECK(v[2] == 40);

  tensor<float, 2> t({3, 5});
  for (std::size_t i = 0; i < 15; ++i) t.span()[i] = static_cast<float>(i);
  const auto m = quena::as_eigen(t.view().slice(1, 1, 3));
  CHECK(m.rows() == 3);
  CHECK(m.cols() == 3);
  CHECK(m(2, 0) == 11.0f);
  CHECK((m * m.transpose())(0, 1) == doctest::Approx(1 * 6 + 2 * 7 + 3 * 8));

  Eigen::MatrixXf columns(3, 4);  // column-major
  columns.setZero();
  const auto view = quena::as_view(columns);
  view(1, 3) = 7;
  CHECK(columns(1, 3) == 7.0f);
  Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> rows(3, 4);
  rows.setZero();
  quena::as_view(rows)(2, 1) = 9;
  CHECK(rows(2, 1) == 9.0f);
}

TEST_CASE("memory: small, empty and huge-page sized buffers") {
  for (const std::size_t n : {0u, 1u, 63u, 64u, (2u << 20) - 1, 2u << 20, (2u << 20) + 1}) {
    quena::aligned_buffer b(n);
    CHECK(b.size() == n);
    CHECK(reinterpret_cast<std::uintptr_t>(b.data()) % 64 == 0);
    if (n != 0) b.data()[0] = b.data()[n - 1] = std::byte{1};
    quena::aligned_buffer other(std::move(b));
    CHECK(other.size() == n);
    b = std::move(other);
    CHECK(b.size() == n);
  }
}
