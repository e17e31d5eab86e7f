// SPDX-License-Identifier: MIT
// What the readers of tokenizer files fill in and the tokenizer works from.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../core/error.hpp"
#include "added_tokens.hpp"
#include "bpe.hpp"
#include "pretokenizer.hpp"
#include "vocabulary.hpp"

namespace quena::inline QUENA_ABI {
namespace detail {

/// U+2581, which SentencePiece vocabularies write for a space. Our tables hold the space itself.
inline constexpr std::string_view sentencepiece_space = "\xE2\x96\x81";

/// When a SentencePiece tokenizer puts a space in front of the text.
enum class space_prefix : std::uint8_t { never, first, always };

struct tokenizer_data {
  std::string file;         // for messages
  bool byte_level = false;  // words are bytes (Llama 3); otherwise characters with byte fallback (Llama 2)
  vocabulary vocab;
  merge_table merges;
  std::array<token_id, 256> byte_ids{};  // filled by find_bytes
  bool ignore_merges = false;            // a word that is a token is taken as it is

  split_pattern split = split_pattern::none;           // byte level
  space_prefix prefix = space_prefix::never;           // SentencePiece, as are the next six
  bool prefix_unless_space = false;                    // no prefix where the text starts with a space already
  bool strip_space = false;                            // decoding drops one space at the very start
  std::optional<token_id> unknown;                     // for a character that has neither token nor bytes
  bool fuse_unknown = false;                           // neighbouring unknowns become one
  bool cut_at_spaces = false;                          // no token has a space after another character: words can be cut there
  bool cut_at_every_space = false;                     // the file wants a word to start at each space

  added_token_matcher added, added_normalized;         // matched before and after the normalizer
  std::vector<token_id> first_ids, last_ids;           // what the file wants around a text
  std::optional<token_id> bos;
  std::vector<token_id> eos;
};

/// Appends what a byte-level vocabulary's text stands for: each of 256 characters is a byte. A text with any other character
/// stands for itself.
///   "Ġthe" -> " the"
/// Returns  false in that case: no text to be encoded leads to such a token.
/// Source   Radford et al. 2019 (GPT-2): printable Latin-1 stands for itself, the other bytes for U+0100, U+0101, … in order.
inline bool append_byte_level(std::string_view text, std::string& out) {
  constexpr auto is_plain = [](std::uint32_t b) { return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF); };
  constexpr auto others = [is_plain] {
    std::array<std::uint8_t, 68> a{};
    std::size_t n = 0;
    for (std::uint32_t b = 0; b < 256; ++b)
      if (!is_plain(b)) a[n++] = static_cast<std::uint8_t>(b);
    return a;
  }();
  const std::size_t start = out.size();
  for (std::size_t at = 0; at < text.size();) {
    const utf8_char c = decode_utf8(text, at);
    at += c.n_bytes;
    std::uint32_t b = c.code_point;
    if (b >= 0x100 && b < 0x100 + others.size()) {
      b = others[b - 0x100];
    } else if (!c.valid || b > 0xFF || !is_plain(b)) {
      out.resize(start);
      out.append(text);
      return false;
    }
    out.push_back(static_cast<char>(static_cast<unsigned char>(b)));
  }
  return true;
}

/// Appends the text with a space for every U+2581.
inline void append_with_spaces(std::string_view text, std::string& out) {
  for (std::size_t at = 0;;) {
    const std::size_t found = text.find(sentencepiece_space, at);
    out.append(text.substr(at, found == text.npos ? text.npos : found - at));
    if (found == text.npos) return;
    out.push_back(' ');
    at = found + sentencepiece_space.size();
  }
}

/// Appends the bytes that a token's text in a file stands for.
/// Returns  whether the encoder can come by such a token: in a SentencePiece file that needs U+2581 for every space.
inline bool append_token_bytes(const tokenizer_data& d, std::string_view text, std::string& out) {
  if (d.byte_level) return append_byte_level(text, out);
  append_with_spaces(text, out);
  return text.find(' ') == text.npos;
}

/// An added token by its text, or another by its bytes, or no_token.
inline token_id find_token(const tokenizer_data& d, std::string_view text, std::string_view bytes) {
  const added_token* t = d.added.find(text);
  if (t == nullptr) t = d.added_normalized.find(bytes);
  if (t == nullptr && !d.byte_level) t = d.added_normalized.find(" " + std::string(bytes));  // as a normalizer with a prefix leaves it
  return t != nullptr ? t->id : d.vocab.find(bytes);
}

/// Adds merge number `rank` of the tokens written `left` and `right` in the file.
/// Errors   malformed: they or what they make are not in the vocabulary.
inline void add_written_merge(tokenizer_data& d, std::string_view left, std::string_view right, std::size_t rank, std::string& buffer) {
  buffer.clear();
  append_token_bytes(d, left, buffer);
  const std::size_t middle = buffer.size();
  append_token_bytes(d, right, buffer);
  const std::string_view joined = buffer;
  const token_id a = d.vocab.find(joined.substr(0, middle)), b = d.vocab.find(joined.substr(middle)), made = d.vocab.find(joined);
  if (a == no_token || b == no_token || made == no_token)
    fail(errc::malformed, "tokenizer", {"merges: expected merges of tokens in the vocabulary, got number ", rank, ", which makes '", shortened(joined), "'"}, d.file);
  d.merges.add(a, b, {static_cast<std::uint32_t>(rank), made}, "tokenizer", d.file);
}

/// The two sides of a merge written "a b", or nothing.
constexpr std::optional<std::pair<std::string_view, std::string_view>> split_merge(std::string_view text) noexcept {
  const std::size_t space = text.find(' ');
  if (space == text.npos || text.find(' ', space + 1) != text.npos) return std::nullopt;
  return std::pair(text.substr(0, space), text.substr(space + 1));
}

/// Fills byte_ids: at byte level the one-byte tokens; with byte fallback the tokens `<0xNN>`, which `fallback` lists.
inline void find_bytes(tokenizer_data& d, const std::array<token_id, 256>& fallback) {
  d.byte_ids = fallback;
  if (!d.byte_level) return;
  for (std::size_t b = 0; b < 256; ++b) {
    const char c = static_cast<char>(static_cast<unsigned char>(b));
    d.byte_ids[b] = d.vocab.find(std::string_view(&c, 1));
  }
}

/// Finds out whether SentencePiece words can be cut in front of each space without changing the result.
inline void find_cuts(tokenizer_data& d) {
  if (d.byte_level || d.vocab.find(" ") == no_token) return;
  for (std::size_t i = 0; i < d.vocab.size(); ++i) {
    const auto id = static_cast<token_id>(i);
    const std::string_view t = d.vocab.bytes(id);
    for (std::size_t k = 1; k < t.size(); ++k)
      if (t[k] == ' ' && t[k - 1] != ' ') return;
  }
  d.cut_at_spaces = true;
}

/// The value of a token `<0xNN>`, or nothing.
constexpr std::optional<std::uint8_t> byte_fallback_value(std::string_view text) noexcept {
  if (text.size() != 6 || text.substr(0, 3) != "<0x" || text[5] != '>') return std::nullopt;
  unsigned value = 0;
  for (const char c : text.substr(3, 2)) {
    if (c >= '0' && c <= '9')
      value = value * 16 + static_cast<unsigned>(c - '0');
    else if (c >= 'A' && c <= 'F')
      value = value * 16 + static_cast<unsigned>(c - 'A' + 10);
    else
      return std::nullopt;
  }
  return static_cast<std::uint8_t>(value);
}

}  // namespace detail
}  // namespace quena::inline QUENA_ABI
