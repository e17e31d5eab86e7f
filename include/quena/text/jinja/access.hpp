// SPDX-License-Identifier: MIT
// Attributes, items and slices of values, with the rules of Jinja2's immutable sandbox.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "operators.hpp"
#include "repr.hpp"
#include "runtime.hpp"

namespace quena::inline QUENA_ABI {
namespace jinja {

bool is_string_method(std::string_view name);                                                          // string_methods.hpp
value call_string_method(runtime&, const value& self, std::string_view name, const arguments&);        // string_methods.hpp

/// A method taken from a value: `"a,b".split`, `tools.items`.
class bound_method final : public object {
 public:
  bound_method(value self, std::string_view name) : self_(std::move(self)), name_(name) {}
  [[nodiscard]] std::string_view type_name() const override { return "builtin_function_or_method"; }
  [[nodiscard]] bool callable() const override { return true; }
  inline value call(runtime& rt, const arguments& args) override;  // inline here: else its class counts this unit as home of the vtable, and all is compiled for it
  [[nodiscard]] std::size_t depth() const override { return 1 + container_depth(self_); }

 private:
  value self_;
  std::string name_;
};

/// A function of the engine's: range, namespace, …
class builtin final : public object {
 public:
  using function = value (*)(runtime&, const arguments&);
  builtin(std::string_view name, function f) : name_(name), f_(f) {}
  [[nodiscard]] std::string_view type_name() const override { return "function"; }
  std::string repr(runtime&) override { return "<function " + std::string(name_) + ">"; }
  [[nodiscard]] bool callable() const override { return true; }
  value call(runtime& rt, const arguments& args) override { return f_(rt, args); }

 private:
  std::string_view name_;
  function f_;
};

inline bool one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

inline bool is_dict_method(std::string_view name) { return one_of(name, {"get", "items", "keys", "values", "copy"}); }
inline bool is_list_method(const value& v, std::string_view name) {
  const flavor f = v.as_list().kind_of;
  if (f == flavor::list) return one_of(name, {"index", "count", "copy"});
  return (f == flavor::tuple || f == flavor::range) && one_of(name, {"index", "count"});
}
/// Methods that would change their object: the sandbox makes them undefined.
inline bool is_blocked_method(const value& v, std::string_view name) {
  if (name.substr(0, 2) == "__") return true;
  if (v.is(kind::dict)) return one_of(name, {"clear", "pop", "popitem", "setdefault", "update"});
  return v.is(kind::list) && v.as_list().kind_of == flavor::list &&
         one_of(name, {"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"});
}

inline value call_dict_method(runtime& rt, const value& self, std::string_view name, const arguments& args) {
  const dict_object& d = self.as_dict();
  if (name == "get") {
    const auto a = bind(rt, "get", args, {"key", "default"}, 1);
    if (!a[0]->is_string() && dict_key(*a[0]).empty()) rt.fail({"expected a hashable key, got '", type_name(*a[0]), "'"});
    const value* found = dict_lookup(d, *a[0]);
    return found ? *found : a[1] ? *a[1] : value(nullptr);
  }
  bind_nothing(rt, name, args);
  if (name == "copy") return self;
  std::vector<value> out;
  for (const auto& [key, item] : d.entries) out.push_back(name == "keys" ? key : name == "values" ? item : rt.make_tuple(key, item));
  return rt.make_list(std::move(out), name == "keys" ? flavor::dict_keys : name == "values" ? flavor::dict_values : flavor::dict_items);
}

inline value call_list_method(runtime& rt, const value& self, std::string_view name, const arguments& args) {
  const auto& items = self.as_list().items;
  if (name == "copy") {
    bind_nothing(rt, name, args);
    return self;
  }
  const auto a = bind(rt, name, args, {"value"}, 1);
  std::int64_t count = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!items[i].same_as(*a[0]) && !equal(rt, items[i], *a[0])) continue;
    if (name == "index") return value(static_cast<std::int64_t>(i));
    ++count;
  }
  if (name == "index") rt.fail({"expected a value that is in the list, got ", repr(rt, *a[0]).substr(0, 100)});
  return value(count);
}

inline value call_number_method(runtime& rt, const value& self, std::string_view name, const arguments& args) {
  bind_nothing(rt, name, args);
  if (name == "is_integer") return value(self.as_float() == std::floor(self.as_float()) && std::isfinite(self.as_float()));
  std::uint64_t magnitude = static_cast<std::uint64_t>(self.as_integer());
  if (self.as_integer() < 0) magnitude = 0 - magnitude;
  std::int64_t bits = 0;  // bit_length
  for (; magnitude; magnitude >>= 1) ++bits;
  return value(bits);
}
inline bool is_number_method(const value& v, std::string_view name) {
  return v.is(kind::floating) ? name == "is_integer" : (v.is(kind::integer) || v.is(kind::boolean)) && name == "bit_length";
}

