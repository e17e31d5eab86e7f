// SPDX-License-Identifier: MIT
// Filters that make text or numbers: trim, replace, indent, format, int, round, …
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "access.hpp"
#include "format.hpp"
#include "operators.hpp"
#include "repr.hpp"
#include "runtime.hpp"
#include "string_methods.hpp"
#include "strings.hpp"

namespace quena::inline QUENA_ABI {
namespace jinja {
namespace filters {

template <letter_case To>
value change_case(runtime& rt, const value& v, const arguments& args) {
  bind_nothing(rt, "a change of case", args);
  return rt.make(jinja::change_case(rt, to_text(rt, v), To));
}

/// Jinja2's own title: a word starts after white space or one of -({[<.
inline value title(runtime& rt, const value& v, const arguments& args) {
  bind_nothing(rt, "title", args);
  const text t = to_text(rt, v);
  rt.m.step(1 + t.size() / 16);
  text out;
  bool start = true;
  std::size_t rest = 0;  // where the part of the word after its first letter begins: case is mapped there on its own
  for_each_character(t.view(), [&](char32_t c, std::size_t begin, std::size_t end) {
    std::string mapped;
    const bool gap = is_space(c) || c == U'-' || c == U'(' || c == U'{' || c == U'[' || c == U'<';
    if (c == U'\x3a3' && !start) mapped = begin > rest && is_final_sigma(t.view(), begin, end) ? "\xcf\x82" : "\xcf\x83";
    else if (start) append_upper(mapped, c);
    else append_lower(mapped, c);
    if (start) rest = end;
    start = gap;
    out.append(mapped, t.from_template(begin));
  });
  return rt.make(std::move(out));
}

inline value trim(runtime& rt, const value& v, const arguments& args) {
  const auto a = bind(rt, "trim", args, {"chars"});
  const value* chars = optional_string(rt, "trim", a[0]);
  const text t = to_text(rt, v);
  rt.m.step(1 + t.size() / 64 * (1 + (chars ? chars->as_text().size() : 0)));
  return rt.make(strip(t, chars, sides::both));
}

inline value string(runtime& rt, const value& v, const arguments& args) {
  bind_nothing(rt, "string", args);
  return v.is_string() ? v : rt.make(to_text(rt, v));
}

inline value escape(runtime& rt, const value& v, const arguments& args) {
  bind_nothing(rt, "escape", args);
  const text t = to_text(rt, v);
  text out;
  for_each_character(t.view(), [&](char32_t c, std::size_t begin, std::size_t end) {
    const std::string_view as = c == U'&' ? "&amp;" : c == U'<' ? "&lt;" : c == U'>' ? "&gt;" : c == U'\'' ? "&#39;" : c == U'"' ? "&#34;" : "";
    if (as.empty()) out.append(t, begin, end);
    else out.append(as, t.from_template(begin));
    rt.m.check_text(out.size());
  });
  return rt.make(std::move(out));
}

inline value replace(runtime& rt, const value& v, const arguments& args) {
  const auto a = bind(rt, "replace", args, {"old", "new", "count"}, 2);
  return rt.make(jinja::replace(rt, to_text(rt, v), to_text(rt, *a[0]), to_text(rt, *a[1]), a[2] && !a[2]->is_none() ? integer_argument(rt, "replace", *a[2]) : -1));
}

inline value indent(runtime& rt, const value& v, const arguments& args) {
  const auto a = bind(rt, "indent", args, {"width", "first", "blank"});
  if (v.is_undefined()) rt.use_of_undefined(v);
  if (!v.is_string()) rt.fail({"expected a string for indent, got '", type_name(v), "'"});
  text by;
  if (a[0] && a[0]->is_string()) {
    by = a[0]->as_text();
  } else {
    const std::int64_t width = a[0] ? integer_argument(rt, "indent", *a[0]) : 4;
    rt.m.check_text(width > 0 ? static_cast<std::size_t>(width) : 0);
    by = text(std::string(width > 0 ? static_cast<std::size_t>(width) : 0, ' '), false);
  }
  const bool first = a[1] && truthy(*a[1]), blank = a[2] && truthy(*a[2]);
  text with_end = v.as_text();
  with_end.append("\n", false);
  rt.m.touch(with_end.size());
  const auto lines = split_lines(rt, with_end, false);
  text out;
  if (first) out.append(by);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const text& line = lines[i].as_text();
    if (i) out.append("\n", false);
    if (i && (blank || !line.empty())) out.append(by);
    out.append(line);
    rt.m.touch(by.size());
    rt.m.check_text(out.size() + by.size());
  }
  return rt.make(std::move(out));
}

inline value center(runtime& rt, const value& v, const arguments& args) {
  const auto a = bind(rt, "center", args, {"width"});
  return rt.make(pad(rt, to_text(rt, v), a[0] ? integer_argument(rt, "center", *a[0]) : 80, " ", sides::both));
}

inline value format(runtime& rt, const value& v, const arguments& args) {
  if (!args.positional.empty() && !args.named.empty()) rt.fail("expected values by position or by name for format, got both");
  if (args.named.empty()) return format_percent(rt, to_text(rt, v), rt.make_list(args.positional, flavor::tuple));
  runtime::dict_maker d(rt);
  for (const auto& [key, item] : args.named) d.add(rt.make(key), item);
  return format_percent(rt, to_text(rt, v), d.finish());
}

inline value truncate(runtime& rt, const value& v, const arguments& args) {
  const auto a = bind(rt, "truncate", args, {"length", "killwords", "end", "leeway"});
  const text end = a[2] ? string_argument(rt, "truncate", *a[2]).as_text() : text("...", false);
  const std::int64_t length = a[0] ? integer_argument(rt, "truncate", *a[0]) : 255, leeway = a[3] && !a[3]->is_none() ? integer_argument(rt, "truncate", *a[3]) : 5;
  const std::int64_t n_end = static_cast<std::int64_t>(count_characters(end.view()));
  if (length < n_end || leeway < 0) rt.fail("expected a length of at least the end's for truncate, got less");
  if (length_of(rt, v) - leeway <= length) return v;
  const text& t = string_argument(rt, "truncate", v).as_text();
  text out = t.slice(0, byte_offset(t.view(), static_cast<std::size_t>(length - n_end)));
  if (!(a[1] && truthy(*a[1])))
    if (const std::size_t space = out.view().rfind(' '); space != std::string_view::npos) out = out.slice(0, space);
  out.append(end);
  return rt.make(std::move(out));
}

inline value wordcount(runtime& rt, const value& v, const arguments& args) {
  bind_nothing(rt, "wordcount", args);
  const text t = to_text(rt, v);
  rt.m.step(1 + t.size() / 16);
  std::int64_t words = 0;
  bool inside = false;
  for_each_character(t.view(), [&](char32_t c, std::size_t, std::size_t) {
    const bool word = methods::is_alpha(c) || methods::is_numeric(c) || c == U'_';
    words += word && !inside;
    inside = word;
  });
  return value(words);
}

inline value urlencode(runtime& rt, const value& v, const arguments& args) {
  bind_nothing(rt, "urlencode", args);
  const auto quote = [&rt](text& out, const text& t, std::string_view safe, bool query) {
    for (std::size_t i = 0; i < t.size(); ++i) {
      const unsigned char c = static_cast<unsigned char>(t.view()[i]);
      const bool plain = (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z' && c < 0x80) || std::string_view("_.-~").find(static_cast<char>(c)) != std::string_view::npos ||
                         safe.find(static_cast<char>(c)) != safe.npos;
      if (plain) out.append(t, i, i + 1);
      else if (query && c == ' ') out.append("+", false);
      else out.append(std::string{'%', "0123456789ABCDEF"[c >> 4], "0123456789ABCDEF"[c & 15]}, false);
      rt.m.check_text(out.size());
    }
  };
  text out;
  const auto pair = [&](const value& key, const value& item) {
    if (!out.empty()) out.append("&", false);
    quote(out, to_text(rt, key), "", true);
    out.append("=", false);
    quote(out, to_text(rt, item), "", true);
  };
  if (v.is(kind::dict)) {
    for (const auto& [key, item] : v.as_dict().entries) pair(key, item);
  } else if (v.is(kind::list) || v.is(kind::generator)) {
    for (const value& item : rt.items_of(v)) {
      const std::vector<value> two = rt.items_of(item);
      if (two.size() != 2) rt.fail("expected pairs for urlencode, got something else");
      pair(two[0], two[1]);
    }
  } else {
    quote(out, to_text(rt, v), "/", false);
  }
  return rt.make(std::move(out));
}

// --- numbers -----------------------------------------------------------------------------------------------------------------

/// int(text, base) of Python; false if it is no number. Digits beyond 64 bits are an error.
inline bool parse_integer(runtime& rt, std::string_view s, int base, std::int64_t& out) {
  s = s.substr(0, trailing_space(s));
  s.remove_prefix(leading_space(s));
  const bool negative = !s.empty() && s[0] == '-';
  if (!s.empty() && (s[0] == '-' || s[0] == '+')) s.remove_prefix(1);
  if (s.size() > 2 && s[0] == '0') {
    const char x = static_cast<char>(s[1] | 32);
    const int prefix = x == 'x' ? 16 : x == 'o' ? 8 : x == 'b' ? 2 : 0;
    if (prefix && (base == prefix || base == 0)) base = prefix, s.remove_prefix(s[2] == '_' ? 3 : 2);
  }
  if (base == 0) base = 10;
  std::string digits = negative ? "-" : "";
  for (std::size_t i = 0; i < s.size(); ++i) {
    if (s[i] == '_') {
      if (i == 0 || i + 1 == s.size() || s[i + 1] == '_') return false;
      continue;
    }
    digits += s[i];
  }
  if (s.empty() || s[0] == '-') return false;
  const auto [end, ec] = std::from_chars(digits.data(), digits.data() + digits.size(), out, base);
  if (ec == std::errc::result_out_of_range && end == digits.data() + digits.size()) rt.fail("expected an integer of at most 64 bits, got a longer one");
  return ec == std::errc() && end == digits.data() + digits.size();
}

inline bool parse_float(std::string_view s, double& out) {
  s = s.substr(0, trailing_space(s));
  s.remove_prefix(leading_space(s));
  std::string digits;
  for (std::size_t i = 0; i < s.size(); ++i) {
    const auto digit = [&](std::size_t j) { return j < s.size() && s[j] >= '0' && s[j] <= '9'; };
    if (s[i] == '_' && i > 0 && digit(i - 1) && digit(i + 1)) continue;
    digits += s[i];
  }
  const char* begin = digits.data();
  const char* end = begin + digits.size();
  if (begin != end && *begin == '+' && end - begin > 1 && begin[1] != '-') ++begin;
  if (digits.find_first_of("xXpP(") != std::string::npos) return false;
  const auto [stop, ec] = std::from_chars(begin, end, out);
  if (stop != end || begin == end) return false;
  if (ec == std::errc::result_out_of_range) {  // Python: infinity or zero
    const std::size_t e = digits.find_first_of("eE");
    const bool tiny = e != std::string::npos && digits.find('-', e) != std::string::npos;
    out = tiny ? 0.0 : HUGE_VAL;
    if (*begin == '-') out = -out;
    return true;
  }
  return ec == std::errc();
}

inline value int_of_float(runtime& rt, double d) {
  if (std::isinf(d) || std::fabs(d) >= 9.2e18) rt.fail("expected an integer of at most 64 bits, got a longer one");
  return value(static_cast<std::int64_t>(d));
}

inline value to_int(runtime& rt, const value& v, const arguments& args) {
  const auto a = bind(rt, "int", args, {"default", "base"});
  const value fallback = a[0] ? *a[0] : value(0);
  const std::int64_t base = a[1] ? integer_argument(rt, "int", *a[1]) : 10;
  if (base != 0 && (base < 2 || base > 36)) rt.fail("expected a base of 2 to 36, got another");
  if (v.is_undefined()) rt.use_of_undefined(v);
  if (v.is(kind::big_integer)) return v;
  if (v.is(kind::floating)) return is_nan(v) ? fallback : int_of_float(rt, v.as_float());
  if (v.is_number()) return value(v.as_integer());
  if (!v.is_string()) return fallback;
  rt.m.touch(v.as_text().size());
  std::int64_t i = 0;
  if (parse_integer(rt, v.view(), static_cast<int>(base), i)) return value(i);
  double d = 0;
  if (!parse_float(v.view(), d) || std::isnan(d)) return fallback;
  return int_of_float(rt, d);
}

inline value to_float(runtime& rt, const value& v, const arguments& args) {
  const auto a = bind(rt, "float", args, {"default"});
  if (v.is_undefined()) rt.use_of_undefined(v);
  if (v.is_number()) return value(v.as_float());
  double d = 0;
  if (v.is_string() && parse_float(v.view(), d)) return value(d);
  return a[0] ? *a[0] : value(0.0);
}

inline value absolute(runtime& rt, const value& v, const arguments& args) {
  bind_nothing(rt, "abs", args);
  if (v.is(kind::floating)) return value(std::fabs(v.as_float()));
  if (v.is_number()) return v.as_integer() < 0 ? negate(rt, v) : value(v.as_integer());
  if (v.is_undefined()) rt.use_of_undefined(v);
  rt.fail({"expected a number for abs, got '", type_name(v), "'"});
}

/// round(d, precision) of Python: the nearest decimal to the exact value, ties to even.
inline double round_decimal(double d, std::int64_t precision) {
  if (!std::isfinite(d) || precision > 330) return d;
  if (precision < 0) {
    if (precision < -308) return std::copysign(0.0, d);
    const double unit = std::pow(10.0, static_cast<double>(-precision));
    return std::nearbyint(d / unit) * unit;
  }
  char buffer[720];
  const auto r = std::to_chars(buffer, buffer + sizeof buffer, d, std::chars_format::fixed, static_cast<int>(precision));
  double out = d;
  std::from_chars(buffer, r.ptr, out);
  return out;
}

inline value round(runtime& rt, const value& v, const arguments& args) {
  const auto a = bind(rt, "round", args, {"precision", "method"});
  const std::int64_t precision = a[0] ? integer_argument(rt, "round", *a[0]) : 0;
  const std::string_view method = a[1] ? string_argument(rt, "round", *a[1]).view() : "common";
  if (v.is_undefined()) rt.use_of_undefined(v);
  if (!v.is_number()) rt.fail({"expected a number for round, got '", type_name(v), "'"});
  if (method == "common") {
    if (v.is(kind::floating)) return value(round_decimal(v.as_float(), precision));
    if (precision >= 0) return value(v.as_integer());
    const double unit = std::pow(10.0, static_cast<double>((std::max)(precision, std::int64_t{-18})));
    return value(static_cast<std::int64_t>(std::nearbyint(static_cast<double>(v.as_integer()) * unit) / unit));
  }
  if (method != "ceil" && method != "floor") rt.fail("expected the method common, ceil or floor for round, got another");
  const double unit = std::pow(10.0, static_cast<double>(precision));
  const double scaled = v.as_float() * unit;
  return value((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / unit);
}

}  // namespace filters
}  // namespace jinja
}  // namespace quena::inline QUENA_ABI
