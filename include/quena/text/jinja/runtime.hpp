// SPDX-License-Identifier: MIT
// What filters, tests, methods and the interpreter share while a template is rendered: budgets, making values, errors.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "meter.hpp"
#include "text.hpp"
#include "unicode.hpp"
#include "value.hpp"

namespace quena::inline QUENA_ABI {
namespace jinja {

using clock_function = std::function<std::tm()>;

/// Python's name for the type, as error messages give it.
inline std::string_view type_name(const value& v) {
  switch (v.type()) {
    case kind::undefined: return "Undefined";
    case kind::none: return "NoneType";
    case kind::boolean: return "bool";
    case kind::integer:
    case kind::big_integer: return "int";
    case kind::floating: return "float";
    case kind::string: return "str";
    case kind::list:
      switch (v.as_list().kind_of) {
        case flavor::list: return "list";
        case flavor::tuple: return "tuple";
        case flavor::range: return "range";
        case flavor::dict_keys: return "dict_keys";
        case flavor::dict_values: return "dict_values";
        case flavor::dict_items: return "dict_items";
      }
      return "list";
    case kind::dict: return "dict";
    case kind::generator: return "generator";
    case kind::object: return v.as_object().type_name();
  }
  return "object";
}

/// Python's truth.
inline bool truthy(const value& v) {
  switch (v.type()) {
    case kind::undefined:
    case kind::none: return false;
    case kind::boolean: return v.as_boolean();
    case kind::integer: return v.as_integer() != 0;
    case kind::floating: return v.as_float() != 0;
    case kind::string: return !v.as_text().empty();
    case kind::list: return !v.as_list().items.empty();
    case kind::dict: return !v.as_dict().entries.empty();
    case kind::big_integer:
    case kind::generator:
    case kind::object: return true;
  }
  return true;
}

/// One rendering's state. Values made here are charged to its meter and die with it; namespaces and macros, which could
/// otherwise hold each other in a circle, belong to it.
class runtime {
 public:
  runtime(const limits& bounds, std::string_view name, std::size_t input_bytes, const clock_function& clock)
      : m(bounds, name, input_bytes), clock_(clock) {}

  meter m;  // first member: it outlives everything that is charged to it

  [[noreturn]] void fail(std::string_view message) const { m.fail({message}); }
  [[noreturn]] void fail(std::initializer_list<std::string_view> message) const { m.fail(message); }
  [[noreturn]] void use_of_undefined(const value& v) const { fail({"expected a defined value: ", v.undefined_message()}); }

  [[gnu::noinline]] value make(text t) {
    m.check_text(t.size());
    m.touch(t.size());
    auto s = std::make_unique<string_object>();
    s->held = charge(&m, 128 + t.size() + 8 * t.n_runs());
    s->t = std::move(t);
    return value(kind::string, std::move(s));
  }
  value make(std::string bytes, bool from_template = false) { return make(text(std::move(bytes), from_template)); }

  [[gnu::noinline]] value make_list(std::vector<value> items, flavor f = flavor::list) {
    m.step(1 + items.size() / 8);
    auto l = std::make_unique<list_object>();
    l->held = charge(&m, 128 + sizeof(value) * items.size());
    l->depth = 1 + container_depth(items);
    check_depth(l->depth);
    l->items = std::move(items);
    l->kind_of = f;
    return value(kind::list, std::move(l));
  }
  [[gnu::noinline]] value make_tuple(value a, value b) {
    std::vector<value> items;
    items.push_back(std::move(a));
    items.push_back(std::move(b));
    return make_list(std::move(items), flavor::tuple);
  }
  [[gnu::noinline]] value make_generator(std::vector<value> items) {
    m.step(1 + items.size() / 8);
    auto g = std::make_unique<generator_object>();
    check_depth(g->depth = 1 + container_depth(items));
    g->held = charge(&m, 128 + sizeof(value) * items.size());
    g->items = std::move(items);
    return value(kind::generator, std::move(g));
  }
  [[gnu::noinline]] value make_undefined(std::string message) {
    m.step();
    auto u = std::make_unique<undefined_object>();
    u->message = std::move(message);
    return value(kind::undefined, std::move(u));
  }

  /// A dict in the making; finish() turns it into a value.
  class dict_maker {
   public:
    explicit dict_maker(runtime& rt) : rt_(rt), d_(std::make_unique<dict_object>()) { d_->held = charge(&rt.m, 128); }
    void add(const value& key, const value& v) {
      const std::string k = dict_key(key);
      if (k.empty()) rt_.fail({"expected a hashable key, got '", type_name(key), "'"});
      rt_.m.touch(k.size());
      d_->held.grow(128 + 2 * k.size());
      dict_insert(*d_, key, v);
      rt_.check_depth(d_->depth);
    }
    value finish() { return value(kind::dict, std::move(d_)); }

   private:
    runtime& rt_;
    std::unique_ptr<dict_object> d_;
  };

  /// An object that belongs to the rendering.
  template <class T, class... Args>
  value own(Args&&... args) {
    m.hold(256);
    owned_.push_back(std::make_unique<T>(std::forward<Args>(args)...));
    return value::borrow(kind::object, *owned_.back());
  }
  /// An object that lives as long as somebody refers to it.
  template <class T, class... Args>
  value share(Args&&... args) {
    m.step();
    std::unique_ptr<object> made = std::make_unique<T>(std::forward<Args>(args)...);
    check_depth(made->depth());
    return value(kind::object, std::move(made));
  }

