// SPDX-License-Identifier: MIT
// Rotary position embedding: by which angle each pair of a head's elements turns per position, with all scalings for long contexts.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "../core/error.hpp"

namespace quena::inline QUENA_ABI {

/// How the frequencies are stretched for contexts beyond those of pretraining.
enum class rope_type : std::uint8_t {
  standard,  ///< "default": not at all
  linear,    ///< all divided by `factor`
  dynamic,   ///< theta grows with the context ("dynamic NTK")
  yarn,      ///< slow ones divided by `factor`, fast ones kept, a ramp between them; attention is sharpened
  llama3,    ///< the same idea with limits given as wavelengths
};

[[nodiscard]] constexpr std::string_view rope_type_name(rope_type t) noexcept {
  constexpr std::string_view names[] = {"default", "linear", "dynamic", "yarn", "llama3"};
  return names[static_cast<std::size_t>(t)];
}

[[nodiscard]] constexpr std::optional<rope_type> parse_rope_type(std::string_view name) noexcept {
  for (const rope_type t : {rope_type::standard, rope_type::linear, rope_type::dynamic, rope_type::yarn, rope_type::llama3})
    if (rope_type_name(t) == name) return t;
  return std::nullopt;
}

/// The rope fields of config.json, or of GGUF metadata. Each type reads only its own.
struct rope_config {
  rope_type type = rope_type::standard;
  double theta = 10000;
  double factor = 1;                                   ///< linear, dynamic, yarn, llama3
  std::uint64_t max_position_embeddings = 2048;        ///< dynamic: the context from which theta grows
  std::uint64_t original_max_position_embeddings = 0;  ///< yarn, llama3: the context of pretraining
  double low_freq_factor = 1, high_freq_factor = 4;    ///< llama3: wavelengths above original/low are divided, below original/high kept
  double beta_fast = 32, beta_slow = 1;                ///< yarn: rotations within the original context at the ends of the ramp
  bool truncate = true;                                ///< yarn: the ramp begins and ends at whole pairs
  std::optional<double> attention_factor;              ///< yarn: replaces the value computed from factor
  std::optional<double> mscale, mscale_all_dim;        ///< yarn
  std::vector<float> divisors;                         ///< [head_dim / 2] or empty: GGUF's rope_freqs.weight, on top of the above
};

namespace detail {

inline double yarn_mscale(double factor, double mscale) { return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0; }

}  // namespace detail

/// What cos and sin are multiplied by: 1 but for yarn.
[[nodiscard]] inline double rope_attention_factor(const rope_config& r) {
  if (r.type != rope_type::yarn) return 1;
  if (r.attention_factor) return *r.attention_factor;
  if (r.mscale.value_or(0) != 0 && r.mscale_all_dim.value_or(0) != 0)
    return detail::yarn_mscale(r.factor, *r.mscale) / detail::yarn_mscale(r.factor, *r.mscale_all_dim);
  return detail::yarn_mscale(r.factor, 1);
}

/// Radians per position of each rotary pair (i, i + head_dim / 2), after scaling.
///   default   f_i = theta^(-2i / head_dim)
///   linear    f_i / factor
///   dynamic   theta becomes theta * (factor * L / M - factor + 1)^(d / (d - 2)) with M = max_position_embeddings, L = max(context, M)
///   yarn      f_i / factor above the ramp, f_i below, and a blend on it; the ramp lies where pairs make beta_fast … beta_slow turns
///             within the original context
///   llama3    f_i / factor for wavelengths above original / low_freq_factor, f_i below original / high_freq_factor, and a blend
/// Input    context_length: positions that the cache is made for; 0 means max_position_embeddings. Only `dynamic` depends on it:
///          transformers takes L from the sequence as it grows, so that keys in the cache and new queries are turned by different
///          frequencies and results depend on how the prompt was cut. Here one L holds for a model's whole life: the same as
///          transformers up to M positions, and beyond it the same as for a prompt that fills the context in one piece.
/// Returns  [head_dim / 2], computed in double.
/// Errors   invalid_argument: odd or too small head_dim, divisors of another length; malformed: a frequency is not finite
/// Source   Su et al. 2021, arXiv:2104.09864; YaRN: Peng et al. 2023, arXiv:2309.00071; formulas and defaults as in Hugging Face's
///          modeling_rope_utils, Llama 3.1's apply_scaling.
[[nodiscard]] inline std::vector<double> inv_freq(const rope_config& r, std::size_t head_dim, std::uint64_t context_length = 0) {
  if (head_dim == 0 || head_dim % 2 != 0) fail(errc::invalid_argument, "rope", {"expected an even head_dim, got ", head_dim});
  const std::size_t n = head_dim / 2;
  if (!r.divisors.empty() && r.divisors.size() != n)
    fail(errc::invalid_argument, "rope", {"expected ", n, " divisors for head_dim ", head_dim, ", got ", r.divisors.size()});

  const auto dim = static_cast<double>(head_dim);
  double theta = r.theta;
  if (r.type == rope_type::dynamic && head_dim > 2) {
    const auto limit = static_cast<double>(r.max_position_embeddings);
    const double length = (std::max)(static_cast<double>(context_length), limit);
    theta *= std::pow(r.factor * length / limit - (r.factor - 1), dim / (dim - 2));
  }
  std::vector<double> f(n);
  for (std::size_t i = 0; i < n; ++i) f[i] = 1 / std::pow(theta, static_cast<double>(2 * i) / dim);

  if (r.type == rope_type::linear) {
    for (double& x : f) x /= r.factor;
  } else if (r.type == rope_type::llama3) {
    const auto original = static_cast<double>(r.original_max_position_embeddings);
    const double low = r.low_freq_factor, high = r.high_freq_factor;
    for (double& x : f) {
      const double turns = original * x / (2 * std::numbers::pi);  // within the original context = original / wavelength
      if (turns < low)
        x /= r.factor;
      else if (turns <= high && low < high) {  // low == high: a step, nothing to blend
        const double smooth = (turns - low) / (high - low);
        x = (1 - smooth) * x / r.factor + smooth * x;
      }
    }
  } else if (r.type == rope_type::yarn) {
    const auto original = static_cast<double>(r.original_max_position_embeddings);
    const auto pair_with_turns = [&](double turns) { return dim * std::log(original / (turns * 2 * std::numbers::pi)) / (2 * std::log(theta)); };
    double first = pair_with_turns(r.beta_fast), last = pair_with_turns(r.beta_slow);
    if (r.truncate) first = std::floor(first), last = std::ceil(last);
    first = (std::max)(first, 0.0);
    last = (std::min)(last, dim - 1);
    if (first == last) last += 0.001;  // a step
    for (std::size_t i = 0; i < n; ++i) {
      const double ramp = std::clamp((static_cast<double>(i) - first) / (last - first), 0.0, 1.0);
      f[i] = f[i] / r.factor * ramp + f[i] * (1 - ramp);
    }
  }
  for (std::size_t i = 0; i < r.divisors.size(); ++i) f[i] /= static_cast<double>(r.divisors[i]);
  for (const double x : f)
    if (!std::isfinite(x)) fail(errc::malformed, "rope", "expected finite frequencies, got one that is not: the scaling's values are out of range");
  return f;
}

/// The angles of a model, for whoever rotates.
class rope_table {
 public:
  rope_table() = default;
  /// context_length matters to `dynamic` only, see inv_freq().
  rope_table(const rope_config& r, std::size_t head_dim, std::uint64_t context_length = 0)
      : inv_freq_(quena::inv_freq(r, head_dim, context_length)), scale_(rope_attention_factor(r)) {}

  [[nodiscard]] const std::vector<double>& frequencies() const noexcept { return inv_freq_; }

  /// cos and sin of the angles at a position.  cos, sin: [head_dim / 2]
  /// Numerics angle, cos and sin in double, rounded to f32 once: good for any position.
  void angles(std::uint64_t position, std::span<float> cos, std::span<float> sin) const noexcept {
    for (std::size_t i = 0; i < inv_freq_.size(); ++i) {
      const double angle = static_cast<double>(position) * inv_freq_[i];
      cos[i] = static_cast<float>(std::cos(angle) * scale_);
      sin[i] = static_cast<float>(std::sin(angle) * scale_);
    }
  }

 private:
  std::vector<double> inv_freq_;
  double scale_ = 1;
};

}  // namespace quena::inline QUENA_ABI
