// SPDX-License-Identifier: MIT
// Ids to text while they are made: never half a character, never a delay that is not needed.
#pragma once

#include <string>
#include <string_view>

#include "../core/drop_front.hpp"
#include "tokenizer.hpp"
#include "unicode.hpp"

namespace quena::inline QUENA_ABI {

/// Turns a stream of ids into a stream of valid UTF-8. The pieces joined, with flush()'s, are to_valid_utf8(tokenizer.decode(ids)).
/// Held back is at most the beginning of one character (three bytes); bytes that can't become one come out as U+FFFD at once.
///   stream_decoder s(tokenizer);
///   for (token_id id : ids) std::cout << s.push(id);
///   std::cout << s.flush();
/// The tokenizer must outlive it. One stream, one thread. No allocation per id once the buffer has grown to the longest piece.
class stream_decoder {
 public:
  explicit stream_decoder(const tokenizer& t, decode_options options = {})
      : tokenizer_(&t), options_(options), strip_(t.strips_leading_space() && !options.continues) {}

  /// The text that is certain now; it may be empty and is valid until the next call.
  /// Errors   invalid_argument: an id that is not a token's; the stream stays as it was.
  std::string_view push(token_id id) {
    std::string_view bytes = tokenizer_->token_bytes(id);
    out_.clear();
    if (options_.skip_special && tokenizer_->is_special(id)) return out_;
    if (strip_ && !bytes.empty()) {
      strip_ = false;
      if (bytes[0] == ' ') bytes.remove_prefix(1);
    }
    pending_.append(bytes);
    detail::drop_front(pending_, detail::append_complete_utf8(out_, pending_));
    return out_;
  }

  /// The end of the stream: a character that was begun and not completed comes out as U+FFFD. Afterwards a new text may start.
  std::string_view flush() {
    out_.clear();
    if (!pending_.empty()) append_utf8(out_, 0xFFFD);
    pending_.clear();
    strip_ = tokenizer_->strips_leading_space() && !options_.continues;
    return out_;
  }

 private:
  const tokenizer* tokenizer_;
  decode_options options_;
  bool strip_;           // the first space of the text is yet to be dropped
  std::string pending_;  // the beginning of a character
  std::string out_;
};

}  // namespace quena::inline QUENA_ABI
