// SPDX-License-Identifier: MIT
// Finding a substring in linear time, whatever the two strings are.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "../../core/config.hpp"

namespace quena::inline QUENA_ABI {
namespace jinja {

/// First position of `needle` in `hay` at or after `from`, or npos. Short needles use the library's search; long ones Knuth,
/// Morris and Pratt's (1977), since a template can make both strings as bad as it likes.
inline std::size_t find_text(std::string_view hay, std::string_view needle, std::size_t from = 0) {
  if (needle.size() <= 16 || from + needle.size() > hay.size()) return hay.find(needle, from);
  std::vector<std::size_t> border(needle.size(), 0);
  for (std::size_t i = 1, k = 0; i < needle.size(); ++i) {
    while (k > 0 && needle[i] != needle[k]) k = border[k - 1];
    if (needle[i] == needle[k]) ++k;
    border[i] = k;
  }
  for (std::size_t i = from, k = 0; i < hay.size(); ++i) {
    while (k > 0 && hay[i] != needle[k]) k = border[k - 1];
    if (hay[i] == needle[k]) ++k;
    if (k == needle.size()) return i + 1 - k;
  }
  return std::string_view::npos;
}

}  // namespace jinja
}  // namespace quena::inline QUENA_ABI
