// SPDX-License-Identifier: MIT
// Ends a stream of text at the first of several stop strings, wherever the pieces of the stream are cut.
#pragma once

#include "../core/drop_front.hpp"
#include "../core/error.hpp"

#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quena::inline QUENA_ABI {

/// Passes text through until a stop string occurs in it.
///
/// Result   That of the whole text at once: the occurrence that starts earliest ends it; of several that start there, the
///          shortest. What is delivered is the text before it and, if asked for, the stop string itself; nothing after it.
/// Streaming  Only a suffix that is a proper prefix of a stop string is held back. When one stop string is complete inside the
///          unfinished beginning of a longer one that started before it, stopped() waits until that one is decided too (with
///          the stops "abcd" and "c", "abc" ends as "" or as "ab", depending on what follows).
/// Bytes    Text is bytes; where text and stop strings are valid UTF-8, so is each delivered piece if each pushed one is.
/// Errors   [stop] an empty stop string -> quena::error, errc::invalid_argument.
/// Cost     O(bytes * number of stop strings), amortised (Knuth, Morris & Pratt 1977). No allocation once the buffer has
///          grown to the longest piece.
class stop_matcher {
 public:
  static constexpr std::size_t none = (std::numeric_limits<std::size_t>::max)();

  stop_matcher() = default;  ///< no stop strings: everything passes

  explicit stop_matcher(std::span<const std::string> stops, bool include_stop = false) : include_(include_stop) {
    std::size_t longest = 0;
    patterns_.reserve(stops.size());
    for (std::size_t i = 0; i < stops.size(); ++i) {
      if (stops[i].empty())
        fail(errc::invalid_argument, "stop", {"stop[", i, "]: expected at least one byte, got an empty string"});
      longest = stops[i].size() > longest ? stops[i].size() : longest;
      patterns_.emplace_back(stops[i]);
    }
    buffer_.reserve(2 * longest + 256);
  }

  /// The part of the text so far that can be delivered now; valid until the next call. After the stop: nothing.
  std::string_view push(std::string_view piece) {
    if (stopped_) return {};
    if (patterns_.empty()) return piece;
    forget_delivered();
    buffer_.append(piece);
    for (const char c : piece) {
      step(c);
      if (match_begin_ != none && earliest_open() >= match_begin_) return stop();
    }
    return deliver(earliest_open());  // nothing before it can become part of a stop string; a match, if any, is behind it
  }

  /// The end of the stream: whatever was held back and is not part of a stop string after all.
  std::string_view flush() {
    if (stopped_) return {};
    if (match_begin_ != none) return stop();
    const std::string_view rest = deliver(end_);
    for (pattern& p : patterns_) p.matched = 0;
    return rest;
  }

  /// True once a stop string has ended the text.
  [[nodiscard]] bool stopped() const noexcept { return stopped_; }
  /// Index of the stop string that did; none before that.
  [[nodiscard]] std::size_t which() const noexcept { return stopped_ ? match_ : none; }

  /// Back to the start of a new text; keeps the stop strings and the memory.
  void reset() noexcept {
    for (pattern& p : patterns_) p.matched = 0;
    buffer_.clear();
    begin_ = end_ = delivered_ = 0;
    match_begin_ = match_ = none;
    stopped_ = false;
  }

 private:
  struct pattern {
    std::string text;
    std::vector<std::size_t> border;  // border[i]: length of the longest proper border of the first i + 1 bytes
    std::size_t matched = 0;          // the longest proper prefix of text that the stream ends with

    explicit pattern(std::string_view stop) : text(stop), border(stop.size()) {
      for (std::size_t i = 1, n = 0; i < text.size(); ++i) {
        while (n > 0 && text[i] != text[n]) n = border[n - 1];
        if (text[i] == text[n]) ++n;
        border[i] = n;
      }
    }

    /// Takes one byte; true when the stream now ends with the whole text.
    bool advance(char c) noexcept {
      while (matched > 0 && text[matched] != c) matched = border[matched - 1];
      if (text[matched] != c) return false;
      if (++matched < text.size()) return false;
      matched = 0;  // only what started before this match still matters
      return true;
    }
  };

  void step(char c) noexcept {
    ++end_;
    for (std::size_t i = 0; i < patterns_.size(); ++i) {
      if (!patterns_[i].advance(c)) continue;
      const std::size_t begin = end_ - patterns_[i].text.size();
      if (match_begin_ == none || begin < match_begin_) {  // an equal start came first and is shorter
        match_begin_ = begin;
        match_ = i;
      }
    }
  }

  /// Where the earliest unfinished beginning of a stop string starts; end_ when there is none.
  [[nodiscard]] std::size_t earliest_open() const noexcept {
    std::size_t longest = 0;
    for (const pattern& p : patterns_) longest = p.matched > longest ? p.matched : longest;
    return end_ - longest;
  }

  std::string_view stop() {
    stopped_ = true;
    return deliver(match_begin_ + (include_ ? patterns_[match_].text.size() : 0));
  }

  /// The bytes not yet delivered up to `until`, an offset in the stream.
  std::string_view deliver(std::size_t until) noexcept {
    const std::string_view piece(buffer_.data() + (delivered_ - begin_), until - delivered_);
    delivered_ = until;
    return piece;
  }

  /// Drops delivered bytes once they are half of the buffer, so that each byte is moved once on average. What is left was held
  /// back: shorter than the longest stop string.
  void forget_delivered() {
    if (2 * (delivered_ - begin_) < buffer_.size()) return;
    detail::drop_front(buffer_, delivered_ - begin_);
    begin_ = delivered_;
  }

  std::vector<pattern> patterns_;
  bool include_ = false;
  std::string buffer_;  // bytes [begin_, end_) of the stream
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::size_t delivered_ = 0;  // bytes before this offset were delivered
  std::size_t match_begin_ = none;
  std::size_t match_ = none;
  bool stopped_ = false;
};

}  // namespace quena::inline QUENA_ABI
