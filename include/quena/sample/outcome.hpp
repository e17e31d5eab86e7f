// SPDX-License-Identifier: MIT
// How a generated text ended, and what is said about its tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "sampler.hpp"

namespace quena::inline QUENA_ABI {

enum class finish_reason : std::uint8_t {
  none,       ///< it goes on
  stop,       ///< an end token or a stop string
  length,     ///< max_tokens, or the context is full
  cancelled,  ///< the caller said so
  deadline,   ///< the request's time was over (engine)
  failed,     ///< an error, which is reported beside it (engine)
};

[[nodiscard]] constexpr std::string_view finish_reason_name(finish_reason r) noexcept {
  constexpr std::string_view names[] = {"none", "stop", "length", "cancelled", "deadline", "failed"};
  return names[static_cast<std::size_t>(r)];
}

/// The log-probabilities of one generated token, where sampling_options::n_logprobs asked for them.
struct generated_logprobs {
  float chosen = 0;
  std::vector<token_logprob> top;
};

}  // namespace quena::inline QUENA_ABI
