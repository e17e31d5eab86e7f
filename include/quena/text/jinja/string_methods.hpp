// SPDX-License-Identifier: MIT
// The methods that strings have in templates.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "access.hpp"
#include "format.hpp"
#include "repr.hpp"
#include "runtime.hpp"
#include "strings.hpp"

namespace quena::inline QUENA_ABI {
namespace jinja {

using string_method = value (*)(runtime&, const value& self, const arguments&);

inline const value& string_argument(runtime& rt, std::string_view who, const value& v) {
  if (v.is_undefined()) rt.use_of_undefined(v);
  if (!v.is_string()) rt.fail({"expected a string for ", who, ", got '", type_name(v), "'"});
  return v;
}
inline const value* optional_string(runtime& rt, std::string_view who, const value* v) {
  return v && !v->is_none() ? &string_argument(rt, who, *v) : nullptr;
}

namespace methods {

template <letter_case To>
value change_case(runtime& rt, const value& self, const arguments& args) {
  bind_nothing(rt, "a change of case", args);
  return rt.make(jinja::change_case(rt, self.as_text(), To));
}

template <sides Where>
value strip(runtime& rt, const value& self, const arguments& args) {
  const auto a = bind(rt, "strip", args, {"chars"});
  const value* chars = optional_string(rt, "strip", a[0]);
  rt.m.step(1 + self.as_text().size() / 64 * (1 + (chars ? chars->as_text().size() : 0)));
  return rt.make(jinja::strip(self.as_text(), chars, Where));
}

template <bool Right>
value split(runtime& rt, const value& self, const arguments& args) {
  const auto a = bind(rt, "split", args, {"sep", "maxsplit"});
  const std::int64_t limit = a[1] ? integer_argument(rt, "split", *a[1]) : -1;
  const value* separator = optional_string(rt, "split", a[0]);
  return rt.make_list(Right ? jinja::rsplit(rt, self.as_text(), separator, limit) : jinja::split(rt, self.as_text(), separator, limit));
}

inline value splitlines(runtime& rt, const value& self, const arguments& args) {
  const auto a = bind(rt, "splitlines", args, {"keepends"});
  rt.m.touch(self.as_text().size());
  return rt.make_list(jinja::split_lines(rt, self.as_text(), a[0] && truthy(*a[0])));
}

/// Byte range of self[start:end] in characters, as find, count, startswith take it. False if start is past the end.
inline bool window(runtime& rt, const text& t, const value* start, const value* end, std::size_t& from, std::size_t& to) {
  from = 0, to = t.size();
  if ((!start || start->is_none()) && (!end || end->is_none())) return true;
  const std::int64_t n = static_cast<std::int64_t>(count_characters(t.view()));
  const auto position = [&](const value* v, std::int64_t fallback) {
    if (!v || v->is_none()) return fallback;
    const std::int64_t i = integer_argument(rt, "a position", *v);
    return i < 0 ? (std::max)(i + n, std::int64_t{0}) : i;
  };
  const std::int64_t a = position(start, 0), b = (std::min)(position(end, n), n);
  if (a > n || a > b) return false;
  from = byte_offset(t.view(), static_cast<std::size_t>(a));
  to = byte_offset(t.view(), static_cast<std::size_t>(b));
  return true;
}

template <bool AtEnd>
value starts_with(runtime& rt, const value& self, const arguments& args) {
  const auto a = bind(rt, "startswith", args, {"prefix", "start", "end"}, 1);
  std::size_t from = 0, to = 0;
  rt.m.step();
  if (!window(rt, self.as_text(), a[1], a[2], from, to)) return value(false);
  const std::string_view s = self.view().substr(from, to - from);
  const auto matches = [&](const value& v) {
    const std::string_view p = string_argument(rt, "startswith or endswith", v).view();
    return p.size() <= s.size() && s.substr(AtEnd ? s.size() - p.size() : 0, p.size()) == p;
  };
  if (a[0]->is(kind::list) && a[0]->as_list().kind_of == flavor::tuple)
    return value(std::any_of(a[0]->as_list().items.begin(), a[0]->as_list().items.end(), matches));
  return value(matches(*a[0]));
}

template <bool Right, bool MustExist>
value find(runtime& rt, const value& self, const arguments& args) {
  const auto a = bind(rt, "find", args, {"sub", "start", "end"}, 1);
  const std::string_view needle = string_argument(rt, "find", *a[0]).view();
  std::size_t from = 0, to = 0, at = std::string::npos;
  if (window(rt, self.as_text(), a[1], a[2], from, to)) {
    const std::string_view s = self.view().substr(from, to - from);
    rt.m.step(1 + s.size() / 64 * (Right ? 1 + needle.size() / 16 : 1));
    at = Right ? s.rfind(needle) : find_text(s, needle);
    if (at != std::string::npos) return value(static_cast<std::int64_t>(count_characters(self.view().substr(0, from + at))));
  }
  if (MustExist) rt.fail("expected a substring that occurs, got one that does not");
  return value(-1);
}

inline value count(runtime& rt, const value& self, const arguments& args) {
  const auto a = bind(rt, "count", args, {"sub", "start", "end"}, 1);
  const std::string_view needle = string_argument(rt, "count", *a[0]).view();
  std::size_t from = 0, to = 0;
  rt.m.touch(self.as_text().size());
  if (!window(rt, self.as_text(), a[1], a[2], from, to)) return value(0);
  const std::string_view s = self.view().substr(from, to - from);
  if (needle.empty()) return value(static_cast<std::int64_t>(count_characters(s)) + 1);
  std::int64_t n = 0;
  for (std::size_t at = 0; (at = find_text(s, needle, at)) != s.npos; at += needle.size()) {
    rt.m.touch(needle.size());
    ++n;
  }
  return value(n);
}

inline value replace(runtime& rt, const value& self, const arguments& args) {
  const auto a = bind(rt, "replace", args, {"old", "new", "count"}, 2);
  return rt.make(jinja::replace(rt, self.as_text(), string_argument(rt, "replace", *a[0]).as_text(), string_argument(rt, "replace", *a[1]).as_text(),
                                a[2] ? integer_argument(rt, "replace", *a[2]) : -1));
}

inline value join(runtime& rt, const value& self, const arguments& args) {
  const auto a = bind(rt, "join", args, {"iterable"}, 1);
  return rt.make(jinja::join(rt, self.as_text(), rt.items_of(*a[0]),
                             [](runtime& r, const value& v) { return string_argument(r, "join", v).as_text(); }));
}

template <sides Side>
value pad(runtime& rt, const value& self, const arguments& args) {
  const auto a = bind(rt, "padding", args, {"width", "fillchar"}, 1);
  const std::string_view fill = a[1] ? string_argument(rt, "padding", *a[1]).view() : " ";
  if (count_characters(fill) != 1) rt.fail("expected one character to pad with, got another number");
  return rt.make(jinja::pad(rt, self.as_text(), integer_argument(rt, "padding", *a[0]), fill, Side));
}

inline value zfill(runtime& rt, const value& self, const arguments& args) {
  const auto a = bind(rt, "zfill", args, {"width"}, 1);
  const text& t = self.as_text();
  const std::size_t sign = !t.empty() && (t.view()[0] == '-' || t.view()[0] == '+') ? 1 : 0;
  const text padded = jinja::pad(rt, t.slice(sign, t.size()), integer_argument(rt, "zfill", *a[0]) - static_cast<std::int64_t>(sign), "0", sides::right);
  text out = t.slice(0, sign);
  out.append(padded);
  return rt.make(std::move(out));
}

template <bool Right>
value partition(runtime& rt, const value& self, const arguments& args) {
  const auto a = bind(rt, "partition", args, {"sep"}, 1);
  const std::string_view by = string_argument(rt, "partition", *a[0]).view();
  if (by.empty()) rt.fail("expected a separator to split by, got an empty string");
  const text& t = self.as_text();
  rt.m.step(1 + t.size() / 64 * (1 + by.size() / 16));
  const std::size_t at = Right ? t.view().rfind(by) : find_text(t.view(), by);
  std::vector<value> out;
  if (at == std::string::npos) {
    for (int i = 0; i < 3; ++i) out.push_back(i == (Right ? 2 : 0) ? self : rt.make(text()));
  } else {
    out = {rt.make(t.slice(0, at)), *a[0], rt.make(t.slice(at + by.size(), t.size()))};
  }
  return rt.make_list(std::move(out), flavor::tuple);
}

template <bool Suffix>
value remove_affix(runtime& rt, const value& self, const arguments& args) {
  const auto a = bind(rt, "removeprefix", args, {"prefix"}, 1);
  const std::string_view s = self.view(), p = string_argument(rt, "removeprefix or removesuffix", *a[0]).view();
  if (p.empty() || p.size() > s.size() || s.substr(Suffix ? s.size() - p.size() : 0, p.size()) != p) return self;
  return rt.make(self.as_text().slice(Suffix ? 0 : p.size(), Suffix ? s.size() - p.size() : s.size()));
}

inline value format(runtime& rt, const value& self, const arguments& args) { return format_braces(rt, self.as_text(), args); }

inline value expand_tabs(runtime& rt, const value& self, const arguments& args) {
  const auto a = bind(rt, "expandtabs", args, {"tabsize"});
  const std::int64_t size = a[0] ? integer_argument(rt, "expandtabs", *a[0]) : 8;
  text out;
  std::int64_t column = 0;
  for_each_character(self.view(), [&](char32_t c, std::size_t begin, std::size_t end) {
    if (c == U'\t') {
      const std::int64_t n = size > 0 ? size - column % size : 0;
      rt.m.check_text(out.size() + static_cast<std::size_t>(n));
      out.append(std::string(static_cast<std::size_t>(n), ' '), false);
      column += n;
    } else {
      out.append(self.as_text(), begin, end);
      column = c == U'\n' || c == U'\r' ? 0 : column + 1;
    }
  });
  return rt.make(std::move(out));
}

// --- questions about all characters ---------------------------------------------------------------------------------------

template <class F>
value all_characters(runtime& rt, const value& self, const arguments& args, bool if_empty, F&& f) {
  bind_nothing(rt, "a test of a string", args);
  rt.m.step(1 + self.as_text().size() / 16);
  bool all = true;
  for_each_character(self.view(), [&](char32_t c, std::size_t, std::size_t) { all = all && f(c); });
  return value(self.as_text().empty() ? if_empty : all);
}

inline bool is_alpha(char32_t c) { return c < 0x80 ? (c | 32) >= U'a' && (c | 32) <= U'z' : classify(c) == char_class::letter; }
inline bool is_numeric(char32_t c) { return c < 0x80 ? c >= U'0' && c <= U'9' : classify(c) == char_class::number || is_digit(c); }

inline value only_letters(runtime& rt, const value& s, const arguments& a) { return all_characters(rt, s, a, false, is_alpha); }
inline value only_alphanumeric(runtime& rt, const value& s, const arguments& a) {
  return all_characters(rt, s, a, false, [](char32_t c) { return is_alpha(c) || is_numeric(c); });
}
inline value only_digits(runtime& rt, const value& s, const arguments& a) { return all_characters(rt, s, a, false, [](char32_t c) { return is_digit(c); }); }
inline value only_decimals(runtime& rt, const value& s, const arguments& a) { return all_characters(rt, s, a, false, [](char32_t c) { return is_decimal(c); }); }
inline value only_numeric(runtime& rt, const value& s, const arguments& a) { return all_characters(rt, s, a, false, is_numeric); }
inline value only_spaces(runtime& rt, const value& s, const arguments& a) { return all_characters(rt, s, a, false, [](char32_t c) { return is_space(c); }); }
inline value only_ascii(runtime& rt, const value& s, const arguments& a) { return all_characters(rt, s, a, true, [](char32_t c) { return c < 0x80; }); }
inline value only_printable(runtime& rt, const value& s, const arguments& a) { return all_characters(rt, s, a, true, [](char32_t c) { return is_printable(c); }); }
inline value identifier(runtime& rt, const value& s, const arguments& a) {
  bool first = true;
  return all_characters(rt, s, a, false, [&first](char32_t c) {
    const bool ok = is_alpha(c) || c == U'_' || (!first && is_numeric(c));
    first = false;
    return ok;
  });
}

/// islower, isupper: at least one cased character, and all cased ones of that case.
template <letter_case To>
bool is_all(runtime& rt, const text& t) {
  rt.m.step(1 + t.size() / 16);
  bool some = false, all = true;
  for_each_character(t.view(), [&](char32_t c, std::size_t begin, std::size_t end) {
    std::string lower, upper;
    append_lower(lower, c);
    append_upper(upper, c);
    const std::string_view same = t.view().substr(begin, end - begin);
    if (lower == same && upper == same) return;
    some = true;
    if ((To == letter_case::lower ? lower : upper) != same) all = false;
  });
  return some && all;
}
template <letter_case To>
value is_case(runtime& rt, const value& self, const arguments& args) {
  bind_nothing(rt, "a test of a string", args);
  return value(is_all<To>(rt, self.as_text()));
}
inline value titled(runtime& rt, const value& self, const arguments& args) {
  bind_nothing(rt, "istitle", args);
  bool some = false;
  for_each_character(self.view(), [&](char32_t c, std::size_t, std::size_t) { some = some || is_cased(c); });
  return value(some && jinja::change_case(rt, self.as_text(), letter_case::title).view() == self.view());
}

}  // namespace methods

struct named_method {
  std::string_view name;
  string_method f;
};
inline constexpr named_method string_methods[] = {  // sorted
    {"capitalize", methods::change_case<letter_case::capitalize>},
    {"casefold", methods::change_case<letter_case::fold>},
    {"center", methods::pad<sides::both>},
    {"count", methods::count},
    {"endswith", methods::starts_with<true>},
    {"expandtabs", methods::expand_tabs},
    {"find", methods::find<false, false>},
    {"format", methods::format},
    {"index", methods::find<false, true>},
    {"isalnum", methods::only_alphanumeric},
    {"isalpha", methods::only_letters},
    {"isascii", methods::only_ascii},
    {"isdecimal", methods::only_decimals},
    {"isdigit", methods::only_digits},
    {"isidentifier", methods::identifier},
    {"islower", methods::is_case<letter_case::lower>},
    {"isnumeric", methods::only_numeric},
    {"isprintable", methods::only_printable},
    {"isspace", methods::only_spaces},
    {"istitle", methods::titled},
    {"isupper", methods::is_case<letter_case::upper>},
    {"join", methods::join},
    {"ljust", methods::pad<sides::left>},
    {"lower", methods::change_case<letter_case::lower>},
    {"lstrip", methods::strip<sides::left>},
    {"partition", methods::partition<false>},
    {"removeprefix", methods::remove_affix<false>},
    {"removesuffix", methods::remove_affix<true>},
    {"replace", methods::replace},
    {"rfind", methods::find<true, false>},
    {"rindex", methods::find<true, true>},
    {"rjust", methods::pad<sides::right>},
    {"rpartition", methods::partition<true>},
    {"rsplit", methods::split<true>},
    {"rstrip", methods::strip<sides::right>},
    {"split", methods::split<false>},
    {"splitlines", methods::splitlines},
    {"startswith", methods::starts_with<false>},
    {"strip", methods::strip<sides::both>},
    {"swapcase", methods::change_case<letter_case::swap>},
    {"title", methods::change_case<letter_case::title>},
    {"upper", methods::change_case<letter_case::upper>},
    {"zfill", methods::zfill},
};

inline string_method find_string_method(std::string_view name) {
  const auto* it = std::lower_bound(std::begin(string_methods), std::end(string_methods), name,
                                    [](const named_method& m, std::string_view n) { return m.name < n; });
  return it != std::end(string_methods) && it->name == name ? it->f : nullptr;
}
inline bool is_string_method(std::string_view name) { return find_string_method(name) != nullptr; }
inline value call_string_method(runtime& rt, const value& self, std::string_view name, const arguments& args) {
  return find_string_method(name)(rt, self, args);
}

}  // namespace jinja
}  // namespace quena::inline QUENA_ABI
