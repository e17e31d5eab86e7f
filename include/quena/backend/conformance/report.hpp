// SPDX-License-Identifier: MIT
// What the conformance suite says about a backend.
#pragma once

#include <bit>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../../core/tensor.hpp"

namespace quena::inline QUENA_ABI {

/// One thing a backend does wrong.
struct conformance_failure {
  std::string operation;  ///< of the concept: "matmul"
  std::string which;      ///< the case: "17 x 33 of q8_0 as f16, bias, 5 rows"
  std::string expected, got;
};

struct conformance_report {
  std::size_t n_checks = 0;
  std::vector<conformance_failure> failures;

  [[nodiscard]] bool passed() const noexcept { return failures.empty() && n_checks != 0; }
};

struct conformance_options {
  std::uint64_t seed = 1;  ///< of the random inputs
  /// Relative error that the backend allows itself when it narrows the inputs of its products: 0 for f32, 0x1p-11 for f16,
  /// 0x1p-8 for bf16. Widens the tolerances against the reference, not the demand for equal bits.
  double activation_rounding = 0;
};

namespace detail {

/// Unit roundoff of f32: the relative error of one rounding.
inline constexpr double f32_roundoff = 0x1p-24;

/// Random numbers that are the same everywhere.   Source   Steele et al. 2014, "Fast splittable pseudorandom number generators".
class seeded {
 public:
  explicit constexpr seeded(std::uint64_t seed) noexcept : state_(seed) {}
  constexpr std::uint64_t next() noexcept {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  constexpr std::size_t below(std::size_t n) noexcept { return static_cast<std::size_t>(next() % n); }
  /// In [-1, 1), with 24 bits.
  constexpr float uniform() noexcept { return static_cast<float>(static_cast<std::int32_t>(next() >> 40) - (1 << 23)) * 0x1p-23f; }
  /// A multiple of 1 / scale in [-n / scale, n / scale]: so few bits that products and sums of two are exact in f32.
  constexpr float coarse(int n, float scale) noexcept {
    return static_cast<float>(static_cast<int>(below(static_cast<std::size_t>(2 * n + 1))) - n) / scale;
  }

 private:
  std::uint64_t state_;
};

[[nodiscard]] inline std::string number_text(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value, std::chars_format::general, 9).ptr;
  return std::string(text, end);
}

/// Collects the results of checks.
class conformance_log {
 public:
  void expect(bool good, std::string_view operation, std::string_view which, std::string_view expected, std::string_view got) {
    ++report_.n_checks;
    if (!good) report_.failures.push_back({std::string(operation), std::string(which), std::string(expected), std::string(got)});
  }

  /// Runs checks that must not throw.
  template <class F>
  void guarded(std::string_view operation, std::string_view which, F&& checks) {
    try {
      std::forward<F>(checks)();
    } catch (const std::exception& e) {
      expect(false, operation, which, "no exception", e.what());
    } catch (...) {
      expect(false, operation, which, "no exception", "one of an unknown type");
    }
  }

  /// |got - want| <= tolerance, element by element; NaN is never close.
  void close(std::string_view operation, std::string_view which, const tensor<float, 2>& got, const tensor<float, 2>& want, const tensor<double, 2>& tolerance) {
    compare(operation, which, got, want, [&](std::size_t i, std::size_t j) { return std::abs(double{got(i, j)} - double{want(i, j)}) <= tolerance(i, j); },
            [&](std::size_t i, std::size_t j) { return " +- " + number_text(tolerance(i, j)); });
  }
  /// The same bits.
  void same(std::string_view operation, std::string_view which, const tensor<float, 2>& got, const tensor<float, 2>& want) {
    compare(operation, which, got, want, [&](std::size_t i, std::size_t j) { return std::bit_cast<std::uint32_t>(got(i, j)) == std::bit_cast<std::uint32_t>(want(i, j)); },
            [](std::size_t, std::size_t) { return std::string(" exactly"); });
  }

  [[nodiscard]] conformance_report take() { return std::move(report_); }

 private:
  template <class Good, class Text>
  void compare(std::string_view operation, std::string_view which, const tensor<float, 2>& got, const tensor<float, 2>& want, Good good, Text precision) {
    if (got.shape() != want.shape()) return expect(false, operation, which, shape_text(want.shape()), shape_text(got.shape()));
    std::size_t n_wrong = 0, row = 0, column = 0;
    for (std::size_t i = want.extent(0); i-- > 0;)
      for (std::size_t j = want.extent(1); j-- > 0;)
        if (!good(i, j)) ++n_wrong, row = i, column = j;
    if (n_wrong == 0) return expect(true, operation, which, {}, {});
    expect(false, operation, which, number_text(want(row, column)) + precision(row, column) + " at " + shape_text<2>({row, column}),
           number_text(got(row, column)) + " (" + std::to_string(n_wrong) + " of " + std::to_string(want.size()) + " elements are wrong)");
  }

  conformance_report report_;
};

}  // namespace detail

}  // namespace quena::inline QUENA_ABI
