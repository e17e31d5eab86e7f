// SPDX-License-Identifier: MIT
// Prompt in, text out: a range of pieces, or a callback.
#pragma once

#include <algorithm>
#include <chrono>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "load.hpp"
#include "model/session.hpp"
#include "sample/outcome.hpp"
#include "sample/sampler.hpp"
#include "sample/stop.hpp"
#include "text/stream_decoder.hpp"

namespace quena::inline QUENA_ABI {

/// What to do when a text outgrows the context while it is generated. A prompt that does not fit is always an error.
enum class context_policy : std::uint8_t {
  error,  ///< throw errc::context_overflow; the text so far was delivered
  stop,   ///< end the text, with finish_reason::length
  slide,  ///< keep the first `keep` tokens and the later half of the rest, compute those anew, and go on
};

struct generate_options {
  std::size_t max_tokens = 256;
  std::optional<sampling_options> sampling = {};  ///< none: sampling_defaults(llm), the model's own generation_config
  std::vector<std::string> stop = {};             ///< strings that end the text; they are not part of it
  bool parse_special = false;                     ///< read control tokens in the prompt as such
  bool special_text = false;                      ///< deliver generated control tokens as text
  context_policy on_full_context = context_policy::error;
  std::size_t keep = 1;                           ///< for slide: tokens at the start (the BOS) that stay
  std::stop_token stop_token = {};                ///< cancels, within a layer's time
};

/// Where the time went. The first token comes out of the prefill; each later one is a decode pass.
struct generate_timing {
  std::size_t prefill_tokens = 0;
  double prefill_s = 0;
  std::size_t decode_tokens = 0;
  double decode_s = 0;
};

/// A text as it is generated: an input range of pieces of valid UTF-8 (if the model's text is), each valid until the next one.
///   for (std::string_view piece : quena::generate(llm, "Once upon a time")) …
/// Nothing is computed before begin() or next(). The llm (or session) must outlive it. After an exception the generation is
/// over, and the session and the llm can be used again.
template <backend B>
class generation {
 public:
  /// On a session of the caller's: `prompt` continues what it holds (for the penalties everything counts as prompt). Pieces are
  /// also appended to `transcript`, where one is given; it must outlive the generation.
  /// Errors   invalid_argument: sampling options, stop strings, an empty prompt, a token outside the vocabulary;
  ///          context_overflow: the prompt does not leave room for one token.
  generation(const llm<B>& source, session<B>& on, std::span<const token_id> prompt, generate_options options, std::string* transcript = nullptr)
      : generation(source, nullptr, &on, prompt, std::move(options), transcript) {}
  /// On a session of its own.
  generation(const llm<B>& source, std::span<const token_id> prompt, generate_options options)
      : generation(source, std::make_unique<session<B>>(source.model, source.cache), nullptr, prompt, std::move(options), nullptr) {}
  generation(const generation&) = delete;
  generation& operator=(const generation&) = delete;

  /// Computes on to the next piece of text; false at the end.
  bool next() {
    piece_.clear();
    try {
      while (piece_.empty() && reason_ == finish_reason::none) {
        const auto start = std::chrono::steady_clock::now();
        const bool first = timing_.prefill_tokens == 0;
        if (ids_.size() >= options_.max_tokens || (!first && !make_room())) {
          finish(finish_reason::length);
          break;
        }
        const std::span<const token_id> fed = first ? std::span<const token_id>(prompt_) : std::span<const token_id>(&ids_.back(), 1);
        choose(session_->feed(fed, forward()));
        (first ? timing_.prefill_s : timing_.decode_s) += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        (first ? timing_.prefill_tokens : timing_.decode_tokens) += fed.size();
      }
    } catch (const error& e) {
      if (e.code() != errc::cancelled) {
        reason_ = finish_reason::stop;
        throw;
      }
      finish(finish_reason::cancelled);
    }
    if (transcript_ != nullptr) *transcript_ += piece_;
    return !piece_.empty();
  }
  [[nodiscard]] std::string_view piece() const noexcept { return piece_; }

  [[nodiscard]] finish_reason reason() const noexcept { return reason_; }
  [[nodiscard]] std::span<const token_id> prompt_ids() const noexcept { return prompt_; }
  [[nodiscard]] std::span<const token_id> ids() const noexcept { return ids_; }  ///< generated, without the end token
  [[nodiscard]] std::span<const generated_logprobs> logprobs() const noexcept { return logprobs_; }
  [[nodiscard]] const generate_timing& timing() const noexcept { return timing_; }

  class iterator {
   public:
    using value_type = std::string_view;
    using difference_type = std::ptrdiff_t;
    using iterator_concept = std::input_iterator_tag;
    explicit iterator(generation* g) : g_(g) {}
    std::string_view operator*() const noexcept { return g_->piece(); }
    iterator& operator++() {
      if (!g_->next()) g_ = nullptr;
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(const iterator& i, std::default_sentinel_t) noexcept { return i.g_ == nullptr; }

   private:
    generation* g_;
  };
  iterator begin() { return iterator(next() ? this : nullptr); }
  std::default_sentinel_t end() const noexcept { return {}; }

