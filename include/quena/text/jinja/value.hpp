// SPDX-License-Identifier: MIT
// Values of the template language: Python's, as far as templates can tell.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "meter.hpp"
#include "text.hpp"

namespace quena::inline QUENA_ABI {
namespace jinja {

class runtime;
struct arguments;

enum class kind : std::uint8_t { undefined, none, boolean, integer, big_integer, floating, string, list, dict, generator, object };

/// Which Python sequence a list stands for; they print, slice and answer tests differently.
enum class flavor : std::uint8_t { list, tuple, range, dict_keys, dict_values, dict_items };

class object;
struct string_object;
struct list_object;
struct dict_object;
struct generator_object;

/// What values share: it counts the values that own it.
class shared {
 public:
  shared() = default;
  shared(const shared&) = delete;
  shared& operator=(const shared&) = delete;

 protected:
  ~shared() = default;

 private:
  friend class value;
  mutable std::atomic<std::uint32_t> owners_{0};
  // What the last owner calls. Not a virtual destructor: to the compiler that may be the one of any derived class, and it would go
  // through the whole interpreter, which the methods of some refer to, in units that only parse templates.
  void (*destroy_)(const shared*) = nullptr;
};

/// One value; copying shares. Values that a caller makes (from JSON, from strings) are immutable and may be used by
/// several renderings at once.
class value {
 public:
  value() : kind_(kind::undefined) { as_.shared = nullptr; }
  value(std::nullptr_t) : kind_(kind::none) { as_.shared = nullptr; }
  value(bool b) : kind_(kind::boolean) { as_.integer = b; }
  value(std::int64_t i) : kind_(kind::integer) { as_.integer = i; }
  value(int i) : value(std::int64_t{i}) {}
  value(double d) : kind_(kind::floating) { as_.floating = d; }
  value(std::string s, bool from_template = false);
  value(const char* s) : value(std::string(s)) {}
  /// Takes over a newly made object.
  template <class T>
  value(kind k, std::unique_ptr<T> made) : value(k, made.get(), true) {
    made.release()->destroy_ = [](const shared* s) { delete static_cast<const T*>(s); };
  }
  /// Refers to an object that others keep alive.
  static value borrow(kind k, const shared& s) { return value(k, &s, false); }

  value(const value& o) noexcept : kind_(o.kind_), owns_(o.owns_), as_(o.as_) {
    if (owns_) as_.shared->owners_.fetch_add(1, std::memory_order_relaxed);
  }
  value(value&& o) noexcept : kind_(o.kind_), owns_(o.owns_), as_(o.as_) { o.owns_ = false, o.kind_ = kind::none; }
  value& operator=(value o) noexcept {
    std::swap(kind_, o.kind_), std::swap(owns_, o.owns_), std::swap(as_, o.as_);
    return *this;
  }
  ~value() {
    if (owns_) drop();
  }

  /// A list or dict of the caller's: value::list({1, "two", nullptr}), value::dict({{"role", "user"}}).
  static value list(std::vector<value> items, flavor f = flavor::list);
  static value dict(std::vector<std::pair<value, value>> entries);

  [[nodiscard]] kind type() const noexcept { return kind_; }
  [[nodiscard]] bool is(kind k) const noexcept { return kind_ == k; }
  [[nodiscard]] bool is_undefined() const noexcept { return is(kind::undefined); }
  [[nodiscard]] bool is_none() const noexcept { return is(kind::none); }
  [[nodiscard]] bool is_string() const noexcept { return is(kind::string); }
  [[nodiscard]] bool is_number() const noexcept {  // Python's bool is an int
    return is(kind::boolean) || is(kind::integer) || is(kind::floating);
  }

  [[nodiscard]] bool as_boolean() const { return as_.integer != 0; }
  [[nodiscard]] std::int64_t as_integer() const { return as_.integer; }  // of a boolean too
  [[nodiscard]] double as_float() const { return is(kind::floating) ? as_.floating : static_cast<double>(as_.integer); }
  [[nodiscard]] const std::string& digits() const;
  [[nodiscard]] const text& as_text() const;
  [[nodiscard]] std::string_view view() const { return as_text().view(); }
  [[nodiscard]] const list_object& as_list() const;
  [[nodiscard]] const dict_object& as_dict() const;
  [[nodiscard]] generator_object& as_generator() const;
  [[nodiscard]] object& as_object() const;
  [[nodiscard]] std::string_view undefined_message() const;

