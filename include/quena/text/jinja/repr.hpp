// SPDX-License-Identifier: MIT
// str() and repr() as Python writes them.
#pragma once

#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "case_tables.hpp"
#include "runtime.hpp"

namespace quena::inline QUENA_ABI {
namespace jinja {

/// repr(float): the shortest digits that read back as the same number; an exponent below 1e-4 and from 1e16 on.
inline std::string float_repr(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d < 0 ? "-inf" : "inf";
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, d, std::chars_format::scientific).ptr;
  std::string_view s(buffer, static_cast<std::size_t>(end - buffer));
  std::string out;
  if (s[0] == '-') out.push_back('-'), s.remove_prefix(1);
  const std::size_t e = s.find('e');
  std::string digits(s.substr(0, 1));
  if (e > 2) digits += s.substr(2, e - 2);
  int exponent = 0;
  std::string_view power = s.substr(e + 1);
  if (power[0] == '+') power.remove_prefix(1);
  std::from_chars(power.data(), power.data() + power.size(), exponent);
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (digits.size() > 1) out.append(".").append(digits, 1, std::string::npos);
    out.append(exponent < 0 ? "e-" : "e+");
    const int size = exponent < 0 ? -exponent : exponent;
    if (size < 10) out += '0';
    return out += std::to_string(size);
  }
  if (exponent < 0) return out.append("0.").append(static_cast<std::size_t>(-exponent - 1), '0').append(digits);
  const std::size_t whole = static_cast<std::size_t>(exponent) + 1;
  if (digits.size() <= whole) return out.append(digits).append(whole - digits.size(), '0').append(".0");
  return out.append(digits, 0, whole).append(".").append(digits, whole, std::string::npos);
}

inline std::string hex_digits(char32_t c, int n) {
  std::string s;
  for (int i = n - 1; i >= 0; --i) s += "0123456789abcdef"[(c >> (4 * i)) & 15];
  return s;
}

/// repr(str): single quotes unless that needs escapes and double quotes do not. The characters keep their provenance,
/// quotes and escapes count as data.
inline void append_string_repr(runtime& rt, text& out, const text& t) {
  rt.m.check_text(out.size() + t.size() + 2);
  const std::string_view s = t.view();
  const char quote = s.find('\'') != s.npos && s.find('"') == s.npos ? '"' : '\'';
  const auto literal = [&](std::string_view bytes) { out.append(bytes, false); };
  literal(std::string_view(&quote, 1));
  std::size_t copied = 0;
  for_each_character(s, [&](char32_t c, std::size_t begin, std::size_t end) {
    std::string escaped;
    if (c == U'\\' || c == static_cast<char32_t>(quote)) escaped = {'\\', static_cast<char>(c)};
    else if (c == U'\n') escaped = "\\n";
    else if (c == U'\r') escaped = "\\r";
    else if (c == U'\t') escaped = "\\t";
    else if (is_printable(c)) return;
    else if (c < 0x100) escaped = "\\x" + hex_digits(c, 2);
    else if (c < 0x10000) escaped = "\\u" + hex_digits(c, 4);
    else escaped = "\\U" + hex_digits(c, 8);
    out.append(t, copied, begin);
    literal(escaped);
    copied = end;
  });
  out.append(t, copied, t.size());
  literal(std::string_view(&quote, 1));
}

inline void append_repr(runtime& rt, text& out, const value& v);

inline void append_items(runtime& rt, text& out, const std::vector<value>& items, std::string_view open, std::string_view close) {
  out.append(open, false);
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i) out.append(", ", false);
    append_repr(rt, out, items[i]);
  }
  out.append(close, false);
}

inline void append_repr(runtime& rt, text& out, const value& v) {
  const nested guard(rt.m);
  rt.m.step();
  rt.m.check_text(out.size());
  switch (v.type()) {
    case kind::undefined: return out.append("Undefined", false);
    case kind::none: return out.append("None", false);
    case kind::boolean: return out.append(v.as_boolean() ? "True" : "False", false);
    case kind::integer: return out.append(std::to_string(v.as_integer()), false);
    case kind::big_integer: return out.append(v.digits(), false);
    case kind::floating: return out.append(float_repr(v.as_float()), false);
    case kind::string: return append_string_repr(rt, out, v.as_text());
    case kind::list: {
      const list_object& l = v.as_list();
      switch (l.kind_of) {
        case flavor::list: return append_items(rt, out, l.items, "[", "]");
        case flavor::tuple: return append_items(rt, out, l.items, "(", l.items.size() == 1 ? ",)" : ")");
        case flavor::dict_keys: return append_items(rt, out, l.items, "dict_keys([", "])");
        case flavor::dict_values: return append_items(rt, out, l.items, "dict_values([", "])");
        case flavor::dict_items: return append_items(rt, out, l.items, "dict_items([", "])");
        case flavor::range:
          return out.append("range(" + std::to_string(l.start) + ", " + std::to_string(l.stop) +
                            (l.stride != 1 ? ", " + std::to_string(l.stride) : "") + ")", false);
      }
      return;
    }
    case kind::dict: {
      out.append("{", false);
      bool first = true;
      for (const auto& [key, item] : v.as_dict().entries) {
        if (!first) out.append(", ", false);
        first = false;
        append_repr(rt, out, key);
        out.append(": ", false);
        append_repr(rt, out, item);
      }
      return out.append("}", false);
    }
    case kind::generator: return out.append("<generator object>", false);
    case kind::object: return out.append(v.as_object().repr(rt), false);
  }
}

/// str(v) appended to `out`; only text that the template wrote keeps that mark, digits and brackets do not get it.
inline void append_str(runtime& rt, text& out, const value& v) {
  switch (v.type()) {
    case kind::undefined: return;
    case kind::string:
      rt.m.check_text(out.size() + v.as_text().size());
      return out.append(v.as_text());
    case kind::none:
    case kind::boolean:
    case kind::integer:
    case kind::big_integer:
    case kind::floating:
    case kind::list:
    case kind::dict:
    case kind::generator:
    case kind::object: return append_repr(rt, out, v);
  }
}
inline text to_text(runtime& rt, const value& v) {
  text t;
  append_str(rt, t, v);
  return t;
}
inline std::string repr(runtime& rt, const value& v) {
  text t;
  append_repr(rt, t, v);
  return t.bytes();
}

}  // namespace jinja
}  // namespace quena::inline QUENA_ABI
