// SPDX-License-Identifier: MIT
// Takes bytes off the front of a string without an allocation.
#pragma once

#include <cstddef>
#include <cstring>
#include <string>

#include "config.hpp"

namespace quena::inline QUENA_ABI::detail {

/// Removes the first n <= s.size() bytes and keeps the capacity. (string::erase allocates with clang 14 and libstdc++ 12 in C++23.)
inline void drop_front(std::string& s, std::size_t n) {
  const std::size_t n_left = s.size() - n;
  std::memmove(s.data(), s.data() + n, n_left);
  s.resize(n_left);
}

}  // namespace quena::inline QUENA_ABI::detail