inline value bound_method::call(runtime& rt, const arguments& args) {
  if (self_.is_string()) return call_string_method(rt, self_, name_, args);
  if (self_.is(kind::dict)) return call_dict_method(rt, self_, name_, args);
  if (self_.is(kind::list)) return call_list_method(rt, self_, name_, args);
  if (self_.is(kind::object)) return self_.as_object().call_method(rt, name_, args);
  return call_number_method(rt, self_, name_, args);
}

/// What Python's getattr() finds, with the sandbox's refusals; `found` tells whether there is such an attribute.
inline value python_attribute(runtime& rt, const value& base, std::string_view name, bool& found) {
  found = true;
  if (is_blocked_method(base, name))
    return rt.make_undefined("access to attribute '" + std::string(name.substr(0, 100)) + "' of '" + std::string(type_name(base)) + "' object is unsafe.");
  const bool method = base.is_string() ? is_string_method(name) : base.is(kind::dict) ? is_dict_method(name)
                      : base.is(kind::list) ? is_list_method(base, name) : is_number_method(base, name);
  if (method) return rt.share<bound_method>(base, name);
  if (base.is(kind::object)) return base.as_object().attribute(rt, base, name, found);
  found = false;
  return value();
}

inline value missing_attribute(runtime& rt, const value& base, const value& key) {
  const std::string owner = base.is_none() ? "None" : std::string(type_name(base)) + " object";
  if (key.is_string()) return rt.make_undefined("'" + owner + "' has no attribute '" + std::string(key.view().substr(0, 100)) + "'");
  return rt.make_undefined(owner + " has no element " + repr(rt, key).substr(0, 100));
}

/// `base.name`: the attribute, else the item of that name, else undefined.
inline value get_attribute(runtime& rt, const value& base, std::string_view name) {
  rt.m.step();
  if (base.is_undefined()) rt.use_of_undefined(base);
  bool found = false;
  value v = python_attribute(rt, base, name, found);
  if (found) return v;
  if (base.is(kind::dict))
    if (const value* item = dict_find(base.as_dict(), name)) return *item;
  return missing_attribute(rt, base, value(std::string(name)));
}

/// Index of Python's: counted from the end if negative; npos if out of range.
inline std::size_t python_index(std::int64_t i, std::size_t size) {
  const std::int64_t n = static_cast<std::int64_t>(size);
  if (i < 0) i += n;
  return i < 0 || i >= n ? std::string::npos : static_cast<std::size_t>(i);
}

/// `base[key]`: the item, else the attribute of that name, else undefined.
inline value get_item(runtime& rt, const value& base, const value& key) {
  rt.m.step();
  if (base.is_undefined()) rt.use_of_undefined(base);
  const bool integer = key.is(kind::integer) || key.is(kind::boolean);
  if (base.is(kind::dict)) {
    if (const value* item = dict_lookup(base.as_dict(), key)) return *item;
  } else if (base.is(kind::list) && integer && (is_sequence_literal(base) || base.as_list().kind_of == flavor::range)) {
    const std::size_t i = python_index(key.as_integer(), base.as_list().items.size());
    if (i != std::string::npos) return base.as_list().items[i];
  } else if (base.is_string() && integer) {
    const std::string_view s = base.view();
    rt.m.touch(s.size());
    const bool ascii = is_ascii(s);
    const std::size_t i = python_index(key.as_integer(), ascii ? s.size() : count_characters(s));
    if (i != std::string::npos) {
      const std::size_t begin = ascii ? i : byte_offset(s, i);
      return rt.make(base.as_text().slice(begin, begin + character_length(s, begin)));
    }
  }
  if (key.is_string()) {
    bool found = false;
    value v = python_attribute(rt, base, key.view(), found);
    if (found) return v;
  }
  return missing_attribute(rt, base, key);
}

/// len(v).
inline std::int64_t length_of(runtime& rt, const value& v) {
  switch (v.type()) {
    case kind::undefined: return 0;
    case kind::string: rt.m.touch(v.as_text().size()); return static_cast<std::int64_t>(count_characters(v.view()));
    case kind::list: return static_cast<std::int64_t>(v.as_list().items.size());
    case kind::dict: return static_cast<std::int64_t>(v.as_dict().entries.size());
    case kind::object:
      if (v.as_object().type_name() == "LoopContext") return get_attribute(rt, v, "length").as_integer();
      break;
    case kind::none:
    case kind::boolean:
    case kind::integer:
    case kind::big_integer:
    case kind::floating:
    case kind::generator: break;
  }
  rt.fail({"expected something with a length, got '", type_name(v), "'"});
}

