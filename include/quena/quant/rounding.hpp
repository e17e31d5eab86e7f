// SPDX-License-Identifier: MIT
// Which scale and zero point a group of weights gets: better choices than the range's ends, with and without data.
//
// A group's error is  E(scale, zero) = sum_j h_j (w_j - scale * (q_j - zero))^2,  q_j the nearest code, h_j how much an error in column j
// matters: the mean square of that input of the matrix where data is at hand (the diagonal of the Hessian of the output's error), else 1.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <string_view>

#include "codes.hpp"

namespace quena::inline QUENA_ABI {

enum class quant_method : std::uint8_t {
  nearest,  ///< the range's ends give the scale (encode_block)
  search,   ///< the scale of least error, all columns alike
  hqq,      ///< half-quadratic: the scale of least |error|^0.7, which cares less for outliers. No data
  imatrix,  ///< search, weighted by the mean squares of the inputs
  awq,      ///< imatrix, after scaling the input channels so that those that matter lose less
  gptq,     ///< columns one after the other, each one's error made good by those that follow
};

namespace detail {
inline constexpr std::string_view quant_method_names[] = {"nearest", "search", "hqq", "imatrix", "awq", "gptq"};
}

[[nodiscard]] constexpr std::string_view quant_method_name(quant_method m) noexcept { return detail::quant_method_names[static_cast<std::size_t>(m)]; }
[[nodiscard]] constexpr std::optional<quant_method> parse_quant_method(std::string_view name) noexcept {
  for (std::size_t i = 0; i < std::size(detail::quant_method_names); ++i)
    if (detail::quant_method_names[i] == name) return static_cast<quant_method>(i);
  return std::nullopt;
}
[[nodiscard]] constexpr bool needs_data(quant_method m) noexcept { return m >= quant_method::imatrix; }

/// A group's scale and zero point, in codes: w = scale * (code - zero).
struct group_fit {
  float scale = 0;
  std::uint8_t zero = 0;
};

/// Columns with one scale, in a row of so many.
[[nodiscard]] constexpr std::size_t group_columns(const code_format& f, std::size_t cols) noexcept { return f.group == code_block_cols ? cols : f.group; }

namespace detail {

/// The nearest code's value.
[[nodiscard]] inline std::uint8_t code_of(const code_format& f, const group_fit& fit, float inverse, float w) noexcept {
  return nearest_code(w * inverse, fit.zero, (1 << f.bits) - 1);
}

/// E, and what the best scale for the same codes would be.
struct fit_error {
  double error;
  float scale;
};
inline fit_error measure(const code_format& f, const group_fit& fit, std::span<const float> w, const float* h) noexcept {
  const float inverse = inverse_or_zero(fit.scale);
  double error = 0, wq = 0, qq = 0;
  for (std::size_t j = 0; j < w.size(); ++j) {
    const float q = static_cast<float>(code_of(f, fit, inverse, w[j]) - fit.zero), weight = h == nullptr ? 1.0f : h[j], off = w[j] - fit.scale * q;
    error += static_cast<double>(weight * off * off);
    wq += static_cast<double>(weight * w[j] * q), qq += static_cast<double>(weight * q * q);
  }
  return {error, qq > 0 ? static_cast<float>(wq / qq) : fit.scale};
}

/// As the format keeps it.
inline float stored_scale(float s) noexcept { return static_cast<float>(f16(s)); }

/// What encode_block() would choose.
inline group_fit nearest_fit(const code_format& f, std::span<const float> w) noexcept {
  float low = 0, high = 0;
  for (const float x : w) low = x < low ? x : low, high = x > high ? x : high;
  const int highest = (1 << f.bits) - 1;
  if (f.scales == scale_kind::scale_zero) {
    const float scale = stored_scale((high - low) / static_cast<float>(highest));
    return {scale, nearest_code(-low * inverse_or_zero(scale), 0, highest)};
  }
  const float largest = high > -low ? high : -low;
  return {stored_scale(f.bits == 8 ? largest / 127 : (high > -low ? high : low) / -static_cast<float>(f.offset)), f.offset};
}

inline group_fit search_fit(const code_format& f, std::span<const float> w, const float* h) noexcept {
  group_fit best = nearest_fit(f, w);
  double least = measure(f, best, w, h).error;
  const auto consider = [&](group_fit fit) {
    for (int round = 0; round < 2; ++round) {  // as it is, and with the best scale for its codes
      fit.scale = stored_scale(fit.scale);
      const fit_error e = measure(f, fit, w, h);
      if (e.error < least) least = e.error, best = fit;
      fit.scale = e.scale;
    }
  };
  const group_fit start = best;
  constexpr int steps = 12;
  for (int i = -3; i <= steps; ++i) {
    const float shrink = 1 - 0.03f * static_cast<float>(i);
    if (f.scales == scale_kind::scale_zero) {
      for (int z = -1; z <= 1; ++z)
        if (start.zero + z >= 0 && start.zero + z < 1 << f.bits) consider({start.scale * shrink, static_cast<std::uint8_t>(start.zero + z)});
    } else {
      consider({start.scale * shrink, start.zero});
      if (f.bits < 8) consider({-start.scale * shrink, start.zero});  // the side with one code more
    }
  }
  return best;
}

/// min over scale (or zero) of sum |w - scale * (q - zero)|^p, p < 1, by half-quadratic splitting: an auxiliary error e takes the outliers
/// (soft threshold), the rest is least squares. The best iterate wins.
/// Source   Badri and Shaji 2023, Half-Quadratic Quantization; where a format has no zero point, the scale is solved for instead of it.
inline group_fit hqq_fit(const code_format& f, std::span<const float> w) noexcept {
  constexpr float p = 0.7f, growth = 1.01f;
  constexpr int rounds = 20;
  const auto error = [&](const group_fit& fit) {
    const float inverse = inverse_or_zero(fit.scale);
    double sum = 0;
    for (const float x : w) sum += std::pow(std::fabs(static_cast<double>(x - fit.scale * static_cast<float>(code_of(f, fit, inverse, x) - fit.zero))), static_cast<double>(p));
    return sum;
  };
  group_fit best = nearest_fit(f, w), fit = best;
  if (best.scale == 0) return best;
  double least = error(best);
  float beta = 10 / std::fabs(best.scale), zero = best.zero;
  for (int i = 0; i < rounds; ++i, beta *= growth) {
    const float inverse = inverse_or_zero(fit.scale);
    double wq = 0, qq = 0, z = 0;
    for (std::size_t j = 0; j < w.size(); ++j) {
      const float code = code_of(f, fit, inverse, w[j]), q = code - zero, r = w[j] - fit.scale * q;
      const float e = std::fabs(r) < 1e-30f ? 0.0f : std::copysign((std::max)(0.0f, std::fabs(r) - std::pow(std::fabs(r), p - 1) / beta), r);
      wq += static_cast<double>((w[j] - e) * q), qq += static_cast<double>(q * q), z += static_cast<double>(code - (w[j] - e) * inverse);
    }
    if (f.scales == scale_kind::scale_zero) {
      zero = std::clamp(static_cast<float>(z / static_cast<double>(w.size())), 0.0f, static_cast<float>((1 << f.bits) - 1));
      fit.zero = static_cast<std::uint8_t>(nearest(zero));
    } else if (qq > 0) {
      fit.scale = stored_scale(static_cast<float>(wq / qq));
    }
    const double now = error(fit);
    if (!(now < least)) break;
    least = now, best = fit;
  }
  return best;
}

}  // namespace detail

/// The fits of all groups of a row.   h: [cols] or null
inline void fit_row(const code_format& f, quant_method method, std::span<const float> w, const float* h, std::span<group_fit> fits) {
  const std::size_t group = group_columns(f, w.size());
  for (std::size_t g = 0; g < fits.size(); ++g) {
    const std::size_t first = g * group, n = (std::min)(group, w.size() - first);
    const std::span<const float> part = w.subspan(first, n);
    fits[g] = method == quant_method::nearest ? detail::nearest_fit(f, part)
              : method == quant_method::hqq   ? detail::hqq_fit(f, part)
                                              : detail::search_fit(f, part, h == nullptr ? nullptr : h + first);
  }
}

/// Codes that are given, with their fits, as blocks.   codes: [cols], blocks: [ceil(cols / 256)]
inline void make_blocks(const code_format& f, std::span<const std::uint8_t> codes, std::span<const group_fit> fits, code_block* blocks) noexcept {
  const std::size_t group = group_columns(f, codes.size());
  for (std::size_t k = 0; k < codes.size(); k += code_block_cols, ++blocks) {
    const std::size_t n = (std::min)(code_block_cols, codes.size() - k);
    *blocks = {};
    std::copy_n(codes.data() + k, n, blocks->codes);
    for (std::size_t i = 0; i < n; i += f.group) {
      const group_fit& fit = fits[(k + i) / group];
      blocks->scale[i / f.group] = f16(fit.scale);
      blocks->zero[i / f.group] = fit.zero;
    }
  }
}

}  // namespace quena::inline QUENA_ABI
