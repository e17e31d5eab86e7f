// SPDX-License-Identifier: MIT
// UTF-8 from untrusted bytes, and the few character classes that tokenizers split by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "unicode_tables.hpp"

namespace quena::inline QUENA_ABI {

/// One character of a byte string, or one stretch of bytes that is none.
struct utf8_char {
  std::uint32_t code_point;  ///< U+FFFD if invalid
  std::uint32_t n_bytes;     ///< how many bytes it takes; 0 only at the end of the text
  bool valid;
  bool truncated;  ///< invalid, but only because the text ends: more bytes could complete it
};

/// Decodes the character that starts at `at`. What is not UTF-8 (overlong forms, surrogates, values past U+10FFFF, stray bytes) is
/// one invalid character per maximal subpart, as Unicode recommends for replacement by U+FFFD.
/// Errors   none.   Source  The Unicode Standard 16.0, table 3-7 and section 3.9 "U+FFFD Substitution of Maximal Subparts".
constexpr utf8_char decode_utf8(std::string_view text, std::size_t at = 0) noexcept {
  constexpr std::uint32_t replacement = 0xFFFD;
  if (at >= text.size()) return {replacement, 0, false, true};
  const auto byte = [&](std::size_t i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(text[at + i])); };
  const std::uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1, true, false};
  if (lead < 0xC2 || lead > 0xF4) return {replacement, 1, false, false};
  const std::uint32_t n = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte's range shuts out overlong forms, surrogates and values past U+10FFFF.
  const std::uint32_t low = lead == 0xE0 ? 0xA0u : lead == 0xF0 ? 0x90u : 0x80u;
  const std::uint32_t high = lead == 0xED ? 0x9Fu : lead == 0xF4 ? 0x8Fu : 0xBFu;
  std::uint32_t code = lead & (0xFFu >> (n + 1));
  for (std::uint32_t i = 1; i < n; ++i) {
    if (at + i >= text.size()) return {replacement, i, false, true};
    const std::uint32_t b = byte(i);
    if (b < (i == 1 ? low : 0x80u) || b > (i == 1 ? high : 0xBFu)) return {replacement, i, false, false};
    code = code << 6 | (b & 0x3Fu);
  }
  return {code, n, true, false};
}

/// Appends a code point (at most U+10FFFF) as UTF-8.
inline void append_utf8(std::string& out, std::uint32_t code_point) {
  const auto put = [&](std::uint32_t b) { out.push_back(static_cast<char>(static_cast<unsigned char>(b))); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6), put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12), put(0x80 | (code_point >> 6 & 0x3F)), put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18), put(0x80 | (code_point >> 12 & 0x3F)), put(0x80 | (code_point >> 6 & 0x3F)),
        put(0x80 | (code_point & 0x3F));
  }
}

/// True if every byte belongs to a valid character.
constexpr bool is_valid_utf8(std::string_view text) noexcept {
  for (std::size_t at = 0; at < text.size();) {
    const utf8_char c = decode_utf8(text, at);
    if (!c.valid) return false;
    at += c.n_bytes;
  }
  return true;
}

namespace detail {

/// Appends `bytes` to `out` with U+FFFD for what is invalid; stops before a character that only lacks its end.
/// Returns  how many bytes were used: all but at most the last three.
inline std::size_t append_complete_utf8(std::string& out, std::string_view bytes) {
  std::size_t at = 0;
  while (at < bytes.size()) {
    std::size_t plain = at;  // a stretch of valid text is copied at once
    utf8_char c{};
    while (plain < bytes.size() && (c = decode_utf8(bytes, plain)).valid) plain += c.n_bytes;
    out.append(bytes.substr(at, plain - at));
    at = plain;
    if (at == bytes.size() || c.truncated) break;
    append_utf8(out, 0xFFFD);
    at += c.n_bytes;
  }
  return at;
}

}  // namespace detail

/// The text with U+FFFD in place of what is not UTF-8, one per maximal subpart. Valid text comes back unchanged.
inline std::string to_valid_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  if (detail::append_complete_utf8(out, bytes) < bytes.size()) append_utf8(out, 0xFFFD);
  return out;
}

/// What a tokenizer's split pattern can ask of a character: \p{L}, \p{N}, \s, or none of them.
enum class char_class : std::uint8_t { other = 0, letter = 1, number = 2, space = 3 };

/// The class of any code point; unassigned ones and invalid characters are `other`.
/// Cost     two loads.
constexpr char_class classify(std::uint32_t code_point) noexcept {
  if (code_point >= detail::unicode_end) return char_class::other;
  const std::uint64_t word = detail::unicode_classes[detail::unicode_block[code_point >> 8] * 8u + (code_point >> 5 & 7u)];
  return static_cast<char_class>(word >> (code_point % 32 * 2) & 3u);
}

}  // namespace quena::inline QUENA_ABI