/// range(start, stop, by), by not zero.
inline value make_range(runtime& rt, std::int64_t start, std::int64_t stop, std::int64_t by) {
  std::uint64_t n = 0;  // distances of 64-bit integers fit into unsigned ones
  const auto distance = [](std::int64_t from, std::int64_t to) { return static_cast<std::uint64_t>(to) - static_cast<std::uint64_t>(from); };
  if (by > 0 && start < stop) n = (distance(start, stop) - 1) / static_cast<std::uint64_t>(by) + 1;
  if (by < 0 && start > stop) n = (distance(stop, start) - 1) / (0 - static_cast<std::uint64_t>(by)) + 1;
  if (n > rt.m.bounds().max_range)
    rt.m.fail({"expected a range of at most ", std::to_string(rt.m.bounds().max_range), " items, got a longer one"}, errc::out_of_memory);
  rt.m.step(1 + n / 8);
  auto l = std::make_unique<list_object>();
  l->held = charge(&rt.m, 128 + sizeof(value) * static_cast<std::size_t>(n));
  l->items.reserve(static_cast<std::size_t>(n));
  for (std::uint64_t i = 0; i < n; ++i) l->items.push_back(value(start + static_cast<std::int64_t>(i) * by));
  l->kind_of = flavor::range;
  l->start = start, l->stop = stop, l->stride = by;
  return value(kind::list, std::move(l));
}

/// `base[start:stop:step]`; null pointers are left out.
inline value get_slice(runtime& rt, const value& base, const value* start, const value* stop, const value* stride) {
  if (base.is_undefined()) rt.use_of_undefined(base);
  const bool sequence = base.is(kind::list) && (is_sequence_literal(base) || base.as_list().kind_of == flavor::range);
  if (!base.is_string() && !sequence) rt.fail({"expected a sequence to slice, got '", type_name(base), "'"});
  const auto bound = [&](const value* v, std::int64_t fallback) {
    return !v || v->is_none() ? fallback : integer_argument(rt, "slice", *v);
  };
  std::int64_t by = bound(stride, 1);
  if (by == 0) rt.fail("expected a slice step other than zero, got zero");

  std::string_view s;
  std::vector<std::size_t> offsets;  // where characters begin, if they are not all one byte
  charge held;
  std::int64_t n = 0;
  if (base.is_string()) {
    s = base.view();
    rt.m.touch(s.size());
    if (is_ascii(s)) {
      n = static_cast<std::int64_t>(s.size());
    } else {
      n = static_cast<std::int64_t>(count_characters(s));
      held = charge(&rt.m, sizeof(std::size_t) * static_cast<std::size_t>(n));
      offsets.reserve(static_cast<std::size_t>(n) + 1);
      for_each_character(s, [&](char32_t, std::size_t begin, std::size_t) { offsets.push_back(begin); });
      offsets.push_back(s.size());
    }
  } else {
    n = static_cast<std::int64_t>(base.as_list().items.size());
  }

  by = by > n ? n + 1 : by < -n ? -n - 1 : by;  // beyond the length all steps are alike
  const auto clamp = [&](std::int64_t i, std::int64_t low, std::int64_t high) {
    if (i < 0) i += n;
    return i < low ? low : i > high ? high : i;
  };
  const std::int64_t first = by > 0 ? 0 : -1, last = by > 0 ? n : n - 1;
  const std::int64_t from = start && !start->is_none() ? clamp(bound(start, 0), first, last) : by > 0 ? 0 : n - 1;
  const std::int64_t to = stop && !stop->is_none() ? clamp(bound(stop, 0), first, last) : by > 0 ? n : -1;
  const auto offset = [&](std::int64_t i) { return offsets.empty() ? static_cast<std::size_t>(i) : offsets[static_cast<std::size_t>(i)]; };

  if (base.is_string()) {
    text t;
    if (by == 1) {
      if (from < to) t = base.as_text().slice(offset(from), offset(to));
    } else {
      for (std::int64_t i = from; by > 0 ? i < to : i > to;) {
        t.append(base.as_text(), offset(i), offset(i) + character_length(s, offset(i)));
        if (by > 0 ? i > to - by : i < to - by) break;
        i += by;
      }
      rt.m.step(t.size());
    }
    return rt.make(std::move(t));
  }
  if (base.as_list().kind_of == flavor::range) {
    const list_object& r = base.as_list();
    const auto at = [&r](std::int64_t i) {  // wraps instead of overflowing, past the end of a range at the end of the integers
      return static_cast<std::int64_t>(static_cast<std::uint64_t>(r.start) + static_cast<std::uint64_t>(i) * static_cast<std::uint64_t>(r.stride));
    };
    return make_range(rt, at(from), at(to), r.stride * by);
  }
  std::vector<value> items;
  for (std::int64_t i = from; by > 0 ? i < to : i > to;) {
    items.push_back(base.as_list().items[static_cast<std::size_t>(i)]);
    if (by > 0 ? i > to - by : i < to - by) break;
    i += by;
  }
  return rt.make_list(std::move(items), base.as_list().kind_of == flavor::tuple ? flavor::tuple : flavor::list);
}

inline value call_value(runtime& rt, const value& callee, const arguments& args) {
  rt.m.step();
  if (callee.is_undefined()) rt.use_of_undefined(callee);
  if (!callee.is(kind::object) || !callee.as_object().callable()) rt.fail({"expected something callable, got '", type_name(callee), "'"});
  return callee.as_object().call(rt, args);
}

}  // namespace jinja
}  // namespace quena::inline QUENA_ABI
