// SPDX-License-Identifier: MIT
// Which process this is.
#pragma once

#ifdef _WIN32
#include <process.h>
#else
#include <unistd.h>
#endif

#include "config.hpp"

namespace quena::inline QUENA_ABI {
namespace detail {

/// Another number after fork().
inline long process_id() noexcept {
#ifdef _WIN32
  return _getpid();
#else
  return ::getpid();
#endif
}

}  // namespace detail
}  // namespace quena::inline QUENA_ABI
