// SPDX-License-Identifier: MIT
// The functions every template can call: range, dict, namespace, cycler, joiner, raise_exception, strftime_now.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "access.hpp"
#include "clock.hpp"
#include "repr.hpp"
#include "runtime.hpp"

namespace quena::inline QUENA_ABI {
namespace jinja {

/// The one thing a template can change: `set ns.x = …` reaches out of loops and macros.
class namespace_object final : public object {
 public:
  explicit namespace_object(runtime& rt) : held_(&rt.m, 0) {}
  [[nodiscard]] std::string_view type_name() const override { return "Namespace"; }
  std::string repr(runtime& rt) override {
    text t;
    const nested guard(rt.m);
    t.append("<Namespace {", false);
    for (std::size_t i = 0; i < d_.entries.size(); ++i) {
      if (i) t.append(", ", false);
      append_repr(rt, t, d_.entries[i].first);
      t.append(": ", false);
      append_repr(rt, t, d_.entries[i].second);
    }
    return t.bytes() + "}>";
  }
  value attribute(runtime&, const value&, std::string_view name, bool& found) override {
    const value* v = dict_find(d_, name);
    found = v != nullptr;
    return v ? *v : value();
  }
  bool assign(runtime& rt, std::string_view name, value v) override {
    rt.m.touch(name.size());
    if (dict_insert(d_, value(std::string(name)), std::move(v))) held_.grow(256 + 3 * name.size());
    return true;
  }

 private:
  dict_object d_;
  charge held_;
};

class cycler final : public object {
 public:
  cycler(std::vector<value> items, meter* m) : items_(std::move(items)), held_(m, 128 + sizeof(value) * items_.size()) {}
  [[nodiscard]] std::string_view type_name() const override { return "Cycler"; }
  [[nodiscard]] std::size_t depth() const override { return 1 + container_depth(items_); }
  value attribute(runtime& rt, const value& self, std::string_view name, bool& found) override {
    found = one_of(name, {"current", "next", "reset"});
    return name == "current" ? items_[at_] : found ? rt.share<bound_method>(self, name) : value();
  }
  value call_method(runtime& rt, std::string_view name, const arguments& args) override {
    bind_nothing(rt, name, args);
    if (name == "reset") return at_ = 0, value(nullptr);
    const value v = items_[at_];
    at_ = (at_ + 1) % items_.size();
    return v;
  }

 private:
  std::vector<value> items_;
  charge held_;
  std::size_t at_ = 0;
};

class joiner final : public object {
 public:
  explicit joiner(value separator) : separator_(std::move(separator)) {}
  [[nodiscard]] std::string_view type_name() const override { return "Joiner"; }
  [[nodiscard]] std::size_t depth() const override { return 1 + container_depth(separator_); }
  [[nodiscard]] bool callable() const override { return true; }
  value call(runtime& rt, const arguments& args) override {
    bind_nothing(rt, "a joiner", args);
    return std::exchange(used_, true) ? separator_ : rt.make("", true);
  }

 private:
  value separator_;
  bool used_ = false;
};

namespace globals {

inline value range(runtime& rt, const arguments& args) {
  const auto a = bind(rt, "range", args, {"start", "stop", "step"}, 1);
  std::int64_t start = 0, stop = integer_argument(rt, "range", *a[0]), by = 1;
  if (a[1]) start = stop, stop = integer_argument(rt, "range", *a[1]);
  if (a[2]) by = integer_argument(rt, "range", *a[2]);
  if (by == 0) rt.fail("expected a step of range() other than zero, got zero");
  return make_range(rt, start, stop, by);
}

/// The pairs that dict(…) and namespace(…) start from: a mapping or a list of pairs, then the named arguments.
template <class F>
void each_pair(runtime& rt, std::string_view who, const arguments& args, F&& f) {
  if (args.positional.size() > 1) rt.fail({"expected at most one mapping for ", who, ", got more"});
  if (!args.positional.empty()) {
    const value& from = args.positional[0];
    if (from.is(kind::dict)) {
      for (const auto& [key, v] : from.as_dict().entries) f(key, v);
    } else {
      for (const value& pair : rt.items_of(from)) {
        const std::vector<value> two = rt.items_of(pair);
        if (two.size() != 2) rt.fail({"expected pairs for ", who, ", got something else"});
        f(two[0], two[1]);
      }
    }
  }
  for (const auto& [key, v] : args.named) f(rt.make(key, true), v);
}

inline value dict(runtime& rt, const arguments& args) {
  runtime::dict_maker d(rt);
  each_pair(rt, "dict", args, [&](const value& key, const value& v) { d.add(key, v); });
  return d.finish();
}

inline value make_namespace(runtime& rt, const arguments& args) {
  const value ns = rt.own<namespace_object>(rt);
  each_pair(rt, "namespace", args, [&](const value& key, const value& v) {
    if (!key.is_string()) rt.fail({"expected names for namespace, got '", type_name(key), "'"});
    ns.as_object().assign(rt, key.view(), v);
  });
  return ns;
}

inline value make_cycler(runtime& rt, const arguments& args) {
  if (args.positional.empty() || !args.named.empty()) rt.fail("expected at least one item for cycler, got none");
  return rt.share<cycler>(args.positional, &rt.m);
}

inline value make_joiner(runtime& rt, const arguments& args) {
  const auto a = bind(rt, "joiner", args, {"sep"});
  return rt.share<joiner>(a[0] ? *a[0] : rt.make(", "));
}

/// The template's own refusal. The message may quote a conversation, so it is shortened.
inline value raise_exception(runtime& rt, const arguments& args) {
  const auto a = bind(rt, "raise_exception", args, {"message"}, 1);
  rt.fail({"the template refuses: ", to_text(rt, *a[0]).view().substr(0, 1000)});
}

struct named_global {
  std::string_view name;
  builtin::function f;
};
inline constexpr named_global all[] = {
    {"range", range},   {"dict", dict},     {"namespace", make_namespace},         {"cycler", make_cycler},
    {"joiner", make_joiner}, {"raise_exception", raise_exception}, {"strftime_now", strftime_now},
};

}  // namespace globals

/// The global of that name, or undefined.
inline value find_global(runtime& rt, std::string_view name) {
  for (const globals::named_global& g : globals::all)
    if (g.name == name) return rt.share<builtin>(g.name, g.f);
  return rt.make_undefined("'" + std::string(name.substr(0, 100)) + "' is undefined");
}

}  // namespace jinja
}  // namespace quena::inline QUENA_ABI
