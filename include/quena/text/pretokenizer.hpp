// SPDX-License-Identifier: MIT
// Cuts text into the words that byte-pair encoding works on: the known split patterns, as hand-written scanners.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "unicode.hpp"

namespace quena::inline QUENA_ABI {

/// The ways to cut text into words. A pattern that is not known here is an error at load, never a guess.
enum class split_pattern : std::uint8_t {
  none,         ///< the whole text is one word
  gpt2,         ///< 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
  gpt2_digits,  ///< every \p{N} by itself, gpt2 on what lies between
  llama3,       ///< (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
};

/// The scanner for a regular expression as tokenizer.json writes it, or nothing if it is not one of the known ones.
constexpr std::optional<split_pattern> find_split_pattern(std::string_view regex) noexcept {
  if (regex == R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)")
    return split_pattern::llama3;
  if (regex == R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)" ||
      regex == R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)")
    return split_pattern::gpt2;
  return std::nullopt;
}

namespace detail {

inline constexpr auto ascii_class = [] {
  std::array<char_class, 128> a{};
  for (std::uint32_t c = 0; c < a.size(); ++c) a[c] = classify(c);
  return a;
}();

/// The scanners' view of a text: the class and length of the character at a place, and the end of a run of one class.
class word_scanner {
 public:
  explicit constexpr word_scanner(std::string_view text) noexcept : text_(text) {}

  struct look {
    char_class kind;
    std::uint32_t n_bytes;  // 0 at the end of the text
  };

  [[nodiscard]] constexpr look peek(std::size_t at) const noexcept {
    if (at >= text_.size()) return {char_class::space, 0};
    const auto c = static_cast<unsigned char>(text_[at]);
    if (c < 0x80) return {ascii_class[c], 1};
    const utf8_char u = decode_utf8(text_, at);
    return {classify(u.code_point), u.n_bytes};
  }

  [[nodiscard]] constexpr std::size_t skip(char_class kind, std::size_t at) const noexcept {
    for (look l = peek(at); l.n_bytes != 0 && l.kind == kind; l = peek(at)) at += l.n_bytes;
    return at;
  }

  [[nodiscard]] constexpr bool is_newline(std::size_t at) const noexcept {
    return at < text_.size() && (text_[at] == '\n' || text_[at] == '\r');
  }

  [[nodiscard]] constexpr std::size_t skip_newlines(std::size_t at) const noexcept {
    while (is_newline(at)) ++at;
    return at;
  }

  /// Bytes of 's 't 're 've 'm 'll 'd at an apostrophe, 0 if none. `fold` also takes capitals and, as Unicode case folding
  /// has it, U+017F (the long s).
  [[nodiscard]] constexpr std::size_t contraction(std::size_t at, bool fold) const noexcept {
    const auto letter = [&](std::size_t i) {
      const char c = at + i < text_.size() ? text_[at + i] : '\0';
      return fold && c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
    };
    if (text_[at] != '\'') return 0;
    const char a = letter(1), b = letter(2);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return 3;
    if (fold && text_.substr(at + 1, 2) == "\xC5\xBF") return 3;
    return 0;
  }

  /// The end of a word made of white space that starts at `at`: \s+(?!\S)|\s+, that is the run less its last character when
  /// something follows it (that character goes with the next word), but at least one character. With `newlines` the
  /// alternative \s*[\r\n]+ comes first: a run that holds a newline ends after its last one.
  [[nodiscard]] constexpr std::size_t space_word(std::size_t at, bool newlines) const noexcept {
    std::size_t after_newline = 0, last = at, end = at;
    for (look l = peek(end); l.n_bytes != 0 && l.kind == char_class::space; l = peek(end)) {
      last = end;
      end += l.n_bytes;
      if (is_newline(last)) after_newline = end;
    }
    if (newlines && after_newline != 0) return after_newline;
    return end == text_.size() || last == at ? end : last;
  }

  [[nodiscard]] constexpr std::size_t next_gpt2(std::size_t at) const noexcept {
    if (const std::size_t n = contraction(at, false)) return at + n;
    const look here = peek(at);
    if (here.kind != char_class::space) return skip(here.kind, at + here.n_bytes);
    if (const look next = peek(at + 1); text_[at] == ' ' && next.n_bytes != 0 && next.kind != char_class::space)
      return skip(next.kind, at + 1 + next.n_bytes);
    return space_word(at, false);
  }

  [[nodiscard]] constexpr std::size_t next_llama3(std::size_t at) const noexcept {
    const look here = peek(at);
    if (here.kind == char_class::letter) return skip(char_class::letter, at + here.n_bytes);
    if (here.kind == char_class::number) {
      std::size_t end = at + here.n_bytes;
      for (int i = 0; i < 2; ++i)
        if (const look l = peek(end); l.n_bytes != 0 && l.kind == char_class::number) end += l.n_bytes;
      return end;
    }
    if (const std::size_t n = contraction(at, true)) return at + n;
    const std::size_t after = at + here.n_bytes;
    const look next = peek(after);
    if (next.n_bytes != 0 && next.kind == char_class::letter && !is_newline(at))
      return skip(char_class::letter, after + next.n_bytes);
    if (here.kind == char_class::other) return skip_newlines(skip(char_class::other, after));
    if (text_[at] == ' ' && next.n_bytes != 0 && next.kind == char_class::other)
      return skip_newlines(skip(char_class::other, after + next.n_bytes));
    return space_word(at, true);
  }

 private:
  std::string_view text_;
};

}  // namespace detail

/// Calls `word(std::string_view)` for each word of the text, in order; the words joined are the text. Bytes that are not UTF-8
/// count as characters that are neither letter, number nor space.
/// Cost     linear in the text whatever it holds: every byte is looked at a fixed number of times; constant stack.
template <class F>
constexpr void split_words(split_pattern pattern, std::string_view text, F&& word) {
  const auto run = [&word](std::string_view part, auto next) {
    const detail::word_scanner scan(part);
    for (std::size_t at = 0; at < part.size();) {
      const std::size_t end = next(scan, at);
      word(part.substr(at, end - at));
      at = end;
    }
  };
  const auto gpt2 = [](const detail::word_scanner& s, std::size_t at) { return s.next_gpt2(at); };
  switch (pattern) {
    case split_pattern::none:
      if (!text.empty()) word(text);
      return;
    case split_pattern::gpt2: return run(text, gpt2);
    case split_pattern::llama3:
      return run(text, [](const detail::word_scanner& s, std::size_t at) { return s.next_llama3(at); });
    case split_pattern::gpt2_digits: {
      const detail::word_scanner scan(text);
      for (std::size_t at = 0; at < text.size();) {
        std::size_t end = at;
        detail::word_scanner::look l{};
        while ((l = scan.peek(end)).n_bytes != 0 && l.kind != char_class::number) end += l.n_bytes;
        run(text.substr(at, end - at), gpt2);
        if (l.n_bytes != 0) word(text.substr(end, l.n_bytes));
        at = end + l.n_bytes;
      }
      return;
    }
  }
}

}  // namespace quena::inline QUENA_ABI
