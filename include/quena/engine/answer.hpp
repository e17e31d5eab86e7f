// SPDX-License-Identifier: MIT
// One answer while it is made: its tokens, its sampler, its text. Where its keys and values are, the scheduler knows.
#pragma once

#include <algorithm>
#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../sample/sampler.hpp"
#include "../sample/stop.hpp"
#include "../text/stream_decoder.hpp"
#include "metrics.hpp"
#include "request.hpp"

namespace quena::inline QUENA_ABI::detail {

using engine_clock = std::chrono::steady_clock;

[[nodiscard]] inline double seconds_between(engine_clock::time_point from, engine_clock::time_point to) { return std::chrono::duration<double>(to - from).count(); }

/// Who goes first: the lesser. A request's turn is the step in which it came, less its priority's advantage; so a greater priority
/// overtakes those that came a bounded time before, and nobody waits for ever.
struct rank {
  std::int64_t turn = 0;
  std::uint64_t arrival = 0;
  std::size_t answer = 0;
  friend auto operator<=>(const rank&, const rank&) = default;
};

/// A request's text, answer `index`.
class answer {
 public:
  /// Errors   invalid_argument: sampling options, stop strings, a prompt with tokens outside the vocabulary.
  answer(const request& asked, std::size_t index, std::span<const token_id> end_tokens, std::size_t vocab_size, const tokenizer* words)
      : index_(index),
        n_prompt_(asked.prompt.size()),
        max_tokens_(asked.max_tokens),
        tokens_(asked.prompt),
        sampler_(with_end_tokens(asked.sampling, end_tokens), vocab_size, index),
        words_(words),
        stop_(asked.stop) {
    sampler_.accept_prompt(asked.prompt);
    if (words_ == nullptr) return;
    const bool continues = std::any_of(asked.prompt.begin(), asked.prompt.end(), [&](token_id id) { return words->contains(id) && !words->is_special(id); });
    decoder_.emplace(*words, decode_options{.skip_special = !asked.special_text, .continues = continues});
  }

  [[nodiscard]] std::size_t index() const noexcept { return index_; }
  /// Prompt and generated tokens.
  [[nodiscard]] std::span<const token_id> tokens() const noexcept { return tokens_; }
  [[nodiscard]] std::size_t n_generated() const noexcept { return tokens_.size() - n_prompt_; }
  [[nodiscard]] std::size_t n_prompt() const noexcept { return n_prompt_; }
  [[nodiscard]] finish_reason reason() const noexcept { return reason_; }

  /// Takes the next token, chosen from the logits after all of tokens(); `max_length` is the longest sequence. The token's event, if there
  /// is a token; reason() says whether the answer goes on.
  /// Errors   non_finite.
  std::optional<engine_event> choose(std::span<const float> logits, sampling_scratch& scratch, std::size_t max_length) {
    const sampled choice = sampler_.choose(logits, static_cast<std::uint32_t>(tokens_.size()), scratch);
    if (sampler_.is_end(choice.token)) {
      reason_ = finish_reason::stop;
      return {};
    }
    sampler_.accept(choice.token);
    tokens_.push_back(choice.token);
    engine_event e{.answer = index_, .token = choice.token};
    if (sampler_.options().n_logprobs >= 0) e.logprobs = {choice.logprob, {choice.top.begin(), choice.top.end()}};
    if (decoder_ && words_->contains(choice.token)) e.text = stop_.push(decoder_->push(choice.token));  // else a padding row of the output matrix
    if (stop_.stopped()) reason_ = finish_reason::stop;
    else if (n_generated() >= max_tokens_ || tokens_.size() > max_length) reason_ = finish_reason::length;
    return e;
  }

  /// The last event. `reason` is why the answer ends, unless it ended by itself before.
  engine_event finish(finish_reason reason) {
    if (reason_ == finish_reason::none) reason_ = reason;
    engine_event e{.answer = index_};
    if (decoder_ && !stop_.stopped()) {
      e.text = stop_.push(decoder_->flush());
      e.text += stop_.flush();
      if (stop_.stopped() && reason_ == finish_reason::length) reason_ = finish_reason::stop;
    }
    e.reason = reason_;
    e.usage = {.prompt_tokens = n_prompt_, .cached_tokens = cached_tokens, .generated_tokens = n_generated()};
    return e;
  }

  std::size_t cached_tokens = 0;                    ///< of the prompt, found in the prefix cache at the beginning
  std::optional<engine_clock::time_point> last_token;  ///< when it came

 private:
  static sampling_options with_end_tokens(sampling_options o, std::span<const token_id> end_tokens) {
    o.end_tokens.insert(o.end_tokens.end(), end_tokens.begin(), end_tokens.end());
    return o;
  }

  std::size_t index_, n_prompt_, max_tokens_;
  std::vector<token_id> tokens_;
  sampler sampler_;
  const tokenizer* words_;
  std::optional<stream_decoder> decoder_;
  stop_matcher stop_;
  finish_reason reason_ = finish_reason::none;
};

}  // namespace quena::inline QUENA_ABI::detail
