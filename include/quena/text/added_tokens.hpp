// SPDX-License-Identifier: MIT
// Finds the tokens that are matched in the text itself, before any splitting: `<|eot_id|>` and the like.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../core/error.hpp"
#include "../io/sort_by_name.hpp"
#include "vocabulary.hpp"

namespace quena::inline QUENA_ABI {
namespace detail {

/// A token that is matched literally. The strips let it take the white space beside it along.
struct added_token {
  std::string text;
  token_id id = no_token;
  bool special = false;
  bool lstrip = false, rstrip = false;
  bool normalized = false;  // matched after the normalizer has run, not before
};

/// Matches many literal strings at a place, the longest first, among those that the caller allows.
class added_token_matcher {
 public:
  static constexpr std::size_t max_length = 1024;  // bounds the work per place

  added_token_matcher() = default;

  /// Errors   malformed: an empty text, one text twice; unsupported: one longer than max_length.
  added_token_matcher(std::vector<added_token> tokens, std::string_view where, std::string_view file) : tokens_(std::move(tokens)) {
    sort_by_name(tokens_, [](const added_token& t) { return std::string_view(t.text); });
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      const std::string& text = tokens_[i].text;
      if (text.empty()) fail(errc::malformed, where, {"expected added tokens with some content, got an empty one, id ", tokens_[i].id}, file);
      if (text.size() > max_length)
        fail(errc::unsupported, where, {"expected added tokens of at most 1024 bytes, got ", text.size()}, file);
      if (i > 0 && tokens_[i - 1].text == text)
        fail(errc::malformed, where, {"expected each added token once, got '", shortened(text), "' twice"}, file);
      const auto first = static_cast<unsigned char>(text[0]);
      (tokens_[i].special ? specials_ : plain_)[first] = true;
      has_plain_ = has_plain_ || !tokens_[i].special;
      if (first_[first].second == 0) first_[first].first = i;
      first_[first].second = i + 1;
    }
  }

  [[nodiscard]] const std::vector<added_token>& tokens() const noexcept { return tokens_; }
  [[nodiscard]] bool has_plain() const noexcept { return has_plain_; }

  /// The token with exactly this text, or null.
  [[nodiscard]] const added_token* find(std::string_view text) const noexcept {
    const auto it = std::lower_bound(tokens_.begin(), tokens_.end(), text, [](const added_token& t, std::string_view s) { return t.text < s; });
    return it != tokens_.end() && it->text == text ? &*it : nullptr;
  }

  /// True if a token could start with this byte.
  [[nodiscard]] bool starts(char c, bool specials) const noexcept {
    const auto b = static_cast<unsigned char>(c);
    return plain_[b] || (specials && specials_[b]);
  }

  /// The longest token that `text` begins with and that `allowed(token)` lets pass, or null.
  /// Cost     one binary search per byte of the longest candidate.
  template <class Allowed>
  [[nodiscard]] const added_token* match(std::string_view text, Allowed&& allowed) const {
    if (text.empty()) return nullptr;
    auto [low, high] = first_[static_cast<unsigned char>(text[0])];  // the sorted tokens that share the bytes up to `depth`
    const added_token* best = nullptr;
    for (std::size_t depth = 1; low < high; ++depth) {
      if (tokens_[low].text.size() == depth) {  // the shortest sorts first
        if (allowed(tokens_[low])) best = &tokens_[low];
        ++low;
      }
      if (depth == text.size()) break;
      const auto at = [this](std::size_t i) { return tokens_.begin() + static_cast<std::ptrdiff_t>(i); };
      const auto byte = static_cast<unsigned char>(text[depth]);
      const auto key = [depth](const added_token& t) { return static_cast<unsigned char>(t.text[depth]); };
      const auto from = std::partition_point(at(low), at(high), [&](const added_token& t) { return key(t) < byte; });
      const auto to = std::partition_point(from, at(high), [&](const added_token& t) { return key(t) == byte; });
      low = static_cast<std::size_t>(from - tokens_.begin());
      high = static_cast<std::size_t>(to - tokens_.begin());
    }
    return best;
  }

 private:
  std::vector<added_token> tokens_;
  bool has_plain_ = false;
  std::array<bool, 256> plain_{}, specials_{};
  std::array<std::pair<std::size_t, std::size_t>, 256> first_{};  // by first byte: range in tokens_
};

}  // namespace detail
}  // namespace quena::inline QUENA_ABI
