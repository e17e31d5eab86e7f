// SPDX-License-Identifier: MIT
// The table of tokens: id -> bytes and kind, bytes -> id.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "../core/error.hpp"

namespace quena::inline v0 {

/// A token's number. Negative ones are never valid.
using token_id = std::int32_t;

namespace detail {

inline constexpr token_id no_token = -1;

/// What kind of thing an id stands for.
enum class token_kind : std::uint8_t {
  absent,   // a hole in the numbering
  normal,   // an ordinary piece of text
  byte,     // one raw byte, used where no token has the character
  added,    // matched in any text, before everything else
  special,  // matched only where special tokens are asked for
};

/// A spread hash of a short byte string; not meant to withstand an adversary (see find_slot's bound).
inline std::uint64_t hash_bytes(std::string_view s) noexcept {
  constexpr std::uint64_t k = 0x9E3779B97F4A7C15u;
  const auto load = [&s](std::size_t at, std::size_t n) {
    std::uint64_t v = 0;
    std::memcpy(&v, s.data() + at, n);
    return v;
  };
  std::uint64_t h = s.size() * k;
  const auto mix = [&h](std::uint64_t v) {
    h = (h ^ v) * k;
    h ^= h >> 29;
  };
  std::size_t at = 0;
  for (; s.size() - at > 8; at += 8) mix(load(at, 8));
  const std::size_t rest = s.size() - at;
  if (rest >= 4)
    mix(load(at, 4) | load(s.size() - 4, 4) << 32);  // the two may overlap: the length is in the hash already
  else if (rest > 0)
    mix(load(at, 1) | load(at + rest / 2, 1) << 8 | load(s.size() - 1, 1) << 16);
  return h ^ h >> 32;
}

/// How far a probe may go: a file whose keys are made to collide is refused instead of taking quadratic time.
inline constexpr std::size_t max_probes = 1024;

/// A power of two of at least twice `n`.
constexpr std::size_t hash_capacity(std::size_t n) noexcept {
  std::size_t c = 16;
  while (c < 2 * n) c *= 2;
  return c;
}

/// Tokens as a file lists them, in any order; input of vocabulary.
struct token_list {
  struct item {
    std::size_t offset;
    std::uint32_t length;
    token_id id;
    token_kind kind;
    bool searchable;  // find() gives it
  };
  std::string bytes;
  std::vector<item> items;

  void add(std::string_view text, token_id id, token_kind kind, bool searchable) {
    items.push_back({bytes.size(), static_cast<std::uint32_t>(text.size()), id, kind, searchable});
    bytes.append(text);
  }
};

/// Immutable once built; all texts lie in one block of memory.
class vocabulary {
 public:
  vocabulary() = default;

  /// Errors   malformed: an id given twice, a negative id, numbering with holes out of proportion; the first of two equal texts
  ///          is the one that find() gives.
  vocabulary(token_list list, std::string_view where, std::string_view file) : bytes_(std::move(list.bytes)) {
    if (bytes_.size() > std::numeric_limits<std::uint32_t>::max())
      fail(errc::unsupported, where, "expected at most 4 GiB of token texts, got more", file);
    token_id top = -1;
    for (const token_list::item& t : list.items) {
      if (t.id < 0) fail(errc::malformed, where, "expected token ids of 0 or more, got " + std::to_string(t.id), file);
      top = t.id > top ? t.id : top;
    }
    // Holes are allowed (some models reserve ids), but the table must stay in proportion to the file.
    if (static_cast<std::size_t>(top) + 1 > 16 * list.items.size() + 4096 && top >= 0)
      fail(errc::malformed, where, "expected token ids near the number of tokens, " + std::to_string(list.items.size()) + ", got id " +
           std::to_string(top), file);
    entries_.resize(static_cast<std::size_t>(top + 1));
    slots_.resize(hash_capacity(list.items.size()));
    for (const token_list::item& t : list.items) {
      entry& e = entries_[static_cast<std::size_t>(t.id)];
      const std::string_view text(bytes_.data() + t.offset, t.length);
      if (e.kind != token_kind::absent)
        fail(errc::malformed, where, "expected one token per id, got id " + std::to_string(t.id) + " for '" +
             shortened(bytes(t.id)) + "' and for '" + shortened(text) + "'", file);
      e = {static_cast<std::uint32_t>(t.offset), t.length, t.kind};
      ++count_;
      if (!t.searchable || t.length == 0) continue;
      if (t.length > longest_) longest_ = t.length;
      insert(text, t.id, where, file);
    }
  }

  /// One more than the largest id.
  [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }
  /// How many ids stand for a token.
  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  /// Bytes of the longest searchable token.
  [[nodiscard]] std::size_t longest() const noexcept { return longest_; }

  [[nodiscard]] token_kind kind(token_id id) const noexcept {
    return id >= 0 && static_cast<std::size_t>(id) < entries_.size() ? entries_[static_cast<std::size_t>(id)].kind : token_kind::absent;
  }
  void set_kind(token_id id, token_kind kind) noexcept { entries_[static_cast<std::size_t>(id)].kind = kind; }

  /// What the token stands for in text; empty for a hole. `id` < size().
  [[nodiscard]] std::string_view bytes(token_id id) const noexcept {
    const entry& e = entries_[static_cast<std::size_t>(id)];
    return {bytes_.data() + e.offset, e.length};
  }

  /// The searchable token with exactly this text, or no_token.
  [[nodiscard]] token_id find(std::string_view text) const noexcept {
    if (text.size() > longest_ || text.empty()) return no_token;
    const std::uint64_t h = hash_bytes(text);
    for (std::size_t i = h & (slots_.size() - 1);; i = (i + 1) & (slots_.size() - 1)) {
      const slot& s = slots_[i];
      if (s.id == no_token) return no_token;
      if (s.tag == static_cast<std::uint32_t>(h >> 32) && bytes(s.id) == text) return s.id;
    }
  }

 private:
  struct entry {
    std::uint32_t offset = 0, length = 0;
    token_kind kind = token_kind::absent;
  };
  struct slot {
    std::uint32_t tag = 0;
    token_id id = no_token;
  };

  void insert(std::string_view text, token_id id, std::string_view where, std::string_view file) {
    const std::uint64_t h = hash_bytes(text);
    std::size_t i = h & (slots_.size() - 1);
    for (std::size_t probes = 0; slots_[i].id != no_token; ++probes, i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].tag == static_cast<std::uint32_t>(h >> 32) && bytes(slots_[i].id) == text) return;
      if (probes > max_probes) fail(errc::malformed, where, "expected token texts that differ at random, got far too many alike", file);
    }
    slots_[i] = {static_cast<std::uint32_t>(h >> 32), id};
  }

  std::string bytes_;
  std::vector<entry> entries_;
  std::vector<slot> slots_;
  std::size_t count_ = 0, longest_ = 0;
};

}  // namespace detail
}  // namespace quena::inline v0