  /// Python's `is`: the same object, or the same small constant.
  [[nodiscard]] bool same_as(const value& o) const noexcept {
    if (kind_ != o.kind_) return false;
    if (is(kind::floating)) return as_.floating == o.as_.floating;
    if (is(kind::integer) || is(kind::boolean)) return as_.integer == o.as_.integer;
    return as_.shared == o.as_.shared;
  }

 private:
  value(kind k, const shared* s, bool owns) : kind_(k), owns_(owns) {
    as_.shared = s;
    if (owns) s->owners_.fetch_add(1, std::memory_order_relaxed);
  }

  // Out of line (as a few others here): values die in so many places that the code would weigh more than the engine.
  [[gnu::noinline]] void drop() noexcept {
    if (as_.shared->owners_.fetch_sub(1, std::memory_order_acq_rel) == 1) as_.shared->destroy_(as_.shared);
  }

  kind kind_;
  bool owns_ = false;
  union {
    std::int64_t integer;
    double floating;
    const jinja::shared* shared;
  } as_;
};

struct undefined_object final : shared {
  std::string message;  ///< what an attempt to use it says
};
struct big_integer_object final : shared {
  std::string digits;
};
struct string_object final : shared {
  text t;
  charge held;
};

struct list_object final : shared {
  std::vector<value> items;
  flavor kind_of = flavor::list;
  std::int64_t start = 0, stop = 0, stride = 1;  ///< of a range
  std::size_t depth = 1;                         ///< nesting of containers, this one included
  charge held;
};

/// A dictionary in order of insertion. Lookups go through an ordered index once there are more than a few entries: hostile
/// keys cannot make it slow, as they could with a hash table.
struct dict_object final : shared {
  std::vector<std::pair<value, value>> entries;
  std::map<std::string, std::size_t, std::less<>> index;
  std::size_t depth = 1;
  charge held;
};

/// What map, select, batch, … return: it can be walked once, has no length and is always true.
struct generator_object final : shared {
  std::vector<value> items;
  std::size_t at = 0;
  std::size_t depth = 1;
  charge held;
};

/// Everything with behaviour: functions, macros, bound methods, namespaces, loops. Objects that could hold themselves
/// (a namespace put into itself) belong to the rendering, and values only refer to them.
class object : public shared {
 public:
  virtual ~object() = default;
  [[nodiscard]] virtual std::string_view type_name() const = 0;
  virtual std::string repr(runtime&) { return "<" + std::string(type_name()) + ">"; }
  /// The attribute, or undefined with `found` false. `self` is the value that refers to this object.
  inline virtual value attribute(runtime&, const value& self, std::string_view name, bool& found);
  [[nodiscard]] virtual bool callable() const { return false; }
  inline virtual value call(runtime&, const arguments&);
  inline virtual value call_method(runtime&, std::string_view name, const arguments&);
  /// `set ns.name = v`; false if this is no namespace.
  virtual bool assign(runtime&, std::string_view, value) { return false; }
  /// Levels of values inside this one, so that no chain of values gets too long to walk or destroy by recursion.
  [[nodiscard]] virtual std::size_t depth() const { return 0; }
};

/// What a call passes.
struct arguments {
  std::vector<value> positional;
  std::vector<std::pair<std::string, value>> named;

