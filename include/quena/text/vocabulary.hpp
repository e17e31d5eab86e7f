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
#include "../core/token.hpp"

namespace quena::inline QUENA_ABI {

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

inline constexpr std::uint64_t hash_factor = 0x9E3779B97F4A7C15u;

/// A number for a byte string: of up to 8 bytes the bytes themselves, so that equal numbers (and lengths) mean equal strings; of
/// more a hash, which is not meant to withstand an adversary (see max_probes).
inline std::uint64_t number_of_bytes(std::string_view s) noexcept {
  const auto load = [&s](std::size_t at, std::size_t n) {
    std::uint64_t v = 0;
    std::memcpy(&v, s.data() + at, n);
    return v;
  };
  const std::size_t n = s.size();
  if (n > 8) {
    std::uint64_t h = load(n - 8, 8);
    for (std::size_t at = 0; at + 8 < n; at += 8) {
      h = (h ^ load(at, 8)) * hash_factor;
      h ^= h >> 29;
    }
    return h;
  }
  if (n == 8) return load(0, 8);
  if (n >= 4) return load(0, 4) | load(n - 4, 4) << 32;  // these may overlap
  if (n == 0) return 0;
  return load(0, 1) | load(n / 2, 1) << 8 | load(n - 1, 1) << 16;
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

  /// Errors   malformed: an id or a searchable text given twice, a negative id, numbering with holes out of proportion.
  vocabulary(token_list list, std::string_view where, std::string_view file) : bytes_(std::move(list.bytes)) {
    if (bytes_.size() > (std::numeric_limits<std::uint32_t>::max)())
      fail(errc::unsupported, where, "expected at most 4 GiB of token texts, got more", file);
    token_id top = -1;
    for (const token_list::item& t : list.items) {
      if (t.id < 0) fail(errc::malformed, where, {"expected token ids of 0 or more, got ", t.id}, file);
      top = t.id > top ? t.id : top;
    }
    // Holes are allowed (some models reserve ids), but the table must stay in proportion to the file.
    if (static_cast<std::size_t>(top) + 1 > 16 * list.items.size() + 4096 && top >= 0)
      fail(errc::malformed, where, {"expected token ids near the number of tokens, ", list.items.size(), ", got id ", top}, file);
    entries_.resize(static_cast<std::size_t>(top + 1));
    slots_.resize(hash_capacity(list.items.size()));
    for (const token_list::item& t : list.items) {
      entry& e = entries_[static_cast<std::size_t>(t.id)];
      const std::string_view text(bytes_.data() + t.offset, t.length);
      if (e.kind != token_kind::absent)
        fail(errc::malformed, where, {"expected one token per id, got id ", t.id, " for '", shortened(bytes(t.id)), "' and for '", shortened(text), "'"}, file);
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
    const std::uint64_t number = number_of_bytes(text);
    for (std::size_t i = start(number, text.size());; i = (i + 1) & (slots_.size() - 1)) {
      const slot& s = slots_[i];
      if (s.id == no_token) return no_token;
      if (is(s, number, text)) return s.id;
    }
  }

 private:
  struct entry {
    std::uint32_t offset = 0, length = 0;
    token_kind kind = token_kind::absent;
  };
  struct slot {
    std::uint64_t number = 0;
    std::uint32_t length = 0;
    token_id id = no_token;
  };

  /// Short words are told apart by the slot alone: one access to memory.
  [[nodiscard]] bool is(const slot& s, std::uint64_t number, std::string_view text) const noexcept {
    return s.number == number && s.length == text.size() && (text.size() <= 8 || bytes(s.id) == text);
  }
  [[nodiscard]] std::size_t start(std::uint64_t number, std::size_t length) const noexcept {
    const std::uint64_t h = (number ^ length << 56) * hash_factor;
    return (h ^ h >> 32) & (slots_.size() - 1);
  }

  void insert(std::string_view text, token_id id, std::string_view where, std::string_view file) {
    const std::uint64_t number = number_of_bytes(text);
    std::size_t i = start(number, text.size());
    for (std::size_t probes = 0; slots_[i].id != no_token; ++probes, i = (i + 1) & (slots_.size() - 1)) {
      if (is(slots_[i], number, text))
        fail(errc::malformed, where, {"expected each token once, got '", shortened(text), "' as ", slots_[i].id, " and as ", id}, file);
      if (probes > max_probes) fail(errc::malformed, where, "expected token texts that differ at random, got far too many alike", file);
    }
    slots_[i] = {number, static_cast<std::uint32_t>(text.size()), id};
  }

  std::string bytes_;
  std::vector<entry> entries_;
  std::vector<slot> slots_;
  std::size_t count_ = 0, longest_ = 0;
};

}  // namespace detail
}  // namespace quena::inline QUENA_ABI
