// SPDX-License-Identifier: MIT
// A stretch of text with its trust: how a chat template tells the tokenizer which control tokens are its own.
#pragma once

#include <string_view>

#include "../core/config.hpp"

namespace quena::inline QUENA_ABI {

/// A part of a longer text. The parts are read as if they were joined, but a special token such as `<|eot_id|>` counts only
/// where all of its bytes lie in parts with `parse_special`: what a user wrote can never become a control token.
struct text_segment {
  std::string_view text;
  bool parse_special = false;
};

}  // namespace quena::inline QUENA_ABI
