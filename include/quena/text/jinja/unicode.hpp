// SPDX-License-Identifier: MIT
// Code points as Python's str methods see them: white space, line ends, UTF-8 walking.
#pragma once

#include <cstddef>
#include <string_view>

#include "../unicode.hpp"

namespace quena::inline QUENA_ABI {
namespace jinja {

/// Length in bytes of the character that starts at s[at] (which must exist). What is not UTF-8 counts as characters too, so that
/// any input can be walked.
inline std::size_t character_length(std::string_view s, std::size_t at) noexcept { return decode_utf8(s, at).n_bytes; }

/// str.isspace: the property White_Space and the four information separators.
inline bool is_space(char32_t c) noexcept {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x1f);
  return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
         c == 0x205f || c == 0x3000;
}

/// Where str.splitlines splits.
inline bool is_line_end(char32_t c) noexcept {
  return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

inline bool is_ascii(std::string_view s) noexcept {
  for (const char c : s)
    if (static_cast<unsigned char>(c) >= 0x80) return false;
  return true;
}

/// Calls f(code point, begin, end) for every character.
template <class F>
void for_each_character(std::string_view s, F&& f) {
  for (std::size_t at = 0; at < s.size();) {
    const utf8_char c = decode_utf8(s, at);
    f(static_cast<char32_t>(c.code_point), at, at + c.n_bytes);
    at += c.n_bytes;
  }
}

inline std::size_t count_characters(std::string_view s) noexcept {
  std::size_t count = 0;
  for (std::size_t at = 0; at < s.size(); at += character_length(s, at)) ++count;
  return count;
}

/// Byte position of character number `index` (or the end).
inline std::size_t byte_offset(std::string_view s, std::size_t index) noexcept {
  std::size_t at = 0;
  for (; index > 0 && at < s.size(); --index) at += character_length(s, at);
  return at;
}

/// Length of the white space (as is_space) at the start of `s`, and the offset where it begins at the end of `s`.
inline std::size_t leading_space(std::string_view s) noexcept {
  std::size_t at = 0;
  while (at < s.size()) {
    const utf8_char c = decode_utf8(s, at);
    if (!is_space(c.code_point)) break;
    at += c.n_bytes;
  }
  return at;
}
/// Start of the last character of s[0, end), end > 0.
inline std::size_t previous_character(std::string_view s, std::size_t end) noexcept {
  for (std::size_t n = 1; n <= 4 && n <= end; ++n)
    if (const utf8_char c = decode_utf8(s.substr(0, end), end - n); c.valid && c.n_bytes == n) return end - n;
  return end - 1;
}
inline std::size_t trailing_space(std::string_view s) noexcept {
  std::size_t end = s.size();
  while (end > 0) {
    const std::size_t at = previous_character(s, end);
    if (!is_space(decode_utf8(s.substr(0, end), at).code_point)) break;
    end = at;
  }
  return end;
}

}  // namespace jinja
}  // namespace quena::inline QUENA_ABI
