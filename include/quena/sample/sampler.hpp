// SPDX-License-Identifier: MIT
// Logits to the next token.
//
// The definition, in this order (that of Hugging Face and vLLM; llama.cpp applies temperature last):
//   1. bias       logit[id] += amount, entry by entry; banned tokens and, while fewer than min_tokens were generated and
//                 ignore_eos is off, end tokens become -infinity
//   2. penalties  repetition over prompt and generated tokens, then frequency and presence over generated ones (history.hpp)
//   3. check      NaN or +infinity anywhere, or nothing above -infinity, is an error: never a silent token
//   4. greedy     temperature 0: the greatest logit, of equal ones the lowest id. Done; nothing below has a say.
//   5. weights    w[id] = floor(2^40 e^x), x = (logit[id] - greatest) / temperature (filters.hpp); probability = w / sum of w
//   6. filters    top-k, top-p, min-p, typical; each over the probabilities of what the one before it left
//   7. draw       point = floor(random_bits(seed, sequence, position) * total / 2^64); the token whose interval holds it when the
//                 weights that are left are laid end to end by ascending id (rng.hpp)
// Log-probabilities are those of the model: log-softmax of the logits as they came in, before step 1.
#pragma once

#include "filters.hpp"
#include "history.hpp"
#include "kernels.hpp"
#include "options.hpp"
#include "rng.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace quena::inline QUENA_ABI {

struct token_logprob {
  std::int32_t token;
  float logprob;
};

/// One choice of the sampler.
struct sampled {
  std::int32_t token;
  float logprob;                       ///< NaN unless sampling_options::n_logprobs >= 0
  std::span<const token_logprob> top;  ///< the n_logprobs best, best first; valid until the scratch is used again
};

/// Memory of one call of sampler::choose. It carries nothing from call to call, so one may serve many samplers in turn; a copy
/// starts empty, which keeps copies of a sampler small.
struct sampling_scratch {
  std::vector<float> logits;                // [vocab_size] after bias and penalties
  std::vector<float> block_max;             // [n_blocks]
  std::vector<float> bound;                 // [n_blocks] a copy of block_max to select in
  std::vector<float> exps;                  // [vocab_size] e^x
  std::vector<std::uint64_t> block_weight;  // [n_blocks] sum of a block's weights
  std::vector<candidate> list, pool;        // up to vocab_size
  std::vector<token_logprob> top;           // [n_logprobs]

  sampling_scratch() = default;
  sampling_scratch(const sampling_scratch&) noexcept {}
  sampling_scratch(sampling_scratch&&) noexcept = default;
  sampling_scratch& operator=(const sampling_scratch&) noexcept { return *this; }
  sampling_scratch& operator=(sampling_scratch&&) noexcept = default;
  ~sampling_scratch() = default;
};

namespace detail {

/// Puts a superset of the k greatest logits into `list`, by ascending id. The k-th greatest block maximum is a lower bound of
/// the k-th greatest logit, and blocks below it need not be read.
inline void gather_best(std::span<const float> logits, std::size_t k, sampling_scratch& s) {
  float bound = -infinity;
  if (k <= s.block_max.size()) {
    s.bound.assign(s.block_max.begin(), s.block_max.end());
    const auto kth = s.bound.begin() + static_cast<std::ptrdiff_t>(k - 1);
    std::nth_element(s.bound.begin(), kth, s.bound.end(), std::greater<float>());
    bound = *kth;
  }
  s.list.clear();
  for (std::size_t block = 0; block < s.block_max.size(); ++block) {
    if (s.block_max[block] < bound) continue;
    const std::size_t end = (std::min)((block + 1) * logit_block, logits.size());
    for (std::size_t i = block * logit_block; i < end; ++i)
      if (logits[i] >= bound && logits[i] > -infinity) s.list.push_back({logits[i], static_cast<std::int32_t>(i), 0, logits[i]});
  }
}

/// Weights of the candidates in the list; drops those whose weight is 0, which no filter and no draw can tell from banned ones.
inline void weigh_list(std::vector<candidate>& list, float greatest, float temperature) {
  float x[logit_block];
  for (std::size_t begin = 0; begin < list.size(); begin += logit_block) {
    const std::size_t n = (std::min)(list.size() - begin, logit_block);
    for (std::size_t i = 0; i < n; ++i) x[i] = list[begin + i].logit;
    exp_block(x, n, greatest, temperature, x);
    for (std::size_t i = 0; i < n; ++i) list[begin + i].weight = to_weight(x[i]);
  }
  std::erase_if(list, [](const candidate& c) { return c.weight == 0; });
}

/// e^x of every token and the weight of every block; returns the total weight.
inline std::uint64_t weigh_all(std::span<const float> logits, float greatest, float temperature, sampling_scratch& s) {
  s.exps.resize(logits.size());
  s.block_weight.resize(s.block_max.size());
  std::uint64_t total = 0;
  for (std::size_t block = 0; block < s.block_weight.size(); ++block) {
    const std::size_t begin = block * logit_block, n = (std::min)(logits.size() - begin, logit_block);
    exp_block(logits.data() + begin, n, greatest, temperature, s.exps.data() + begin);
    std::uint64_t sum = 0;
    for (std::size_t i = begin; i < begin + n; ++i) sum += to_weight(s.exps[i]);
    total += s.block_weight[block] = sum;
  }
  return total;
}

/// pick() over all tokens: whole blocks first.
inline std::int32_t pick_from_all(std::uint64_t point, const sampling_scratch& s) noexcept {
  std::size_t block = 0;
  for (; block + 1 < s.block_weight.size() && point >= s.block_weight[block]; ++block) point -= s.block_weight[block];
  std::size_t i = block * logit_block;
  for (; i + 1 < s.exps.size() && point >= to_weight(s.exps[i]); ++i) point -= to_weight(s.exps[i]);
  return static_cast<std::int32_t>(i);
}

}  // namespace detail