 private:
  generation(const llm<B>& source, std::unique_ptr<session<B>> own, session<B>* on, std::span<const token_id> prompt, generate_options options, std::string* transcript)
      : options_(std::move(options)),
        own_(std::move(own)),
        session_(own_ ? own_.get() : on),
        sampler_(with_end_tokens(options_.sampling ? *options_.sampling : sampling_defaults(source), source.end_tokens), source.model.config().vocab_size),
        tokenizer_(&source.tokenizer),
        decoder_(source.tokenizer, {.skip_special = !options_.special_text, .continues = has_text(source.tokenizer, prompt)}),
        stop_(options_.stop),
        prompt_(prompt.begin(), prompt.end()),
        transcript_(transcript) {
    const std::size_t context = session_->max_length(), wanted = session_->length() + prompt.size();
    if (prompt.empty()) fail(errc::invalid_argument, "generate", "expected a prompt of at least one token, got none");
    if (wanted >= context)
      fail(errc::context_overflow, "generate", {"expected a prompt below the context of ", context, " tokens, got ", wanted});
    sampler_.accept_prompt(session_->tokens());
    sampler_.accept_prompt(prompt_);
    ids_.reserve((std::min)(options_.max_tokens, context));
    piece_.reserve(256);
  }

  /// The model's end tokens always count, whatever the caller's options list.
  static sampling_options with_end_tokens(sampling_options o, std::span<const token_id> end_tokens) {
    o.end_tokens.insert(o.end_tokens.end(), end_tokens.begin(), end_tokens.end());
    return o;
  }

  /// Whether the generated text continues another one (then its first space counts), or stands at the start after control tokens.
  static bool has_text(const tokenizer& t, std::span<const token_id> prompt) {
    return std::any_of(prompt.begin(), prompt.end(), [&](token_id id) { return !t.is_special(id); });
  }

  [[nodiscard]] forward_options forward() const { return {.stop = options_.stop_token, .on_layer = {}}; }

  /// Room for one more token; false: the context is full and the policy is to stop. With the policy error, feed() throws.
  bool make_room() {
    if (session_->length() < session_->max_length()) return true;
    if (options_.on_full_context == context_policy::slide) slide();
    return options_.on_full_context != context_policy::stop;
  }

  /// Takes the next token and adds its text to the piece.
  void choose(std::span<const float> logits) {
    const sampled choice = sampler_.choose(logits);
    if (sampler_.is_end(choice.token)) return finish(finish_reason::stop);
    sampler_.accept(choice.token);
    ids_.push_back(choice.token);
    if (sampler_.options().n_logprobs >= 0) logprobs_.push_back({choice.logprob, {choice.top.begin(), choice.top.end()}});
    if (tokenizer_->contains(choice.token)) piece_ += stop_.push(decoder_.push(choice.token));  // else a padding row of the output matrix
    if (stop_.stopped()) return finish(finish_reason::stop);
    if (ids_.size() == options_.max_tokens) finish(finish_reason::length);
  }

  /// Drops the earlier half of what is not kept. The rest is computed anew: keys and values hold their old positions and context.
  void slide() {
    const std::size_t length = session_->length(), keep = (std::min)(options_.keep, length - 1);
    const std::size_t dropped = (length - keep + 1) / 2;
    const auto old = session_->tokens();
    std::vector<token_id> rest(old.begin() + static_cast<std::ptrdiff_t>(keep + dropped), old.end());
    session_->rewind(keep);
    if (!rest.empty()) session_->feed(rest, forward());
  }

  void finish(finish_reason reason) {
    reason_ = reason;
    if (stop_.stopped()) return;
    piece_ += stop_.push(decoder_.flush());
    piece_ += stop_.flush();
    if (stop_.stopped() && reason != finish_reason::cancelled) reason_ = finish_reason::stop;
  }

  generate_options options_;
  std::unique_ptr<session<B>> own_;
  session<B>* session_;
  sampler sampler_;
  const tokenizer* tokenizer_;
  stream_decoder decoder_;
  stop_matcher stop_;
  std::vector<token_id> prompt_, ids_;
  std::vector<generated_logprobs> logprobs_;
  generate_timing timing_;
  std::string piece_;
  std::string* transcript_;
  finish_reason reason_ = finish_reason::none;
};

/// The text that continues `prompt`, as a range; the tokenizer adds the BOS token if the model's files ask for it.
template <backend B>
[[nodiscard]] generation<B> generate(const llm<B>& source, std::string_view prompt, const generate_options& options = {}) {
  return generation<B>(source, source.tokenizer.encode(prompt, {.add_bos = true, .parse_special = options.parse_special}), options);
}

/// A finished text.
struct generate_result {
  std::string text;
  std::vector<token_id> ids;
  finish_reason reason = finish_reason::none;
  generate_timing timing;
  std::vector<generated_logprobs> logprobs;
};

/// Runs a generation to its end; `each` gets every piece and may return false to end it there (finish_reason::cancelled).
template <backend B, class F>
  requires std::invocable<F&, std::string_view>
generate_result run(generation<B>& g, F&& each) {
  generate_result r;
  r.reason = finish_reason::cancelled;
  bool go_on = true;
  while (go_on && g.next()) {
    r.text += g.piece();
    if constexpr (std::convertible_to<std::invoke_result_t<F&, std::string_view>, bool>) go_on = each(g.piece());
    else each(g.piece());
  }
  if (g.reason() != finish_reason::none) r.reason = g.reason();
  r.ids.assign(g.ids().begin(), g.ids().end());
  r.timing = g.timing();
  r.logprobs.assign(g.logprobs().begin(), g.logprobs().end());
  return r;
}

/// The callback form of generate().
template <backend B, class F>
  requires std::invocable<F&, std::string_view>
generate_result generate(const llm<B>& source, std::string_view prompt, const generate_options& options, F&& each) {
  generation<B> g = generate(source, prompt, options);
  return run(g, each);
}

}  // namespace quena::inline QUENA_ABI