  /// The items that iterating over `v` gives; a generator is used up by it.
  [[gnu::noinline]] std::vector<value> items_of(const value& v) {
    std::vector<value> out;
    switch (v.type()) {
      case kind::undefined: return out;
      case kind::list: m.step(1 + v.as_list().items.size() / 8); return v.as_list().items;
      case kind::dict:
        m.step(1 + v.as_dict().entries.size() / 8);
        for (const auto& [key, item] : v.as_dict().entries) out.push_back(key);
        return out;
      case kind::string: {
        const text& t = v.as_text();
        for_each_character(t.view(), [&](char32_t, std::size_t begin, std::size_t end) { out.push_back(make(t.slice(begin, end))); });
        return out;
      }
      case kind::generator: {
        generator_object& g = v.as_generator();
        m.step(1 + g.items.size() / 8);
        out.assign(g.items.begin() + static_cast<std::ptrdiff_t>(g.at), g.items.end());
        g.at = g.items.size();
        return out;
      }
      case kind::none:
      case kind::boolean:
      case kind::integer:
      case kind::big_integer:
      case kind::floating:
      case kind::object: break;
    }
    fail({"expected something to iterate over, got '", type_name(v), "'"});
  }

  [[nodiscard]] std::tm now() const {
    if (clock_) return clock_();
    const std::time_t t = std::time(nullptr);
    std::tm out{};
#if defined(_WIN32)
    localtime_s(&out, &t);
#else
    localtime_r(&t, &out);
#endif
    return out;
  }

  void check_depth(std::size_t depth) const {
    if (depth > m.bounds().max_value_depth) m.fail({"expected values nested at most ", std::to_string(m.bounds().max_value_depth), " deep, got more"}, errc::out_of_memory);
  }

 private:
  const clock_function& clock_;
  std::vector<std::unique_ptr<object>> owned_;
};

inline value object::call_method(runtime& rt, std::string_view, const arguments&) { rt.fail({"expected something callable, got '", type_name(), "'"}); }
inline value object::call(runtime& rt, const arguments&) { rt.fail({"expected something callable, got '", type_name(), "'"}); }

/// The arguments of a call in the order of the callee's parameters; null where nothing was passed.
struct bound_arguments {
  const value* at[4] = {nullptr, nullptr, nullptr, nullptr};
  const value* operator[](std::size_t i) const { return at[i]; }
};

[[gnu::noinline]] inline bound_arguments bind_names(runtime& rt, std::string_view who, const arguments& args, std::span<const std::string_view> names, std::size_t required) {
  bound_arguments out;
  if (args.positional.size() > names.size())
    rt.fail({"expected at most ", std::to_string(names.size()), " arguments for ", who, ", got ", std::to_string(args.positional.size())});
  for (std::size_t i = 0; i < args.positional.size(); ++i) out.at[i] = &args.positional[i];
  for (const auto& [key, v] : args.named) {
    const std::size_t i = static_cast<std::size_t>(std::find(names.begin(), names.end(), key) - names.begin());
    if (i == names.size()) rt.fail({"expected known arguments for ", who, ", got '", key, "'"});
    if (out.at[i]) rt.fail({"expected each argument of ", who, " once, got '", key, "' twice"});
    out.at[i] = &v;
  }
  for (std::size_t i = 0; i < required; ++i)
    if (!out.at[i]) rt.fail({"expected the argument '", names[i], "' for ", who, ", got none"});
  return out;
}

/// Matches a call's arguments to parameter names, as Python does: `bind(rt, "replace", args, {"old", "new", "count"}, 2)`;
/// the first `required` must be given.
template <std::size_t N>
bound_arguments bind(runtime& rt, std::string_view who, const arguments& args, const std::string_view (&names)[N], std::size_t required = 0) {
  static_assert(N <= 4);
  return bind_names(rt, who, args, names, required);
}
inline void bind_nothing(runtime& rt, std::string_view who, const arguments& args) {
  if (!args.positional.empty() || !args.named.empty()) rt.fail({"expected no arguments for ", who, ", got some"});
}

/// An argument that must be an integer (or a bool, which is one).
inline std::int64_t integer_argument(runtime& rt, std::string_view who, const value& v) {
  if (!v.is(kind::integer) && !v.is(kind::boolean)) {
    if (v.is_undefined()) rt.use_of_undefined(v);
    rt.fail({"expected an integer for ", who, ", got '", type_name(v), "'"});
  }
  return v.as_integer();
}

// The rest of the engine, each in its own header.
value get_attribute(runtime&, const value& base, std::string_view name);                         // access.hpp
value get_item(runtime&, const value& base, const value& key);                                   // access.hpp
value call_value(runtime&, const value& callee, const arguments&);                               // access.hpp
value apply_filter(runtime&, std::string_view name, const value& input, const arguments&);      // filters.hpp
bool apply_test(runtime&, std::string_view name, const value& input, const arguments&);         // tests.hpp

}  // namespace jinja
}  // namespace quena::inline QUENA_ABI