/// Chooses the tokens of one sequence. State: the options and the counts that penalties need; a copy is a fork or a snapshot.
/// Not for concurrent use of one object; different objects are independent.
///
///   sampler pick({.temperature = 0.8f, .top_p = 0.95f, .seed = 7}, vocab_size);
///   pick.accept_prompt(prompt);
///   for (...) { token = pick.choose(logits).token; pick.accept(token); }
class sampler {
 public:
  /// `sequence` tells sequences of one seed apart: several answers to one prompt get 0, 1, 2 … It must come from the request,
  /// not from a slot in a batch, or the text would depend on who shares the batch.
  /// Errors   [sampling] a parameter out of range -> quena::error, errc::invalid_argument.
  sampler(sampling_options options, std::size_t vocab_size, std::uint64_t sequence = 0)
      : options_((options.validate(vocab_size), std::move(options))),
        vocab_size_(vocab_size),
        sequence_(sequence),
        history_(vocab_size, static_cast<std::size_t>(options_.penalty_last_n), options_.repetition_penalty != 1.0f,
                 options_.presence_penalty != 0.0f || options_.frequency_penalty != 0.0f) {}

  /// Tells the sampler of tokens it did not choose: the prompt, or a forced text. They count for the repetition penalty, not
  /// for presence, frequency and min_tokens.
  /// Errors   [sampler] an id outside the vocabulary -> quena::error, and none of the tokens is taken.
  void accept_prompt(std::span<const std::int32_t> tokens) {
    for (const std::int32_t token : tokens) check_token(token);
    for (const std::int32_t token : tokens) history_.add(token, false);
    n_prompt_ += tokens.size();
  }

  /// Tells the sampler that `token` was generated. choose() does not do it by itself: a caller may reject what was chosen.
  void accept(std::int32_t token) {
    check_token(token);
    history_.add(token, true);
    ++n_generated_;
  }

  /// Forgets prompt and generated tokens. Allocates nothing.
  void reset() noexcept {
    history_.clear();
    n_prompt_ = n_generated_ = 0;
  }

  /// The next token, by the definition at the top of this file. Changes no state: the same call gives the same answer.
  /// Shapes   logits: [vocab_size], only read. `position` is the chosen token's place in the sequence: how many stand before it.
  /// Errors   [sampler] wrong size -> errc::invalid_argument; NaN, +infinity or nothing to choose -> errc::non_finite, with the
  ///          step. The sampler can be used again.
  /// Cost     no allocation after the first call with this scratch. One pass for greedy and top-k, two or three else.
  [[nodiscard]] sampled choose(std::span<const float> logits, std::uint32_t position, sampling_scratch& s) const {
    const std::span<const float> processed = process(logits, s);
    const detail::logits_scan scan = this->scan(processed, s);
    if (!scan.legal) fail_not_finite(logits, position);
    if (scan.greatest == -detail::infinity) fail_nothing_left(logits, position);

    sampled result{static_cast<std::int32_t>(scan.argmax), std::numeric_limits<float>::quiet_NaN(), {}};
    if (options_.temperature != 0.0f && options_.top_k != 1) result.token = draw(processed, scan.greatest, position, s);
    if (options_.n_logprobs >= 0) {
      if (processed.data() == logits.data()) {
        add_logprobs(logits, scan.greatest, s, result);
      } else {
        add_logprobs(logits, this->scan(logits, s).greatest, s, result);
      }
    }
    return result;
  }

