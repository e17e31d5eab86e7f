// SPDX-License-Identifier: MIT
// What a token is called: by tokenizers, samplers and models alike.
#pragma once

#include <cstdint>

#include "config.hpp"

namespace quena::inline QUENA_ABI {

/// An index into the vocabulary. Negative ones are no token's.
using token_id = std::int32_t;

}  // namespace quena::inline QUENA_ABI