  [[nodiscard]] const value* find(std::string_view name) const {
    for (const auto& [key, v] : named)
      if (key == name) return &v;
    return nullptr;
  }
};

inline value object::attribute(runtime&, const value&, std::string_view, bool& found) { return found = false, value(); }

inline std::size_t container_depth(const value& v) {
  return v.is(kind::list) ? v.as_list().depth : v.is(kind::dict) ? v.as_dict().depth : v.is(kind::generator) ? v.as_generator().depth : v.is(kind::object) ? v.as_object().depth() : 0;
}
inline std::size_t container_depth(const std::vector<value>& items) {
  std::size_t depth = 0;
  for (const value& v : items) depth = (std::max)(depth, container_depth(v));
  return depth;
}

/// Text under which a key is filed: equal keys (1, 1.0 and true are equal) have equal texts. Empty: not hashable.
inline std::string dict_key(const value& v) {
  switch (v.type()) {
    case kind::none: return "n";
    case kind::boolean:
    case kind::integer: return "i" + std::to_string(v.as_integer());
    case kind::big_integer: return "i" + v.digits();
    case kind::floating: {
      const double d = v.as_float();
      if (d >= -9e18 && d <= 9e18 && d == static_cast<double>(static_cast<std::int64_t>(d)))
        return "i" + std::to_string(static_cast<std::int64_t>(d));
      return "f" + std::to_string(std::bit_cast<std::uint64_t>(d));
    }
    case kind::string: return "s" + v.as_text().bytes();
    case kind::list: {
      if (v.as_list().kind_of != flavor::tuple) return {};
      std::string s = "t";
      for (const value& item : v.as_list().items) {
        const std::string k = dict_key(item);
        if (k.empty()) return {};
        s.append(std::to_string(k.size())).append(":").append(k);
      }
      return s;
    }
    case kind::undefined: return "u";
    case kind::dict:
    case kind::generator:
    case kind::object: return {};
  }
  return {};
}

inline constexpr std::size_t indexed_from = 8;  // entries; below this a linear search is faster than the index

/// Position of the entry with this key, or npos.
inline std::size_t dict_position(const dict_object& d, const std::string& key) {
  if (d.entries.size() > indexed_from) {
    const auto it = d.index.find(key);
    return it == d.index.end() ? std::string::npos : it->second;
  }
  for (std::size_t i = 0; i < d.entries.size(); ++i)
    if (dict_key(d.entries[i].first) == key) return i;
  return std::string::npos;
}

inline const value* dict_find(const dict_object& d, std::string_view key) {  // a string key
  if (d.entries.size() > indexed_from) {
    const auto it = d.index.find("s" + std::string(key));
    return it == d.index.end() ? nullptr : &d.entries[it->second].second;
  }
  for (const auto& [k, v] : d.entries)
    if (k.is_string() && k.view() == key) return &v;
  return nullptr;
}

inline const value* dict_lookup(const dict_object& d, const value& key) {
  if (key.is_string()) return dict_find(d, key.view());
  const std::size_t at = dict_position(d, dict_key(key));
  return at == std::string::npos ? nullptr : &d.entries[at].second;
}

/// Adds or, as Python does, replaces the value and keeps the first key. The key must be hashable.
/// Returns false if the key was there already.
inline bool dict_insert(dict_object& d, value key, value v) {
  const std::string k = dict_key(key);
  d.depth = (std::max)(d.depth, 1 + container_depth(v));
  if (const std::size_t at = dict_position(d, k); at != std::string::npos) {
    d.entries[at].second = std::move(v);
    return false;
  }
  d.entries.emplace_back(std::move(key), std::move(v));
  if (d.entries.size() == indexed_from + 1) {
    for (std::size_t i = 0; i < d.entries.size(); ++i) d.index.emplace(dict_key(d.entries[i].first), i);
  } else if (d.entries.size() > indexed_from) {
    d.index.emplace(k, d.entries.size() - 1);
  }
  return true;
}

inline value::value(std::string s, bool from_template) : kind_(kind::string) {
  auto made = std::make_unique<string_object>();
  made->t = text(std::move(s), from_template);
  *this = value(kind::string, std::move(made));
}
inline const std::string& value::digits() const { return static_cast<const big_integer_object*>(as_.shared)->digits; }
inline const text& value::as_text() const { return static_cast<const string_object*>(as_.shared)->t; }
inline const list_object& value::as_list() const { return *static_cast<const list_object*>(as_.shared); }
inline const dict_object& value::as_dict() const { return *static_cast<const dict_object*>(as_.shared); }
inline generator_object& value::as_generator() const { return *const_cast<generator_object*>(static_cast<const generator_object*>(as_.shared)); }
inline object& value::as_object() const { return *const_cast<object*>(static_cast<const object*>(as_.shared)); }
inline std::string_view value::undefined_message() const {
  return as_.shared ? std::string_view(static_cast<const undefined_object*>(as_.shared)->message) : "value is undefined";
}

inline value value::list(std::vector<value> items, flavor f) {
  auto l = std::make_unique<list_object>();
  l->depth = 1 + container_depth(items);
  l->items = std::move(items);
  l->kind_of = f;
  return value(kind::list, std::move(l));
}

inline value value::dict(std::vector<std::pair<value, value>> entries) {
  auto d = std::make_unique<dict_object>();
  for (auto& [k, v] : entries) dict_insert(*d, std::move(k), std::move(v));
  return value(kind::dict, std::move(d));
}

}  // namespace jinja
}  // namespace quena::inline QUENA_ABI