  /// The same with the sampler's own scratch.
  [[nodiscard]] sampled choose(std::span<const float> logits, std::uint32_t position) { return choose(logits, position, scratch_); }

  /// The same for the position after all accepted tokens.
  [[nodiscard]] sampled choose(std::span<const float> logits) {
    return choose(logits, static_cast<std::uint32_t>(n_prompt_ + n_generated_), scratch_);
  }

  /// Steps 1 and 2 of the definition alone: the logits after bias, bans and penalties; the input itself where there are none.
  [[nodiscard]] std::span<const float> process(std::span<const float> logits, sampling_scratch& s) const {
    if (logits.size() != vocab_size_)
      fail(errc::invalid_argument, "sampler",
           {"expected ", vocab_size_, " logits, got ", logits.size()});
    const bool mask_ends =
        !options_.ignore_eos && !options_.end_tokens.empty() && n_generated_ < static_cast<std::size_t>(options_.min_tokens);
    if (!mask_ends && options_.logit_bias.empty() && options_.banned_tokens.empty() && !options_.has_penalties()) return logits;

    s.logits.assign(logits.begin(), logits.end());
    // Bans are additions as well: a NaN on a banned token must still be seen by the check.
    const auto add = [&](std::int32_t id, float amount) {
      if (id >= 0 && static_cast<std::size_t>(id) < s.logits.size()) s.logits[static_cast<std::size_t>(id)] += amount;
    };
    for (const auto& [id, amount] : options_.logit_bias) add(id, amount);
    for (const std::int32_t id : options_.banned_tokens) add(id, -detail::infinity);
    if (mask_ends)
      for (const std::int32_t id : options_.end_tokens) add(id, -detail::infinity);
    apply_repetition_penalty(s.logits, history_.seen(), options_.repetition_penalty);
    apply_presence_frequency_penalty(s.logits, history_.generated(), options_.presence_penalty, options_.frequency_penalty);
    return s.logits;
  }

  /// True where `token` ends the text: one of end_tokens, unless ignore_eos is set.
  [[nodiscard]] bool is_end(std::int32_t token) const noexcept {
    return !options_.ignore_eos &&
           std::find(options_.end_tokens.begin(), options_.end_tokens.end(), token) != options_.end_tokens.end();
  }

  [[nodiscard]] const sampling_options& options() const noexcept { return options_; }
  [[nodiscard]] std::size_t vocab_size() const noexcept { return vocab_size_; }
  [[nodiscard]] std::size_t n_prompt() const noexcept { return n_prompt_; }
  [[nodiscard]] std::size_t n_generated() const noexcept { return n_generated_; }

 private:
  void check_token(std::int32_t token) const {
    if (token < 0 || static_cast<std::size_t>(token) >= vocab_size_)
      fail(errc::invalid_argument, "sampler",
           {"expected a token id in [0, ", vocab_size_, "), got ", token});
  }

  static detail::logits_scan scan(std::span<const float> logits, sampling_scratch& s) {
    s.block_max.resize((logits.size() + detail::logit_block - 1) / detail::logit_block);
    return detail::scan_logits(logits, s.block_max.data());
  }

  /// Steps 5 to 7.
  std::int32_t draw(std::span<const float> logits, float greatest, std::uint32_t position, sampling_scratch& s) const {
    const sampling_options& o = options_;
    const std::uint64_t bits = random_bits(o.seed, sequence_, position);
    const bool few = o.top_k > 0 && static_cast<std::size_t>(o.top_k) < logits.size();
    std::uint64_t total;
    if (few) {
      reserve_lists(s);
      detail::gather_best(logits, static_cast<std::size_t>(o.top_k), s);
      keep_top_k(s.list, static_cast<std::size_t>(o.top_k), s.pool);
      detail::weigh_list(s.list, greatest, o.temperature);
      total = total_weight(s.list);
    } else {
      total = detail::weigh_all(logits, greatest, o.temperature, s);
      if (o.top_p == 1.0f && o.min_p == 0.0f && o.typical_p == 1.0f) return detail::pick_from_all(uniform_below(bits, total), s);
      reserve_lists(s);
      gather_likely(logits, greatest, total, s);
    }
    if (o.top_p < 1.0f) keep_top_p(s.list, o.top_p, total, s.pool);
    if (o.min_p > 0.0f) keep_min_p(s.list, o.min_p);
    if (o.typical_p < 1.0f) keep_typical(s.list, o.typical_p, greatest, o.temperature, s.pool);
    return pick(s.list, uniform_below(bits, total_weight(s.list)));
  }

