// SPDX-License-Identifier: MIT
// Python's two ways to format: "%5.2f" % x and "{:>5}".format(x).
#pragma once

#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "access.hpp"
#include "repr.hpp"
#include "runtime.hpp"
#include "strings.hpp"

namespace quena::inline QUENA_ABI {
namespace jinja {

/// [[fill]align][sign][#][0][width][,][.precision][type]; the % form sets the same fields.
struct format_spec {
  std::string fill = " ";
  char align = '\0';  // < > ^ =
  char sign = '-';
  bool alternate = false;
  char grouping = '\0';
  std::int64_t width = 0;
  std::int64_t precision = -1;
  char type = '\0';
};

inline std::string group_digits(const std::string& digits, char separator) {
  std::string out;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i && (digits.size() - i) % 3 == 0) out += separator;
    out += digits[i];
  }
  return out;
}

/// Digits of |d| for the types e, f, g, % (and the plain form, which is 'r' for repr).
inline std::string float_digits(double d, const format_spec& spec, char type) {
  const double a = std::fabs(d);
  const bool upper = type >= 'A' && type <= 'Z';
  const char t = static_cast<char>(type | 32);
  if (std::isnan(a)) return upper ? "NAN" : "nan";
  if (std::isinf(a)) return upper ? "INF" : "inf";
  const int precision = static_cast<int>(spec.precision < 0 ? 6 : spec.precision);
  char buffer[1200];  // 309 digits before the point and up to 800 after it
  std::to_chars_result r{};
  if (t == 'e') r = std::to_chars(buffer, buffer + sizeof buffer, a, std::chars_format::scientific, precision);
  else if (t == 'g') r = std::to_chars(buffer, buffer + sizeof buffer, a, std::chars_format::general, precision == 0 ? 1 : precision);
  else r = std::to_chars(buffer, buffer + sizeof buffer, a, std::chars_format::fixed, precision);
  std::string s(buffer, r.ptr);
  if (upper)
    for (char& c : s) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
  return s;
}

/// Digits between sign and text: "0x" and the like go in front of the zeros that `=` alignment inserts.
inline text place(runtime& rt, const std::string& sign, text body, const format_spec& spec, char default_align) {
  const char align = spec.align ? spec.align : default_align;
  const std::int64_t width = spec.width;
  if (align == '=') {
    text out;
    out.append(sign, false);
    out.append(pad(rt, body, width - static_cast<std::int64_t>(sign.size()), spec.fill, sides::right));
    return out;
  }
  text whole;
  whole.append(sign, false);
  whole.append(body);
  if (align == '^') {  // unlike str.center, the odd one goes right
    const std::int64_t n = static_cast<std::int64_t>(count_characters(whole.view()));
    if (width > n) whole = pad(rt, whole, n + (width - n) / 2, spec.fill, sides::right);
    return pad(rt, whole, width, spec.fill, sides::left);
  }
  return pad(rt, whole, width, spec.fill, align == '<' ? sides::left : sides::right);
}

inline std::string sign_of(bool negative, char wanted) { return negative ? "-" : wanted == '+' ? "+" : wanted == ' ' ? " " : ""; }

inline text format_integer(runtime& rt, std::int64_t i, const format_spec& spec) {
  std::uint64_t magnitude = static_cast<std::uint64_t>(i);
  if (i < 0) magnitude = 0 - magnitude;
  const int base = spec.type == 'x' || spec.type == 'X' ? 16 : spec.type == 'o' ? 8 : spec.type == 'b' ? 2 : 10;
  char buffer[72];
  std::string digits(buffer, std::to_chars(buffer, buffer + sizeof buffer, magnitude, base).ptr);
  if (spec.type == 'X')
    for (char& c : digits) c = c >= 'a' && c <= 'f' ? static_cast<char>(c - 32) : c;
  if (spec.precision > static_cast<std::int64_t>(digits.size())) {
    rt.m.check_text(static_cast<std::size_t>(spec.precision));
    digits.insert(0, static_cast<std::size_t>(spec.precision) - digits.size(), '0');
  }
  if (spec.grouping) digits = group_digits(digits, spec.grouping);
  std::string sign = sign_of(i < 0, spec.sign);
  if (spec.alternate && base != 10) sign += std::string("0") + spec.type;
  return place(rt, sign, text(std::move(digits), false), spec, '>');
}

