// SPDX-License-Identifier: MIT
#include <quena/quant/gptq.hpp>
#include <quena/quant/rounding.hpp>

#include <cmath>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include "../support.hpp"

using namespace quena;

namespace {

std::vector<float> gaussians(std::size_t n, std::uint32_t seed, float outlier = 0) {
  std::mt19937 random(seed);
  std::normal_distribution<float> values(0, 1);
  std::vector<float> w(n);
  for (std::size_t i = 0; i < n; ++i) w[i] = values(random) + (outlier != 0 && i % 50 == 7 ? outlier : 0.0f);
  return w;
}

/// What a row comes to, by way of the blocks that kernels read.
std::vector<float> rounded(const code_format& f, quant_method m, const std::vector<float>& w, const float* h = nullptr) {
  std::vector<group_fit> fits((w.size() + group_columns(f, w.size()) - 1) / group_columns(f, w.size()));
  fit_row(f, m, w, h, fits);
  std::vector<std::uint8_t> codes(w.size());
  for (std::size_t j = 0; j < w.size(); ++j) {
    const group_fit& fit = fits[j / group_columns(f, w.size())];
    codes[j] = detail::code_of(f, fit, detail::inverse_or_zero(fit.scale), w[j]);
  }
  std::vector<code_block> blocks((w.size() + code_block_cols - 1) / code_block_cols);
  make_blocks(f, codes, fits, blocks.data());
  std::vector<float> out(w.size());
  for (std::size_t b = 0; b < blocks.size(); ++b) decode_block(f, blocks[b], (std::min)(code_block_cols, w.size() - b * code_block_cols), out.data() + b * code_block_cols);
  return out;
}

double loss(const std::vector<float>& a, const std::vector<float>& b, double power, const float* h = nullptr) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (h == nullptr ? 1.0 : static_cast<double>(h[i])) * std::pow(std::fabs(static_cast<double>(a[i] - b[i])), power);
  return sum;
}

constexpr format all_formats[] = {format::int8, format::int8_g64, format::int8_g32, format::int8_row, format::int4, format::int4_g64, format::int4_g128, format::int4z, format::int4z_g64, format::int4z_g128};

}  // namespace

TEST_CASE("rounding: nearest is what packing does") {
  for (const format name : all_formats) {
    CAPTURE(format_name(name));
    const code_format f = *codes_of(name);
    for (const std::size_t cols : {32u, 100u, 256u, 600u}) {
      const std::vector<float> w = gaussians(cols, 3), got = rounded(f, quant_method::nearest, w);
      float peak = 0;
      for (const float x : w) peak = (std::max)(peak, std::fabs(x));
      for (std::size_t k = 0; k < cols; k += code_block_cols) {
        const std::size_t n = (std::min)(code_block_cols, cols - k);
        code_block b;
        encode_block(f, w.data() + k, n, peak, b);
        std::vector<float> want(n);
        decode_block(f, b, n, want.data());
        CHECK(std::vector<float>(got.begin() + static_cast<std::ptrdiff_t>(k), got.begin() + static_cast<std::ptrdiff_t>(k + n)) == want);
      }
    }
  }
}

TEST_CASE("rounding: each method is better than nearest at what it minimises") {
  std::vector<float> h = gaussians(512, 9);
  for (float& x : h) x = x * x + 0.01f;
  for (const format name : all_formats) {
    CAPTURE(format_name(name));
    const code_format f = *codes_of(name);
    for (const float outlier : {0.0f, 8.0f}) {
      const std::vector<float> w = gaussians(512, 4, outlier), nearest = rounded(f, quant_method::nearest, w);
      CHECK(loss(rounded(f, quant_method::search, w), w, 2) <= loss(nearest, w, 2));
      CHECK(loss(rounded(f, quant_method::imatrix, w, h.data()), w, 2, h.data()) <= loss(nearest, w, 2, h.data()));
      CHECK(loss(rounded(f, quant_method::hqq, w), w, 0.7) <= loss(nearest, w, 0.7));
      if (f.bits == 4) {
        CHECK(loss(rounded(f, quant_method::search, w), w, 2) < 0.99 * loss(nearest, w, 2));
        CHECK(loss(rounded(f, quant_method::imatrix, w, h.data()), w, 2, h.data()) < loss(rounded(f, quant_method::search, w), w, 2, h.data()));
      }
    }
  }
}

