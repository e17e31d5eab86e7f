// SPDX-License-Identifier: MIT
// One sequence of a model: tokens in, logits out, with a memory of what was fed.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "llama.hpp"

namespace quena::inline QUENA_ABI {

/// A sequence with a cache and scratch of its own. The model must outlive it. Not for use by two threads at once.
template <backend B>
class session {
 public:
  explicit session(const llama<B>& model, const kv_options& cache_options = {}, const workspace_options& scratch = {})
      : model_(&model), cache_(model.make_cache(cache_options)), ws_(model.make_workspace(cache_, scratch)), id_(cache_.add()) {
    tokens_.reserve(cache_.max_positions());
    rows_.reserve(scratch.max_rows);
  }

  /// Appends tokens and returns the logits after the last one, [vocab_size], valid until the next call. Long inputs go through
  /// the model in chunks of max_rows; how they are cut changes nothing in the result.
  /// Errors   context_overflow when they don't fit, before anything is computed; invalid_argument: no tokens, or one outside
  ///          the vocabulary; cancelled, with the session as it was before the call.
  std::span<const float> feed(std::span<const token_id> tokens, const forward_options& options = {}) {
    check_tokens(tokens);
    const std::size_t before = length();
    forward_output out;
    try {
      for (std::size_t at = 0; at < tokens.size(); at += ws_.max_rows) {
        const std::size_t n = (std::min)(ws_.max_rows, tokens.size() - at);
        const auto part = tokens.subspan(at, n);
        out = model_->forward(rows(part, at + n == tokens.size() ? n - 1 : n), cache_, ws_, options, adapters());
        tokens_.insert(tokens_.end(), part.begin(), part.end());
      }
    } catch (...) {
      rewind(before);
      throw;
    }
    return {out.logits.data(), model_->config().vocab_size};
  }

  /// Appends tokens and gives `each` the logits after every one of them: each(index in tokens, span of [vocab_size]).
  template <class F>
  void feed_all(std::span<const token_id> tokens, F&& each, const forward_options& options = {}) {
    check_tokens(tokens);
    const std::size_t step = (std::min)(ws_.max_rows, ws_.max_logits);
    for (std::size_t at = 0; at < tokens.size(); at += step) {
      const std::size_t n = (std::min)(step, tokens.size() - at);
      const auto part = tokens.subspan(at, n);
      const forward_output out = model_->forward(rows(part, 0), cache_, ws_, options, adapters());
      tokens_.insert(tokens_.end(), part.begin(), part.end());
      for (std::size_t i = 0; i < n; ++i) each(at + i, out.logits[i].span());
    }
  }

  [[nodiscard]] const llama<B>& model() const noexcept { return *model_; }
  [[nodiscard]] std::size_t length() const { return tokens_.size(); }
  [[nodiscard]] std::size_t max_length() const noexcept { return cache_.max_positions(); }
  /// Everything that was fed and not rewound.
  [[nodiscard]] std::span<const token_id> tokens() const noexcept { return tokens_; }
  [[nodiscard]] const kv_cache<B>& cache() const noexcept { return cache_; }

  /// An adapter for the tokens that are fed from now on (null: none), which must outlive its use; what was fed before stays as it is.
  /// The workspace must have room for its rank: workspace_options::max_rank.
  void use(const lora_weights<B>* adapter) noexcept { adapter_ = adapter; }

  /// Forgets all but the first `length` tokens.
  void rewind(std::size_t length) {
    cache_.rewind(id_, length);
    tokens_.resize(length);
  }
  /// The state as bytes of the host's; restore() brings it back, bit for bit.
  struct state {
    kv_snapshot cache;
    std::vector<token_id> tokens;
  };
  [[nodiscard]] state snapshot() { return {cache_.snapshot(id_), tokens_}; }
  void restore(const state& s) {
    if (s.tokens.size() != s.cache.length)
      fail(errc::invalid_argument, "session", {"expected as many tokens as positions, got ", s.tokens.size(), " and ", s.cache.length});
    cache_.restore(id_, s.cache);
    tokens_.assign(s.tokens.begin(), s.tokens.end());
  }

 private:
  void check_tokens(std::span<const token_id> tokens) const {
    if (tokens.empty()) fail(errc::invalid_argument, "session", "expected at least one token, got none");
    if (tokens.size() > max_length() - length())
      fail(errc::context_overflow, "session", {"expected at most ", max_length(), " tokens of context, got ", length() + tokens.size()});
    for (const token_id t : tokens)
      if (t < 0 || static_cast<std::size_t>(t) >= model_->config().vocab_size)
        fail(errc::invalid_argument, "session", {"expected tokens in [0, ", model_->config().vocab_size, "), got ", t});
  }
  /// The next rows of the sequence; logits are wanted from `first_wanted` on.
  std::span<const row> rows(std::span<const token_id> tokens, std::size_t first_wanted) {
    rows_.clear();
    for (std::size_t i = 0; i < tokens.size(); ++i) rows_.push_back({tokens[i], static_cast<std::uint32_t>(length() + i), id_, i >= first_wanted, adapter_ == nullptr ? no_adapter : 0});
    return rows_;
  }

  [[nodiscard]] std::span<const lora_weights<B>* const> adapters() const noexcept { return {&adapter_, adapter_ == nullptr ? std::size_t{0} : 1}; }

  const llama<B>* model_;
  kv_cache<B> cache_;
  workspace<B> ws_;
  sequence_id id_;
  const lora_weights<B>* adapter_ = nullptr;
  std::vector<token_id> tokens_;
  std::vector<row> rows_;
};

}  // namespace quena::inline QUENA_ABI
