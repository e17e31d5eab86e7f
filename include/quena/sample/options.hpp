// SPDX-License-Identifier: MIT
// What a caller may ask of the sampler, and the check of it.
#pragma once

#include "../core/error.hpp"

#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quena::inline QUENA_ABI {

/// How the next token is chosen. The exact meaning of every field is the definition at the top of sample/sampler.hpp; the
/// defaults draw from the model's own distribution.
struct sampling_options {
  float temperature = 1.0f;  ///< 0: greedy, exactly and whatever else is set below; else logits are divided by it
  std::int32_t top_k = 0;    ///< keep the k best tokens; 0: off
  float top_p = 1.0f;        ///< keep the fewest best tokens with this probability together; 1: off
  float min_p = 0.0f;        ///< keep tokens with at least this share of the best one's probability; 0: off
  float typical_p = 1.0f;    ///< locally typical sampling, arXiv:2202.00666; 1: off

  float repetition_penalty = 1.0f;  ///< over prompt and generated tokens, arXiv:1909.05858; 1: off
  float presence_penalty = 0.0f;    ///< over generated tokens only, once per distinct token; 0: off
  float frequency_penalty = 0.0f;   ///< over generated tokens only, per occurrence; 0: off
  std::int32_t penalty_last_n = 0;  ///< penalties look at this many of the last tokens; 0: at all of them

  std::vector<std::pair<std::int32_t, float>> logit_bias{};  ///< (id, amount) added to a logit; -infinity bans the token
  std::vector<std::int32_t> banned_tokens{};                 ///< never chosen
  std::vector<std::int32_t> end_tokens{};                    ///< tokens that end the text; any number, also ids no model has
  std::int32_t min_tokens = 0;                               ///< end tokens cannot be chosen before so many tokens were generated
  bool ignore_eos = false;                                   ///< end tokens are tokens like any other: never stop, never masked

  std::uint64_t seed = 0;        ///< same seed, sequence key and position: same draw
  std::int32_t n_logprobs = -1;  ///< -1: none computed; 0: the chosen token's; n: also the n best tokens'

  /// Throws quena::error naming the first parameter that is out of range, what was expected and what came.
  void validate(std::size_t vocab_size) const;

  /// True where the choice depends on the tokens before it.
  [[nodiscard]] bool has_penalties() const noexcept {
    return repetition_penalty != 1.0f || presence_penalty != 0.0f || frequency_penalty != 0.0f;
  }
};

namespace detail {

/// A float for a message: shortest form that reads back the same, in no locale.
inline std::string float_text(float value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value);
  return std::string(text, end.ptr);
}

[[noreturn]] inline void bad_option(const error_message& name, const error_message& expected, const error_message& got) {
  fail(errc::invalid_argument, "sampling", {name, ": expected ", expected, ", got ", got});
}

/// Every id of `ids` must be in the vocabulary: it will index memory.
inline void check_option_id(std::string_view name, std::size_t index, std::int32_t id, std::size_t vocab_size) {
  if (id >= 0 && static_cast<std::size_t>(id) < vocab_size) return;
  bad_option({name, "[", index, "]"}, {"a token id in [0, ", vocab_size, ")"},
             std::to_string(id));
}

/// Weights are 2^40 at most (sample/filters.hpp), so that this many of them still add up within 64 bits.
inline constexpr std::size_t max_vocab_size = std::size_t{1} << 22;

}  // namespace detail

inline void sampling_options::validate(std::size_t vocab_size) const {
  using detail::bad_option;
  if (vocab_size == 0 || vocab_size > detail::max_vocab_size)
    bad_option("vocab_size", {"1 to ", detail::max_vocab_size}, std::to_string(vocab_size));

  const auto unit = [](std::string_view name, float value) {
    if (!(value >= 0.0f && value <= 1.0f)) bad_option(name, "a number in [0, 1]", detail::float_text(value));  // ! catches NaN
  };
  const auto finite = [](std::string_view name, float value) {
    if (!std::isfinite(value)) bad_option(name, "a finite number", detail::float_text(value));
  };
  const auto not_negative = [](std::string_view name, std::int32_t value) {
    if (value < 0) bad_option(name, "0 or more", std::to_string(value));
  };

  if (!(temperature >= 0.0f && std::isfinite(temperature)))
    bad_option("temperature", "a finite number >= 0", detail::float_text(temperature));
  not_negative("top_k", top_k);
  unit("top_p", top_p);
  unit("min_p", min_p);
  unit("typical_p", typical_p);
  if (!(repetition_penalty > 0.0f && std::isfinite(repetition_penalty)))
    bad_option("repetition_penalty", "a finite number > 0", detail::float_text(repetition_penalty));
  finite("presence_penalty", presence_penalty);
  finite("frequency_penalty", frequency_penalty);
  not_negative("penalty_last_n", penalty_last_n);
  not_negative("min_tokens", min_tokens);
  if (n_logprobs < -1 || (n_logprobs > 0 && static_cast<std::size_t>(n_logprobs) > vocab_size))
    bad_option("n_logprobs", {"-1 to ", vocab_size}, std::to_string(n_logprobs));

  for (std::size_t i = 0; i < logit_bias.size(); ++i) {
    detail::check_option_id("logit_bias", i, logit_bias[i].first, vocab_size);
    if (!(logit_bias[i].second < std::numeric_limits<float>::infinity()))
      bad_option({"logit_bias[", i, "]"}, "a finite number or -infinity", detail::float_text(logit_bias[i].second));
  }
  for (std::size_t i = 0; i < banned_tokens.size(); ++i) detail::check_option_id("banned_tokens", i, banned_tokens[i], vocab_size);
}

}  // namespace quena::inline QUENA_ABI