TEST_CASE("rounding: zeros, constants, tiny and huge weights stay finite") {
  for (const format name : all_formats)
    for (const quant_method m : {quant_method::nearest, quant_method::search, quant_method::hqq})
      for (const float x : {0.0f, 1.0f, -3.0f, 1e-30f, -1e-7f, 60000.0f}) {
        CAPTURE(format_name(name));
        CAPTURE(quant_method_name(m));
        CAPTURE(x);
        for (const float got : rounded(*codes_of(name), m, std::vector<float>(96, x))) CHECK(std::fabs(got - x) <= 0.04f * std::fabs(x) + 1e-6f);
      }
}

TEST_CASE("gptq: the output changes less than by rounding each column for itself") {
  constexpr Eigen::Index cols = 160, rows = 8, samples = 400;
  const std::vector<float> noise = gaussians(static_cast<std::size_t>(samples * 12), 1), mix = gaussians(static_cast<std::size_t>(12 * cols), 2), w_values = gaussians(static_cast<std::size_t>(rows * cols), 3);
  const float_matrix x = Eigen::Map<const float_matrix>(noise.data(), samples, 12) * Eigen::Map<const float_matrix>(mix.data(), 12, cols) + 0.3f * float_matrix::Random(samples, cols);  // correlated
  const float_matrix w = Eigen::Map<const float_matrix>(w_values.data(), rows, cols), H = x.transpose() * x;
  std::vector<float> h(static_cast<std::size_t>(cols));
  for (Eigen::Index j = 0; j < cols; ++j) h[static_cast<std::size_t>(j)] = H(j, j);
  const gptq_inputs inputs(H);
  for (const format name : {format::int4, format::int4z, format::int4_g64, format::int8_row}) {
    CAPTURE(format_name(name));
    const code_format f = *codes_of(name);
    const std::size_t group = group_columns(f, static_cast<std::size_t>(cols)), n_groups = (static_cast<std::size_t>(cols) + group - 1) / group;
    std::vector<group_fit> fits(static_cast<std::size_t>(rows) * n_groups);
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(rows * cols));
    for (Eigen::Index r = 0; r < rows; ++r)
      fit_row(f, quant_method::imatrix, {w.data() + r * cols, static_cast<std::size_t>(cols)}, h.data(), std::span(fits).subspan(static_cast<std::size_t>(r) * n_groups, n_groups));
    gptq_round(f, inputs, w, fits, codes);
    float_matrix solved(rows, cols), nearest(rows, cols);
    for (Eigen::Index r = 0; r < rows; ++r)
      for (Eigen::Index j = 0; j < cols; ++j) {
        const group_fit& fit = fits[static_cast<std::size_t>(r) * n_groups + static_cast<std::size_t>(j) / group];
        const auto value = [&](int code) { return fit.scale * static_cast<float>(code - fit.zero); };
        solved(r, j) = value(codes[static_cast<std::size_t>(r * cols + j)]);
        nearest(r, j) = value(detail::code_of(f, fit, detail::inverse_or_zero(fit.scale), w(r, j)));
      }
    CHECK((x * (solved - w).transpose()).squaredNorm() < 0.6f * (x * (nearest - w).transpose()).squaredNorm());
  }
  // The first column in order is rounded to its nearest code, whatever the others are.
  CHECK(inputs.order().size() == static_cast<std::size_t>(cols));
  for (std::size_t j = 1; j < inputs.order().size(); ++j) CHECK(h[inputs.order()[j - 1]] >= h[inputs.order()[j]]);
}

TEST_CASE("gptq: inputs that are never used, and such that are not numbers") {
  float_matrix H = float_matrix::Identity(8, 8);
  H(3, 3) = 0;
  const gptq_inputs inputs(H);
  CHECK(inputs.order().back() == 3);
  CHECK(inputs.U().allFinite());
  H(2, 2) = std::nanf("");
  CHECK(quena_test::code_of([&] { gptq_inputs bad(H); }) == errc::non_finite);
}
