// SPDX-License-Identifier: MIT
// How well a model predicts a text, and how far one model's predictions are from another's.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <vector>

#include "../model/session.hpp"

namespace quena::inline QUENA_ABI {

struct perplexity_options {
  std::size_t window = 512;  ///< ids per window; each window is evaluated alone from position 0 and scored from its second id
  std::function<void(std::size_t done, std::size_t total)> progress = {};
  std::stop_token stop = {};
};

struct perplexity_result {
  std::size_t tokens = 0;      ///< that were scored
  double nll = 0;              ///< mean negative log likelihood, in nats
  double perplexity = 0;       ///< exp(nll)
  std::optional<double> kl;    ///< mean KL(reference || model) in nats, when there is a reference model
  std::optional<double> top1;  ///< share of positions where both choose the same most likely token
};

namespace detail {

/// log(sum(exp(logits))), in double, in the order of the vocabulary.
inline double log_sum_exp(std::span<const float> logits) {
  const double largest = double{*std::max_element(logits.begin(), logits.end())};
  double sum = 0;
  for (const float x : logits) sum += std::exp(double{x} - largest);
  return largest + std::log(sum);
}

}  // namespace detail

/// Perplexity of `ids` under the session's model, and with `reference` (another model with the same vocabulary) also the
/// divergence from it:  nll = mean -ln p(ids[i] | window before i),  kl = mean sum_v p_ref(v) ln(p_ref(v) / p(v)).
/// The sessions are rewound to empty, before and after; they need a context of `window`.
/// Numerics sums in double over f32 logits.
/// Errors   invalid_argument: fewer than two ids, a window below 2, vocabularies that differ; non_finite: logits that are not numbers; those of session::feed.
/// Cost     one prefill of all ids, with the logits of every position.
template <backend B, backend R = B>
perplexity_result perplexity(session<B>& model, std::span<const token_id> ids, const perplexity_options& o = {}, session<R>* reference = nullptr) {
  const std::size_t vocab_size = model.model().config().vocab_size;
  if (ids.size() < 2 || o.window < 2)
    fail(errc::invalid_argument, "perplexity", {"expected at least two ids and a window of at least 2, got ", ids.size(), " and ", o.window});
  if (reference != nullptr && reference->model().config().vocab_size != vocab_size)
    fail(errc::invalid_argument, "perplexity", {"expected a reference model with ", vocab_size, " tokens, got ", reference->model().config().vocab_size});

  perplexity_result r;
  double nll = 0, kl = 0;
  std::size_t agreed = 0;
  const forward_options options{.stop = o.stop, .on_layer = {}};
  const std::size_t block = 64;  // positions whose reference logits are kept at a time
  std::vector<float> expected(reference != nullptr ? block * vocab_size : 0);
  for (std::size_t at = 0; at + 1 < ids.size(); at += o.window) {
    const auto window = ids.subspan(at, (std::min)(o.window, ids.size() - at));
    model.rewind(0);
    if (reference != nullptr) reference->rewind(0);
    for (std::size_t first = 0; first + 1 < window.size(); first += block) {
      const auto part = window.subspan(first, (std::min)(block, window.size() - 1 - first));  // the last id predicts nothing
      if (reference != nullptr)
        reference->feed_all(part, [&](std::size_t i, std::span<const float> logits) { std::copy(logits.begin(), logits.end(), expected.data() + i * vocab_size); }, options);
      model.feed_all(part, [&](std::size_t i, std::span<const float> logits) {
        const double norm = detail::log_sum_exp(logits);
        if (!std::isfinite(norm)) fail(errc::non_finite, "perplexity", {"expected finite logits, got others at position ", first + i, " of the window at ", at});
        nll += norm - double{logits[static_cast<std::size_t>(window[first + i + 1])]};
        ++r.tokens;
        if (reference == nullptr) return;
        const std::span<const float> want(expected.data() + i * vocab_size, vocab_size);
        const double want_norm = detail::log_sum_exp(want);
        for (std::size_t v = 0; v < vocab_size; ++v) {
          const double log_p = double{want[v]} - want_norm;
          kl += std::exp(log_p) * (log_p - (double{logits[v]} - norm));
        }
        agreed += std::max_element(logits.begin(), logits.end()) - logits.begin() == std::max_element(want.begin(), want.end()) - want.begin();
      }, options);
    }
    if (o.progress) o.progress((std::min)(at + o.window, ids.size()), ids.size());
  }
  model.rewind(0);
  if (reference != nullptr) {
    reference->rewind(0);
    r.kl = kl / static_cast<double>(r.tokens);
    r.top1 = static_cast<double>(agreed) / static_cast<double>(r.tokens);
  }
  r.nll = nll / static_cast<double>(r.tokens);
  r.perplexity = std::exp(r.nll);
  return r;
}

}  // namespace quena::inline QUENA_ABI