inline text format_float(runtime& rt, double d, const format_spec& spec) {
  if (spec.precision > 800) rt.fail("expected a precision of at most 800 digits, got more");
  std::string digits;
  if (spec.type == '%') digits = float_digits(d * 100, spec, 'f') + "%";
  else if (spec.type) digits = float_digits(d, spec, spec.type == 'n' ? 'g' : spec.type);
  else if (spec.precision < 0) digits = float_repr(std::fabs(d));
  else {
    digits = float_digits(d, spec, 'g');
    if (digits.find_first_of(".en") == std::string::npos) digits += ".0";
  }
  if (spec.grouping) {
    const std::size_t whole = digits.find_first_not_of("0123456789");
    digits = group_digits(digits.substr(0, whole), spec.grouping) + (whole == std::string::npos ? "" : digits.substr(whole));
  }
  return place(rt, sign_of(std::signbit(d) && !std::isnan(d), spec.sign), text(std::move(digits), false), spec, '>');
}

inline text format_string(runtime& rt, const text& t, const format_spec& spec) {
  text cut = spec.precision >= 0 ? t.slice(0, byte_offset(t.view(), static_cast<std::size_t>(spec.precision))) : t;
  return place(rt, "", std::move(cut), spec, '<');
}

inline bool is_one_of(char c, std::string_view set) { return c != '\0' && set.find(c) != set.npos; }

/// Digits at s[at], moved past; -1 if there are none.
inline std::int64_t read_width(runtime& rt, std::string_view s, std::size_t& at) {
  std::int64_t n = -1;
  for (; at < s.size() && s[at] >= '0' && s[at] <= '9'; ++at) {
    n = (n < 0 ? 0 : n) * 10 + (s[at] - '0');
    if (n > 100'000'000) rt.fail("expected a width of at most 100000000, got more");
  }
  return n;
}

// --- "%s" % value -----------------------------------------------------------------------------------------------------------

inline value format_percent(runtime& rt, const text& format, const value& args) {
  const std::string_view s = format.view();
  const bool many = args.is(kind::list) && args.as_list().kind_of == flavor::tuple;
  std::size_t used = 0, at = 0;
  const auto next = [&]() -> value {
    if (many ? used >= args.as_list().items.size() : used >= 1) rt.fail("expected as many values as the format has places, got fewer");
    return many ? args.as_list().items[used++] : (++used, args);
  };
  text out;
  while (at < s.size()) {
    const std::size_t percent = s.find('%', at);
    out.append(format, at, percent == s.npos ? s.size() : percent);
    if (percent == s.npos) break;
    at = percent + 1;
    value by_name;
    bool named = false;
    if (at < s.size() && s[at] == '(') {
      const std::size_t close = s.find(')', at);
      if (close == s.npos) rt.fail("expected ')' in the format, got none");
      if (!args.is(kind::dict)) rt.fail({"expected a mapping for a format with names, got '", type_name(args), "'"});
      const value* found = dict_find(args.as_dict(), s.substr(at + 1, close - at - 1));
      if (!found) rt.fail("expected a value for every name of the format, got none for one");
      by_name = *found;
      named = true;
      used = 1;
      at = close + 1;
    }
    format_spec spec;
    for (; at < s.size() && is_one_of(s[at], "#0- +"); ++at) {
      if (s[at] == '-') spec.align = '<';
      else if (s[at] == '0' && spec.align != '<') spec.align = '=', spec.fill = "0";
      else if (s[at] == '+' || (s[at] == ' ' && spec.sign != '+')) spec.sign = s[at];
      else if (s[at] == '#') spec.alternate = true;
    }
    if (spec.align == '<') spec.fill = " ";
    const auto number = [&](std::int64_t fallback) {
      if (at < s.size() && s[at] == '*') {
        ++at;
        return integer_argument(rt, "the width of a format", next());
      }
      const std::int64_t n = read_width(rt, s, at);
      return n < 0 ? fallback : n;
    };
    spec.width = number(0);
    if (spec.width < 0) spec.width = -spec.width, spec.align = '<', spec.fill = " ";
    if (at < s.size() && s[at] == '.') ++at, spec.precision = number(0);
    while (at < s.size() && is_one_of(s[at], "hlL")) ++at;
    if (at >= s.size()) rt.fail("expected a complete format, got one that ends after '%'");
    spec.type = s[at++];
    rt.m.check_text(out.size() + static_cast<std::size_t>(spec.width));
    if (spec.type == '%') {
      out.append("%", format.from_template(at - 1));
      continue;
    }
    const value v = named ? by_name : next();
    switch (spec.type) {
      case 's':
      case 'r':
      case 'a': {
        if (spec.fill == "0") spec.fill = " ", spec.align = '>';
        text t = spec.type == 's' ? to_text(rt, v) : text(repr(rt, v), false);
        if (!spec.align) spec.align = '>';
        out.append(format_string(rt, t, spec));
        break;
      }
      case 'd':
      case 'i':
      case 'u':
      case 'x':
      case 'X':
      case 'o': {
        if (v.is_undefined()) rt.use_of_undefined(v);
        const bool decimal = spec.type == 'd' || spec.type == 'i' || spec.type == 'u';
        if (!v.is_number() || (v.is(kind::floating) && (!decimal || std::fabs(v.as_float()) > 9e18 || is_nan(v))))
          rt.fail({"expected an integer for the format, got '", type_name(v), "'"});
        if (decimal) spec.type = 'd';
        out.append(format_integer(rt, v.is(kind::floating) ? static_cast<std::int64_t>(v.as_float()) : v.as_integer(), spec));
        break;
      }
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G':
        if (v.is_undefined()) rt.use_of_undefined(v);
        if (!v.is_number()) rt.fail({"expected a number for the format, got '", type_name(v), "'"});
        out.append(format_float(rt, v.as_float(), spec));
        break;
      case 'c':
        if (v.is_string() && count_characters(v.view()) == 1) out.append(format_string(rt, v.as_text(), spec));
        else rt.fail("expected one character for '%c', got another value");
        break;
      default: rt.fail({"expected a known format character, got '", std::string(1, spec.type), "'"});
    }
  }
  if (many ? used < args.as_list().items.size() : used == 0 && !args.is(kind::dict) && !args.is(kind::list) && !args.is_undefined())
    rt.fail("expected as many places in the format as there are values, got fewer");
  return rt.make(std::move(out));
}

