// SPDX-License-Identifier: MIT
// The tojson filter: Python's json.dumps as Hugging Face configures it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "operators.hpp"
#include "repr.hpp"
#include "runtime.hpp"

namespace quena::inline QUENA_ABI {
namespace jinja {

struct json_style {
  bool ensure_ascii = false;
  bool indented = false;
  text indent;                          ///< one level of it
  text item_separator{", ", false};
  text key_separator{": ", false};
  bool sort_keys = false;
};

/// Writes values as JSON. Text keeps its provenance; quotes, escapes and punctuation count as data.
class json_writer {
 public:
  json_writer(runtime& rt, const json_style& style) : rt_(rt), style_(style) {}

  text write(const value& v) {
    put(v, 0);
    return std::move(out_);
  }

 private:
  void literal(std::string_view s) { out_.append(s, false); }

  void string(const text& t) {
    rt_.m.check_text(out_.size() + t.size() + 2);
    literal("\"");
    std::size_t copied = 0;
    for_each_character(t.view(), [&](char32_t c, std::size_t begin, std::size_t end) {
      std::string escaped;
      switch (c) {
        case U'"': escaped = "\\\""; break;
        case U'\\': escaped = "\\\\"; break;
        case U'\n': escaped = "\\n"; break;
        case U'\r': escaped = "\\r"; break;
        case U'\t': escaped = "\\t"; break;
        case U'\f': escaped = "\\f"; break;
        case U'\b': escaped = "\\b"; break;
        default:
          if (c >= 0x20 && (!style_.ensure_ascii || c < 0x7f)) return;
          if (c < 0x10000) escaped = "\\u" + hex_digits(c, 4);
          else escaped = "\\u" + hex_digits(0xd800 + ((c - 0x10000) >> 10), 4) + "\\u" + hex_digits(0xdc00 + (c & 0x3ff), 4);
      }
      out_.append(t, copied, begin);
      literal(escaped);
      copied = end;
    });
    out_.append(t, copied, t.size());
    literal("\"");
  }

  static std::string number(double d) { return std::isnan(d) ? "NaN" : std::isinf(d) ? (d < 0 ? "-Infinity" : "Infinity") : float_repr(d); }

  void line(std::size_t level) {
    if (!style_.indented) return;
    rt_.m.check_text(out_.size() + 1 + level * style_.indent.size());
    literal("\n");
    for (std::size_t i = 0; i < level; ++i) out_.append(style_.indent);
  }

  void key(const value& k) {
    switch (k.type()) {
      case kind::string: return string(k.as_text());
      case kind::none: return literal("\"null\"");
      case kind::boolean: return literal(k.as_boolean() ? "\"true\"" : "\"false\"");
      case kind::integer: return literal("\"" + std::to_string(k.as_integer()) + "\"");
      case kind::big_integer: return literal("\"" + k.digits() + "\"");
      case kind::floating: return literal("\"" + number(k.as_float()) + "\"");
      case kind::undefined:
      case kind::list:
      case kind::dict:
      case kind::generator:
      case kind::object: break;
    }
    rt_.fail({"expected a simple key for JSON, got '", type_name(k), "'"});
  }

  void put(const value& v, std::size_t level) {
    const nested guard(rt_.m);
    rt_.m.step();
    rt_.m.check_text(out_.size());
    switch (v.type()) {
      case kind::none: return literal("null");
      case kind::boolean: return literal(v.as_boolean() ? "true" : "false");
      case kind::integer: return literal(std::to_string(v.as_integer()));
      case kind::big_integer: return literal(v.digits());
      case kind::floating: return literal(number(v.as_float()));
      case kind::string: return string(v.as_text());
      case kind::list:
        if (!is_sequence_literal(v)) break;
        return sequence(v.as_list().items, level);
      case kind::dict: return mapping(v.as_dict(), level);
      case kind::undefined:
      case kind::generator:
      case kind::object: break;
    }
    rt_.fail({"expected a value that JSON can express, got '", type_name(v), "'"});
  }

  void sequence(const std::vector<value>& items, std::size_t level) {
    literal("[");
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i) out_.append(style_.item_separator);
      line(level + 1);
      put(items[i], level + 1);
    }
    if (!items.empty()) line(level);
    literal("]");
  }

  void mapping(const dict_object& d, std::size_t level) {
    std::vector<const std::pair<value, value>*> entries;
    for (const auto& e : d.entries) entries.push_back(&e);
    if (style_.sort_keys)
      std::stable_sort(entries.begin(), entries.end(), [&](const auto* a, const auto* b) { return ordered(rt_, operation::less, a->first, b->first); });
    literal("{");
    bool first = true;
    for (const auto* e : entries) {
      if (!first) out_.append(style_.item_separator);
      first = false;
      line(level + 1);
      key(e->first);
      out_.append(style_.key_separator);
      put(e->second, level + 1);
    }
    if (!first) line(level);
    literal("}");
  }

  runtime& rt_;
  const json_style& style_;
  text out_;
};

inline value filter_tojson(runtime& rt, const value& input, const arguments& args) {
  const auto a = bind(rt, "tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"});
  json_style style;
  style.ensure_ascii = a[0] && truthy(*a[0]);
  style.sort_keys = a[3] && truthy(*a[3]);
  if (a[1] && !a[1]->is_none()) {
    style.indented = true;
    style.item_separator = text(",", false);
    if (a[1]->is_string()) {
      style.indent = a[1]->as_text();
    } else {
      const std::int64_t n = integer_argument(rt, "indent of tojson", *a[1]);
      rt.m.check_text(n > 0 ? static_cast<std::size_t>(n) : 0);
      style.indent = text(std::string(n > 0 ? static_cast<std::size_t>(n) : 0, ' '), false);
    }
  }
  if (a[2] && !a[2]->is_none()) {
    if (!is_sequence_literal(*a[2]) || a[2]->as_list().items.size() != 2 || !a[2]->as_list().items[0].is_string() || !a[2]->as_list().items[1].is_string())
      rt.fail({"expected two strings as separators of tojson, got '", type_name(*a[2]), "'"});
    style.item_separator = a[2]->as_list().items[0].as_text();
    style.key_separator = a[2]->as_list().items[1].as_text();
  }
  return rt.make(json_writer(rt, style).write(input));
}

}  // namespace jinja
}  // namespace quena::inline QUENA_ABI
