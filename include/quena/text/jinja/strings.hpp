// SPDX-License-Identifier: MIT
// Python's str operations on text with provenance: strip, split, replace, case, padding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "case_tables.hpp"
#include "runtime.hpp"
#include "search.hpp"

namespace quena::inline QUENA_ABI {
namespace jinja {

enum class sides : std::uint8_t { both, left, right };

/// str.strip and its halves; `chars` null means white space.
inline text strip(const text& t, const value* chars, sides where) {
  const std::string_view s = t.view();
  if (!chars || chars->is_none()) {
    const std::size_t end = where == sides::left ? s.size() : trailing_space(s);
    const std::size_t begin = where == sides::right ? 0 : leading_space(s.substr(0, end));
    return t.slice(begin, end);
  }
  const std::string_view set = chars->view();
  // A character of the set, found as a whole: UTF-8 never matches inside another character.
  const auto in_set = [&](std::string_view c) { return set.find(c) != set.npos; };
  std::size_t begin = 0, end = s.size();
  if (where != sides::right)
    while (begin < end) {
      const std::size_t n = character_length(s, begin);
      if (!in_set(s.substr(begin, n))) break;
      begin += n;
    }
  if (where != sides::left)
    while (end > begin) {
      const std::size_t at = previous_character(s, end);
      if (!in_set(s.substr(at, end - at))) break;
      end = at;
    }
  return t.slice(begin, end);
}

/// str.split(separator, limit): -1 is no limit. Without a separator it splits at runs of white space.
inline std::vector<value> split(runtime& rt, const text& t, const value* separator, std::int64_t limit) {
  const std::string_view s = t.view();
  rt.m.touch(s.size());
  std::vector<value> out;
  std::size_t at = 0;
  if (!separator || separator->is_none()) {
    at = leading_space(s);
    while (at < s.size()) {
      if (limit >= 0 && static_cast<std::int64_t>(out.size()) >= limit) {
        out.push_back(rt.make(t.slice(at, s.size())));
        return out;
      }
      std::size_t end = at;
      while (end < s.size()) {
        const utf8_char c = decode_utf8(s, end);
        if (is_space(c.code_point)) break;
        end += c.n_bytes;
      }
      out.push_back(rt.make(t.slice(at, end)));
      at = end + leading_space(s.substr(end));
    }
    return out;
  }
  const std::string_view by = separator->view();
  if (by.empty()) rt.fail("expected a separator to split by, got an empty string");
  while (limit < 0 || static_cast<std::int64_t>(out.size()) < limit) {
    const std::size_t end = find_text(s, by, at);
    if (end == s.npos) break;
    out.push_back(rt.make(t.slice(at, end)));
    at = end + by.size();
  }
  out.push_back(rt.make(t.slice(at, s.size())));
  return out;
}

/// str.rsplit: from the right, results in order.
inline std::vector<value> rsplit(runtime& rt, const text& t, const value* separator, std::int64_t limit) {
  if (limit < 0) return split(rt, t, separator, -1);
  const std::string_view s = t.view();
  rt.m.touch(s.size());
  std::vector<value> out;
  const bool spaces = !separator || separator->is_none();
  if (!spaces && separator->as_text().empty()) rt.fail("expected a separator to split by, got an empty string");
  std::size_t end = spaces ? trailing_space(s) : s.size();
  while (static_cast<std::int64_t>(out.size()) < limit) {
    if (spaces) {
      std::size_t begin = end;
      while (begin > 0) {
        const std::size_t at = previous_character(s, begin);
        if (is_space(decode_utf8(s, at).code_point)) break;
        begin = at;
      }
      if (begin == end) break;
      out.push_back(rt.make(t.slice(begin, end)));
      end = trailing_space(s.substr(0, begin));
    } else {
      const std::string_view by = separator->view();
      if (by.size() > end) break;
      rt.m.touch(by.size());
      const std::size_t at = s.rfind(by, end - by.size());
      if (at == s.npos) break;
      rt.m.step((end - at) / 16 * (1 + by.size() / 64));  // rfind is not linear; short separators are the rule
      out.push_back(rt.make(t.slice(at + by.size(), end)));
      end = at;
    }
  }
  if (!spaces || end > 0) out.push_back(rt.make(t.slice(0, end)));
  return std::vector<value>(out.rbegin(), out.rend());
}

/// str.splitlines.
inline std::vector<value> split_lines(runtime& rt, const text& t, bool keep_ends) {
  const std::string_view s = t.view();
  std::vector<value> out;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < s.size();) {
    const utf8_char c = decode_utf8(s, at);
    std::size_t after = at + c.n_bytes;
    if (is_line_end(c.code_point)) {
      if (c.code_point == '\r' && after < s.size() && s[after] == '\n') ++after;
      out.push_back(rt.make(t.slice(begin, keep_ends ? after : at)));
      begin = after;
    }
    at = after;
  }
  if (begin < s.size()) out.push_back(rt.make(t.slice(begin, s.size())));
  return out;
}

/// str.replace(old, new, limit): -1 is no limit. An empty `old` inserts before every character and at the end.
inline text replace(runtime& rt, const text& t, const text& old, const text& by, std::int64_t limit) {
  const std::string_view s = t.view();
  rt.m.touch(s.size());
  text out;
  std::size_t at = 0;
  for (std::int64_t done = 0; limit < 0 || done < limit; ++done) {
    if (old.empty()) {
      rt.m.check_text(out.size() + by.size());
      out.append(by);
      if (at >= s.size()) return out;
      const std::size_t n = character_length(s, at);
      out.append(t, at, at + n);
      at += n;
    } else {
      const std::size_t found = find_text(s, old.view(), at);
      if (found == s.npos) break;
      rt.m.check_text(out.size() + (found - at) + by.size());
      out.append(t, at, found);
      out.append(by);
      at = found + old.size();
    }
    rt.m.touch(by.size());
  }
  out.append(t, at, s.size());
  return out;
}

enum class letter_case : std::uint8_t { upper, lower, title, capitalize, swap, fold };

inline bool is_cased(char32_t c) {
  std::string lower, upper, same;
  append_utf8(same, static_cast<std::uint32_t>(c));
  append_lower(lower, c);
  append_upper(upper, c);
  return lower != same || upper != same;
}

inline bool is_upper(char32_t c) {
  std::string lower, same;
  append_utf8(same, static_cast<std::uint32_t>(c));
  append_lower(lower, c);
  return lower != same;
}

/// str.casefold, which differs from lower case for letters like the sharp s.
inline void append_folded(std::string& out, char32_t c) {
  std::string upper;
  if (c == U'\x131') append_utf8(upper, 0x131);  // the dotless i stays itself
  else append_upper(upper, c);
  for_each_character(upper, [&out](char32_t u, std::size_t, std::size_t) { append_lower(out, u); });
}

/// Python's lower case of a capital sigma: final if a letter comes before it and none after.
inline bool is_final_sigma(std::string_view s, std::size_t begin, std::size_t end) {
  const bool before = begin > 0 && classify(decode_utf8(s, previous_character(s, begin)).code_point) == char_class::letter;
  const bool after = end < s.size() && classify(decode_utf8(s, end).code_point) == char_class::letter;
  return before && !after;
}

/// str.upper, lower, title, capitalize, swapcase.
inline text change_case(runtime& rt, const text& t, letter_case to) {
  rt.m.step(1 + t.size() / 16);
  text out;
  out.reserve(t.size());
  bool previous_cased = false, first = true;
  std::string mapped;
  for_each_character(t.view(), [&](char32_t c, std::size_t begin, std::size_t end) {
    mapped.clear();
    bool upper = to == letter_case::upper;
    if (to == letter_case::title) upper = !previous_cased;
    if (to == letter_case::capitalize) upper = first;
    if (to == letter_case::swap) upper = !is_upper(c);
    if (to == letter_case::fold && c >= 0x80) append_folded(mapped, c);
    else if (c == U'\x3a3' && !upper) mapped = is_final_sigma(t.view(), begin, end) ? "\xcf\x82" : "\xcf\x83";
    else if (!upper) append_lower(mapped, c);
    else if (to == letter_case::title || to == letter_case::capitalize) append_title(mapped, c);
    else append_upper(mapped, c);
    if (to == letter_case::title) previous_cased = c < 0x80 ? (c | 32) >= U'a' && (c | 32) <= U'z' : is_cased(c);
    first = false;
    out.append(mapped, t.from_template(begin));
  });
  return out;
}

/// str.center, ljust, rjust with a fill character.
inline text pad(runtime& rt, const text& t, std::int64_t width, std::string_view fill, sides text_side) {
  const std::size_t n = count_characters(t.view());
  rt.m.touch(t.size());
  if (width <= static_cast<std::int64_t>(n)) return t;
  const std::size_t room = static_cast<std::size_t>(width) - n;
  rt.m.check_text(room);
  rt.m.check_text(t.size() + room * fill.size());
  std::size_t left = 0;
  if (text_side == sides::right) left = room;
  if (text_side == sides::both) left = room / 2 + (room & static_cast<std::size_t>(width) & 1);  // where CPython puts the odd one
  text out;
  const auto padding = [&](std::size_t count) {
    std::string s;
    for (std::size_t i = 0; i < count; ++i) s += fill;
    out.append(s, false);
  };
  padding(left);
  out.append(t);
  padding(room - left);
  return out;
}

/// `separator.join(items)` of the items' str() (or of strings only).
inline text join(runtime& rt, const text& separator, const std::vector<value>& items, text (*to_string)(runtime&, const value&)) {
  text out;
  for (std::size_t i = 0; i < items.size(); ++i) {
    rt.m.step();
    if (i) out.append(separator);
    const text piece = to_string(rt, items[i]);
    rt.m.check_text(out.size() + separator.size() + piece.size());
    rt.m.touch(piece.size() + separator.size());
    out.append(piece);
  }
  return out;
}

}  // namespace jinja
}  // namespace quena::inline QUENA_ABI