  /// Lists the tokens that the first active filter can keep. For top-p: all tokens of less than (1 - top_p) / vocab_size
  /// probability together have less than 1 - top_p, so the prefix without them is long enough. The cut is on logits, with a
  /// margin of 1 % in weight for the rounding of e^x, so that what is listed is a prefix of the rank order.
  void gather_likely(std::span<const float> logits, float greatest, std::uint64_t total, sampling_scratch& s) const {
    double least = 0.0;  // of the best token's weight
    if (options_.top_p < 1.0f) {
      least = (1.0 - static_cast<double>(options_.top_p)) * static_cast<double>(total) /
              (static_cast<double>(logits.size()) * static_cast<double>(unit_weight));
    } else {
      least = static_cast<double>(options_.min_p);
    }
    const double cut = least > 0.0
                           ? static_cast<double>(greatest) + static_cast<double>(options_.temperature) * (std::log(least) - 0.01)
                           : -std::numeric_limits<double>::infinity();
    s.list.clear();
    for (std::size_t block = 0; block < s.block_max.size(); ++block) {
      if (static_cast<double>(s.block_max[block]) < cut) continue;
      const std::size_t end = (std::min)((block + 1) * detail::logit_block, logits.size());
      for (std::size_t i = block * detail::logit_block; i < end; ++i) {
        const std::uint64_t weight = to_weight(s.exps[i]);
        if (static_cast<double>(logits[i]) >= cut && weight > 0)
          s.list.push_back({logits[i], static_cast<std::int32_t>(i), weight, logits[i]});
      }
    }
  }

  /// The worst case at once, so that no later token allocates; memory that is never written costs no pages.
  void reserve_lists(sampling_scratch& s) const {
    s.list.reserve(vocab_size_);
    s.pool.reserve(vocab_size_);
    s.bound.reserve(s.block_max.size());
  }

  /// Fills in logprob and top from the raw logits, of which s.block_max holds the block maxima.
  void add_logprobs(std::span<const float> logits, float greatest, sampling_scratch& s, sampled& result) const {
    const double normaliser = static_cast<double>(greatest) + std::log(detail::sum_exp(logits, greatest));
    const auto logprob = [&](float logit) { return static_cast<float>(static_cast<double>(logit) - normaliser); };
    result.logprob = logprob(logits[static_cast<std::size_t>(result.token)]);
    if (options_.n_logprobs == 0) return;

    const auto n = static_cast<std::size_t>(options_.n_logprobs);
    reserve_lists(s);
    s.top.reserve(n);
    detail::gather_best(logits, n, s);
    keep_top_k(s.list, n, s.pool);
    std::sort(s.list.begin(), s.list.end(), [](const candidate& a, const candidate& b) { return a.ranks_before(b); });
    s.top.clear();
    for (const candidate& c : s.list) s.top.push_back({c.id, logprob(c.logit)});
    result.top = s.top;
  }

  [[noreturn]] void fail_not_finite(std::span<const float> logits, std::uint32_t position) const {
    std::size_t i = 0;
    while (i < logits.size() && logits[i] < detail::infinity) ++i;
    const std::string step = std::to_string(n_generated_) + " (position " + std::to_string(position) + ")";
    if (i == logits.size())
      fail(errc::non_finite, "sampler", {"expected finite logits after bias and penalties at step ", step, ", got an overflow"});
    fail(errc::non_finite, "sampler",
         {"non-finite logits at step ", step, ": expected numbers, got ", detail::float_text(logits[i]), " for token ", i});
  }

  [[noreturn]] void fail_nothing_left(std::span<const float> logits, std::uint32_t position) const {
    const bool banned = detail::scan_logits(logits, nullptr).greatest > -detail::infinity;
    fail(errc::non_finite, "sampler",
         {"non-finite logits at step ", n_generated_, " (position ", position, "): expected a token above -infinity, got none", (banned ? " after bias, bans and penalties" : "")});
  }

  sampling_options options_;
  std::size_t vocab_size_;
  std::uint64_t sequence_;
  token_history history_;
  std::size_t n_prompt_ = 0;
  std::size_t n_generated_ = 0;
  sampling_scratch scratch_;
};

}  // namespace quena::inline QUENA_ABI