// --- "{}".format(value) -------------------------------------------------------------------------------------------------------

inline format_spec parse_spec(runtime& rt, std::string_view s) {
  format_spec spec;
  std::size_t at = 0;
  const auto peek = [&] { return at < s.size() ? s[at] : '\0'; };
  if (!s.empty()) {
    const std::size_t n = character_length(s, 0);
    if (n < s.size() && is_one_of(s[n], "<>=^")) {
      spec.fill = std::string(s.substr(0, n));
      spec.align = s[n];
      at = n + 1;
    } else if (is_one_of(s[0], "<>=^")) {
      spec.align = s[at++];
    }
  }
  if (is_one_of(peek(), "+- ")) spec.sign = s[at++];
  if (peek() == '#') spec.alternate = true, ++at;
  if (peek() == '0') {
    if (!spec.align) spec.align = '=', spec.fill = "0";
    ++at;
  }
  const std::int64_t width = read_width(rt, s, at);
  spec.width = width < 0 ? 0 : width;
  if (is_one_of(peek(), ",_")) spec.grouping = s[at++];
  if (peek() == '.') {
    ++at;
    spec.precision = read_width(rt, s, at);
    if (spec.precision < 0) rt.fail("expected a precision after '.', got none");
  }
  if (at < s.size()) spec.type = s[at++];
  if (at != s.size()) rt.fail({"expected a format specification, got '", s.substr(0, 40), "'"});
  return spec;
}

inline text format_value(runtime& rt, const value& v, std::string_view spec_text) {
  if (spec_text.empty()) return to_text(rt, v);
  format_spec spec = parse_spec(rt, spec_text);
  rt.m.check_text(static_cast<std::size_t>(spec.width));
  if (v.is_string()) {
    if (spec.type && spec.type != 's') rt.fail({"expected format code 's' for a string, got '", std::string(1, spec.type), "'"});
    if (spec.align == '=') {
      if (spec.fill != "0") rt.fail("expected another alignment for a string, got '='");
      spec.align = '<';
    }
    return format_string(rt, v.as_text(), spec);
  }
  if (v.is_number()) {
    if (v.is(kind::boolean) && !spec.type) return format_string(rt, to_text(rt, v), spec);
    if (is_one_of(spec.type, "eEfFgG%")) return format_float(rt, v.as_float(), spec);
    if (v.is(kind::floating) && (!spec.type || spec.type == 'n')) return format_float(rt, v.as_float(), spec);
    if (!v.is(kind::floating) && (!spec.type || is_one_of(spec.type, "dnxXob"))) {
      if (spec.precision >= 0) rt.fail("expected no precision for an integer, got one");
      return format_integer(rt, v.as_integer(), spec);
    }
    rt.fail({"expected a format code for a number, got '", std::string(1, spec.type), "'"});
  }
  rt.fail({"expected a value that can be formatted, got '", type_name(v), "'"});
}

