// SPDX-License-Identifier: MIT
// Filters over sequences and mappings: map, select, sort, join, items, …
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "access.hpp"
#include "operators.hpp"
#include "repr.hpp"
#include "runtime.hpp"
#include "string_methods.hpp"
#include "strings.hpp"

namespace quena::inline QUENA_ABI {
namespace jinja {
namespace filters {

/// The path "a.b.0" of an `attribute` argument, looked up step by step; integers index.
class attribute_path {
 public:
  attribute_path(runtime& rt, const value* attribute) {
    if (!attribute || attribute->is_none()) return;
    if (attribute->is_string()) add(rt, attribute->view());
    else parts_.push_back(*attribute);
  }
  attribute_path(runtime& rt, std::string_view dotted) { add(rt, dotted); }

  value operator()(runtime& rt, value v, const value* fallback = nullptr) const {
    for (const value& part : parts_) {
      v = get_item(rt, v, part);
      if (fallback && v.is_undefined()) v = *fallback;
    }
    return v;
  }

 private:
  void add(runtime& rt, std::string_view s) {
    while (true) {
      const std::size_t dot = s.find('.');
      const std::string_view part = s.substr(0, dot);
      const bool integer = !part.empty() && part.size() < 18 && part.find_first_not_of("0123456789") == part.npos;
      if (integer) {
        std::int64_t i = 0;
        for (const char c : part) i = i * 10 + (c - '0');
        parts_.push_back(value(i));
      } else {
        parts_.push_back(rt.make(std::string(part)));
      }
      if (dot == s.npos) return;
      s.remove_prefix(dot + 1);
    }
  }
  std::vector<value> parts_;
};

inline value fold_case(runtime& rt, const value& v, bool case_sensitive) {
  return !case_sensitive && v.is_string() ? rt.make(change_case(rt, v.as_text(), letter_case::lower)) : v;
}

/// Indices of `keys` in sorted order, stable both ways as Python's sorted() is.
inline std::vector<std::size_t> sorted_order(runtime& rt, const std::vector<value>& keys, bool reverse) {
  std::vector<std::size_t> order(keys.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return reverse ? ordered(rt, operation::less, keys[b], keys[a]) : ordered(rt, operation::less, keys[a], keys[b]);
  });
  return order;
}

inline value length(runtime& rt, const value& v, const arguments& args) {
  bind_nothing(rt, "length", args);
  return value(length_of(rt, v));
}

inline value list(runtime& rt, const value& v, const arguments& args) {
  bind_nothing(rt, "list", args);
  return rt.make_list(rt.items_of(v));
}

inline value first(runtime& rt, const value& v, const arguments& args) {
  bind_nothing(rt, "first", args);
  if (v.is_string() && !v.as_text().empty()) return rt.make(v.as_text().slice(0, character_length(v.view(), 0)));
  if (v.is(kind::generator)) {
    generator_object& g = v.as_generator();
    if (g.at < g.items.size()) return g.items[g.at++];
  } else {
    if (v.is(kind::list) && !v.as_list().items.empty()) return v.as_list().items[0];
    if (v.is(kind::dict) && !v.as_dict().entries.empty()) return v.as_dict().entries[0].first;
    rt.items_of(v);  // complains about what cannot be iterated
  }
  return rt.make_undefined("No first item, sequence was empty.");
}

inline value last(runtime& rt, const value& v, const arguments& args) {
  bind_nothing(rt, "last", args);
  if (v.is(kind::generator)) rt.fail("expected a sequence for last, got 'generator'");
  if (v.is_string() && !v.as_text().empty()) return rt.make(v.as_text().slice(previous_character(v.view(), v.as_text().size()), v.as_text().size()));
  if (v.is(kind::list) && !v.as_list().items.empty()) return v.as_list().items.back();
  if (v.is(kind::dict) && !v.as_dict().entries.empty()) return v.as_dict().entries.back().first;
  rt.items_of(v);
  return rt.make_undefined("No last item, sequence was empty.");
}

inline value reverse(runtime& rt, const value& v, const arguments& args) {
  bind_nothing(rt, "reverse", args);
  if (v.is_string()) {
    const value step(-1);
    return get_slice(rt, v, nullptr, nullptr, &step);
  }
  const bool list = v.is(kind::generator);
  std::vector<value> items = rt.items_of(v);
  std::reverse(items.begin(), items.end());
  return list ? rt.make_list(std::move(items)) : rt.make_generator(std::move(items));
}

inline value fallback(runtime& rt, const value& v, const arguments& args) {
  const auto a = bind(rt, "default", args, {"default_value", "boolean"});
  if (v.is_undefined() || (a[1] && truthy(*a[1]) && !truthy(v))) return a[0] ? *a[0] : rt.make("", true);
  return v;
}

inline value items(runtime& rt, const value& v, const arguments& args) {
  bind_nothing(rt, "items", args);
  std::vector<value> out;
  if (!v.is_undefined()) {
    if (!v.is(kind::dict)) rt.fail({"expected a mapping for items, got '", type_name(v), "'"});
    for (const auto& [key, item] : v.as_dict().entries) out.push_back(rt.make_tuple(key, item));
  }
  return rt.make_generator(std::move(out));
}

inline value dictsort(runtime& rt, const value& v, const arguments& args) {
  const auto a = bind(rt, "dictsort", args, {"case_sensitive", "by", "reverse"});
  if (v.is_undefined()) rt.use_of_undefined(v);
  if (!v.is(kind::dict)) rt.fail({"expected a mapping for dictsort, got '", type_name(v), "'"});
  const std::string_view by = a[1] ? string_argument(rt, "dictsort", *a[1]).view() : "key";
  if (by != "key" && by != "value") rt.fail("expected to sort by key or value, got another");
  std::vector<value> keys, out;
  for (const auto& [key, item] : v.as_dict().entries) keys.push_back(fold_case(rt, by == "key" ? key : item, a[0] && truthy(*a[0])));
  for (const std::size_t i : sorted_order(rt, keys, a[2] && truthy(*a[2]))) {
    const auto& [key, item] = v.as_dict().entries[i];
    out.push_back(rt.make_tuple(key, item));
  }
  return rt.make_list(std::move(out));
}

inline value join(runtime& rt, const value& v, const arguments& args) {
  const auto a = bind(rt, "join", args, {"d", "attribute"});
  std::vector<value> parts = rt.items_of(v);
  if (a[1] && !a[1]->is_none()) {
    const attribute_path path(rt, a[1]);
    for (value& part : parts) part = path(rt, part);
  }
  return rt.make(jinja::join(rt, a[0] ? to_text(rt, *a[0]) : text(), parts, to_text));
}

inline value sort(runtime& rt, const value& v, const arguments& args) {
  const auto a = bind(rt, "sort", args, {"reverse", "case_sensitive", "attribute"});
  const bool sensitive = a[1] && truthy(*a[1]);
  const std::vector<value> in = rt.items_of(v);
  std::vector<attribute_path> paths;
  if (a[2] && a[2]->is_string()) {
    for (std::string_view rest = a[2]->view();;) {
      const std::size_t comma = rest.find(',');
      paths.emplace_back(rt, rest.substr(0, comma));
      if (comma == rest.npos) break;
      rest.remove_prefix(comma + 1);
    }
  } else {
    paths.emplace_back(rt, a[2]);
  }
  std::vector<value> keys, out;
  for (const value& item : in) {
    std::vector<value> key;
    for (const attribute_path& path : paths) key.push_back(fold_case(rt, path(rt, item), sensitive));
    keys.push_back(rt.make_list(std::move(key)));
  }
  for (const std::size_t i : sorted_order(rt, keys, a[0] && truthy(*a[0]))) out.push_back(in[i]);
  return rt.make_list(std::move(out));
}

inline value unique(runtime& rt, const value& v, const arguments& args) {
  const auto a = bind(rt, "unique", args, {"case_sensitive", "attribute"});
  const attribute_path path(rt, a[1]);
  std::set<std::string> seen;
  std::vector<value> out;
  charge held(&rt.m, 0);
  for (const value& item : rt.items_of(v)) {
    const value by = path(rt, item);
    std::string key = dict_key(fold_case(rt, by, a[0] && truthy(*a[0])));
    if (key.empty()) rt.fail({"expected hashable items for unique, got '", type_name(by), "'"});
    rt.m.touch(key.size());
    held.grow(96 + key.size());
    if (seen.insert(std::move(key)).second) out.push_back(item);
  }
  return rt.make_generator(std::move(out));
}

template <operation Op>
value extreme(runtime& rt, const value& v, const arguments& args) {
  const auto a = bind(rt, "an extreme", args, {"case_sensitive", "attribute"});
  const attribute_path path(rt, a[1]);
  const std::vector<value> in = rt.items_of(v);
  if (in.empty()) return rt.make_undefined("No aggregated item, sequence was empty.");
  std::size_t best = 0;
  value best_key;
  for (std::size_t i = 0; i < in.size(); ++i) {
    value key = fold_case(rt, path(rt, in[i]), a[0] && truthy(*a[0]));
    if (i && !ordered(rt, Op, key, best_key)) continue;
    best = i;
    best_key = std::move(key);
  }
  return in[best];
}

inline value sum(runtime& rt, const value& v, const arguments& args) {
  const auto a = bind(rt, "sum", args, {"attribute", "start"});
  const attribute_path path(rt, a[0]);
  value total = a[1] ? *a[1] : value(0);
  if (total.is_string()) rt.fail("expected a start that is not a string for sum, got one");
  for (const value& item : rt.items_of(v)) total = arithmetic(rt, operation::add, total, path(rt, item));
  return total;
}

inline value batch(runtime& rt, const value& v, const arguments& args) {
  const auto a = bind(rt, "batch", args, {"linecount", "fill_with"}, 1);
  const std::int64_t size = integer_argument(rt, "batch", *a[0]);
  if (size > static_cast<std::int64_t>(rt.m.bounds().max_range)) rt.fail({"expected a smaller batch, got one of ", std::to_string(size)});
  std::vector<value> out, line;
  for (const value& item : rt.items_of(v)) {
    if (static_cast<std::int64_t>(line.size()) == size) out.push_back(rt.make_list(std::exchange(line, {})));
    line.push_back(item);
  }
  if (!line.empty()) {
    while (a[1] && !a[1]->is_none() && static_cast<std::int64_t>(line.size()) < size) {
      rt.m.step();
      line.push_back(*a[1]);
    }
    out.push_back(rt.make_list(std::move(line)));
  }
  return rt.make_generator(std::move(out));
}

inline value slice(runtime& rt, const value& v, const arguments& args) {
  const auto a = bind(rt, "slice", args, {"slices", "fill_with"}, 1);
  const std::int64_t slices = integer_argument(rt, "slice", *a[0]);
  if (slices == 0) rt.fail("expected a number of slices other than zero, got zero");
  const std::vector<value> in = rt.items_of(v);
  const std::int64_t n = static_cast<std::int64_t>(in.size());
  std::vector<value> out;
  std::size_t at = 0;
  for (std::int64_t i = 0; i < slices; ++i) {
    std::vector<value> part;
    const std::int64_t take = n / slices + (i < n % slices ? 1 : 0);
    for (std::int64_t j = 0; j < take; ++j) part.push_back(in[at++]);
    if (a[1] && !a[1]->is_none() && i >= n % slices) part.push_back(*a[1]);
    out.push_back(rt.make_list(std::move(part)));
  }
  return rt.make_generator(std::move(out));
}

// --- with a filter or a test by name --------------------------------------------------------------------------------------------

inline value map(runtime& rt, const value& v, const arguments& args) {
  std::vector<value> out;
  if (!truthy(v)) return rt.make_generator({});
  if (args.positional.empty() && args.find("attribute")) {
    const auto a = bind(rt, "map", args, {"attribute", "default"});
    const attribute_path path(rt, a[0]);
    const value* otherwise = a[1] && !a[1]->is_none() ? a[1] : nullptr;
    for (const value& item : rt.items_of(v)) out.push_back(path(rt, item, otherwise));
    return rt.make_generator(std::move(out));
  }
  if (args.positional.empty()) rt.fail("expected a filter for map, got none");
  const std::string name(string_argument(rt, "map", args.positional[0]).view());
  arguments rest = args;
  rest.positional.erase(rest.positional.begin());
  const nested guard(rt.m);
  for (const value& item : rt.items_of(v)) out.push_back(apply_filter(rt, name, item, rest));
  return rt.make_generator(std::move(out));
}

template <bool Keep, bool ByAttribute>
value select(runtime& rt, const value& v, const arguments& args) {
  if (!truthy(v)) return rt.make_generator({});
  arguments rest = args;
  const auto take = [&rest] {
    value first = rest.positional[0];
    rest.positional.erase(rest.positional.begin());
    return first;
  };
  value attribute(nullptr);
  if (ByAttribute) {
    if (rest.positional.empty()) rt.fail("expected an attribute to select by, got none");
    attribute = take();
  }
  const attribute_path path(rt, &attribute);
  std::string test;
  if (!rest.positional.empty()) test = std::string(string_argument(rt, "select", take()).view());
  std::vector<value> out;
  for (const value& item : rt.items_of(v)) {
    rt.m.step();
    const value subject = path(rt, item);
    if ((test.empty() ? truthy(subject) : apply_test(rt, test, subject, rest)) == Keep) out.push_back(item);
  }
  return rt.make_generator(std::move(out));
}

inline value attr(runtime& rt, const value& v, const arguments& args) {
  const auto a = bind(rt, "attr", args, {"name"}, 1);
  const std::string_view name = string_argument(rt, "attr", *a[0]).view();
  if (v.is_undefined()) rt.use_of_undefined(v);
  bool found = false;
  value out = python_attribute(rt, v, name, found);
  return found ? out : missing_attribute(rt, v, *a[0]);
}

}  // namespace filters
}  // namespace jinja
}  // namespace quena::inline QUENA_ABI