/// str.format: {} {0} {name} {a.b[c]} with conversions and specifications; a specification may itself contain {}.
class brace_formatter {
 public:
  brace_formatter(runtime& rt, const arguments& args) : rt_(rt), args_(args) {}

  text run(const text& format, int depth = 2) {
    if (depth == 0) rt_.fail("expected replacement fields nested at most two deep, got more");
    const std::string_view s = format.view();
    text out;
    for (std::size_t at = 0; at < s.size();) {
      const std::size_t brace = s.find_first_of("{}", at);
      out.append(format, at, brace == s.npos ? s.size() : brace);
      if (brace == s.npos) break;
      if (brace + 1 < s.size() && s[brace + 1] == s[brace]) {
        out.append(format, brace, brace + 1);
        at = brace + 2;
        continue;
      }
      if (s[brace] == '}') rt_.fail("expected '}}' for a brace in a format, got a single '}'");
      std::size_t end = brace + 1;
      for (int open = 1; end < s.size(); ++end) {
        if (s[end] == '{') ++open;
        if (s[end] == '}' && --open == 0) break;
      }
      if (end >= s.size()) rt_.fail("expected '}' in the format, got none");
      out.append(field(format.slice(brace + 1, end), depth));
      rt_.m.check_text(out.size());
      at = end + 1;
    }
    return out;
  }

 private:
  text field(const text& t, int depth) {
    rt_.m.touch(t.size());
    const std::string_view s = t.view();
    std::size_t colon = s.find_first_of(":!");
    if (const std::size_t bracket = s.find('['); bracket < colon) colon = s.find_first_of(":!", s.find(']', bracket));
    value v = lookup(s.substr(0, colon));
    std::string_view rest = colon == s.npos ? "" : s.substr(colon);
    if (!rest.empty() && rest[0] == '!') {
      if (rest.size() < 2 || !is_one_of(rest[1], "rsa") || (rest.size() > 2 && rest[2] != ':')) rt_.fail("expected the conversion '!r' or '!s', got another");
      v = rest[1] == 's' ? rt_.make(to_text(rt_, v)) : rt_.make(repr(rt_, v));
      rest.remove_prefix(2);
    }
    if (!rest.empty()) rest.remove_prefix(1);
    const std::string spec = rest.find('{') == rest.npos ? std::string(rest) : run(text(std::string(rest), false), depth - 1).bytes();
    return format_value(rt_, v, spec);
  }

  value lookup(std::string_view name) {
    std::size_t end = (std::min)(name.find_first_of(".["), name.size());
    const std::string_view first = name.substr(0, end);
    value v;
    if (first.empty() || (first[0] >= '0' && first[0] <= '9')) {
      std::size_t digits = 0;
      const std::int64_t i = first.empty() ? automatic_++ : read_width(rt_, first, digits);
      if (static_cast<std::size_t>(i) >= args_.positional.size()) rt_.fail("expected as many values as the format has places, got fewer");
      v = args_.positional[static_cast<std::size_t>(i)];
    } else {
      const value* found = args_.find(first);
      if (!found) rt_.fail({"expected a value for every name of the format, got none for '", first.substr(0, 60), "'"});
      v = *found;
    }
    while (end < name.size()) {
      if (name[end] == '.') {
        const std::size_t stop = (std::min)(name.find_first_of(".[", end + 1), name.size());
        v = get_attribute(rt_, v, name.substr(end + 1, stop - end - 1));
        end = stop;
      } else {
        const std::size_t close = name.find(']', end);
        if (close == name.npos) rt_.fail("expected ']' in the format, got none");
        const std::string_view key = name.substr(end + 1, close - end - 1);
        std::size_t digits = 0;
        const bool integer = !key.empty() && key.find_first_not_of("0123456789") == key.npos;
        v = get_item(rt_, v, integer ? value(read_width(rt_, key, digits)) : value(std::string(key)));
        end = close + 1;
      }
    }
    return v;
  }

  runtime& rt_;
  const arguments& args_;
  std::int64_t automatic_ = 0;
};

inline value format_braces(runtime& rt, const text& format, const arguments& args) { return rt.make(brace_formatter(rt, args).run(format)); }

}  // namespace jinja
}  // namespace quena::inline QUENA_ABI
