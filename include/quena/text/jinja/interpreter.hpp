// SPDX-License-Identifier: MIT
// Walks a program and writes the text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "access.hpp"
#include "ast.hpp"
#include "filters.hpp"
#include "globals.hpp"
#include "operators.hpp"
#include "repr.hpp"
#include "runtime.hpp"
#include "string_methods.hpp"
#include "tests.hpp"

namespace quena::inline QUENA_ABI {
namespace jinja {

/// Names of one block: loops, macros and `with` open one, `if` does not. Lookups go outwards.
struct scope {
  std::shared_ptr<scope> parent;
  std::vector<std::pair<std::uint32_t, value>> names;
};
using scope_pointer = std::shared_ptr<scope>;

/// Text being written, charged to the rendering.
struct sink {
  explicit sink(runtime& r) : rt(r), held(&r.m, 0) {}
  void data(std::string_view s) {
    before(s.size());
    t.append(s, true);
  }
  void put(const value& v) {
    const std::size_t size = t.size();
    append_str(rt, t, v);
    before(t.size() - size);
  }
  void before(std::size_t n) {
    rt.m.check_text(t.size() + n);
    rt.m.touch(n);
    held.grow(n + 8);
  }
  runtime& rt;
  text t;
  charge held;
};

class interpreter;

/// `loop` inside a for block.
class loop_object final : public object {
 public:
  loop_object(runtime& rt, std::vector<value> items, std::int64_t depth0)
      : items_(std::move(items)), depth0_(depth0), held_(&rt.m, 128 + sizeof(value) * items_.size()) {}
  [[nodiscard]] std::string_view type_name() const override { return "LoopContext"; }
  std::string repr(runtime&) override { return "<LoopContext " + std::to_string(index + 1) + "/" + std::to_string(items_.size()) + ">"; }
  [[nodiscard]] std::size_t depth() const override { return 1 + container_depth(items_); }
  [[nodiscard]] bool callable() const override { return true; }
  [[nodiscard]] const std::vector<value>& items() const { return items_; }
  [[nodiscard]] std::int64_t depth0() const { return depth0_; }

  value attribute(runtime& rt, const value& self, std::string_view name, bool& found) override {
    const std::int64_t n = static_cast<std::int64_t>(items_.size()), i = static_cast<std::int64_t>(index);
    found = true;
    if (name == "index") return value(i + 1);
    if (name == "index0") return value(i);
    if (name == "first") return value(i == 0);
    if (name == "last") return value(i + 1 == n);
    if (name == "length") return value(n);
    if (name == "revindex") return value(n - i);
    if (name == "revindex0") return value(n - i - 1);
    if (name == "depth") return value(depth0_ + 1);
    if (name == "depth0") return value(depth0_);
    if (name == "previtem") return index > 0 ? items_[index - 1] : rt.make_undefined("there is no previous item");
    if (name == "nextitem") return index + 1 < items_.size() ? items_[index + 1] : rt.make_undefined("there is no next item");
    if (name == "cycle" || name == "changed") return rt.share<bound_method>(self, name);
    found = false;
    return value();
  }
  value call_method(runtime& rt, std::string_view name, const arguments& args) override {
    if (!args.named.empty()) rt.fail({"expected arguments without a name for loop.", name, ", got one with a name"});
    if (name == "cycle") {
      if (args.positional.empty()) rt.fail("expected items to cycle through, got none");
      return args.positional[index % args.positional.size()];
    }
    bool same = has_last_ && last_.size() == args.positional.size();
    for (std::size_t i = 0; same && i < last_.size(); ++i) same = equal(rt, last_[i], args.positional[i]);
    if (same) return value(false);
    has_last_ = true;
    last_ = args.positional;
    for (value& v : last_)
      if (container_depth(v) > 0) v = value(jinja::repr(rt, v));  // keeps chains of values short
    return value(true);
  }
  inline value call(runtime& rt, const arguments& args) override;  // inline here: else its class counts this unit as home of the vtable, and all is compiled for it

  std::size_t index = 0;
  interpreter* engine = nullptr;  // of a recursive loop
  const stmt* node = nullptr;
  scope_pointer outer;

 private:
  std::vector<value> items_, last_;
  bool has_last_ = false;
  std::int64_t depth0_;
  charge held_;
};

/// A macro, or the body of a call block as `caller`.
class macro_object final : public object {
 public:
  macro_object(interpreter& engine, const stmt& node, scope_pointer outer) : engine_(engine), node_(node), outer_(std::move(outer)) {}
  [[nodiscard]] std::string_view type_name() const override { return "Macro"; }
  std::string repr(runtime&) override { return "<Macro '" + node_.macro.name + "'>"; }
  [[nodiscard]] bool callable() const override { return true; }
  value attribute(runtime& rt, const value&, std::string_view name, bool& found) override {
    found = true;
    if (name == "name") return rt.make(node_.macro.name, true);
    if (name == "caller") return value(node_.macro.uses_caller);
    if (name == "catch_kwargs") return value(node_.macro.uses_kwargs);
    if (name == "catch_varargs") return value(node_.macro.uses_varargs);
    if (name == "arguments") {
      std::vector<value> names;
      for (const parameter& p : node_.macro.parameters) names.push_back(rt.make(p.name, true));
      return rt.make_list(std::move(names), flavor::tuple);
    }
    found = false;
    return value();
  }
  inline value call(runtime& rt, const arguments& args) override;  // inline here: else its class counts this unit as home of the vtable, and all is compiled for it

 private:
  interpreter& engine_;
  const stmt& node_;
  scope_pointer outer_;
};

/// Runs one program once.
class interpreter {
 public:
  interpreter(const program& code, runtime& rt, const dict_object& variables) : code_(code), rt_(rt), variables_(variables) {}

  text run() {
    sink out(rt_);
    exec(code_.body, std::make_shared<scope>(), out);
    return std::move(out.t);
  }

 private:
  friend class loop_object;
  friend class macro_object;
  enum class flow : std::uint8_t { on, break_loop, continue_loop };

  // --- statements -------------------------------------------------------------------------------------------------------------
  flow exec(const block& body, const scope_pointer& names, sink& out) {
    const nested guard(rt_.m);
    for (const stmt* s : body) {
      rt_.m.line = s->line;
      rt_.m.step();
      flow f = flow::on;
      switch (s->kind) {
        case stmt_kind::data: out.data(s->data); break;
        case stmt_kind::output: out.put(eval(*s->value, names)); break;
        case stmt_kind::conditional: f = conditional(*s, names, out); break;
        case stmt_kind::loop: f = run_loop(*s, eval(*s->value, names), names, 0, out); break;
        case stmt_kind::assign: assign(s->to, eval(*s->value, names), names); break;
        case stmt_kind::assign_block: assign(s->to, filtered_block(*s, names), names); break;
        case stmt_kind::filter_block: out.put(filtered_block(*s, names)); break;
        case stmt_kind::with: f = with(*s, names, out); break;
        case stmt_kind::macro: store(*names, s->to.symbol, rt_.own<macro_object>(*this, *s, names)); break;
        case stmt_kind::call_block: out.put(call_block(*s, names)); break;
        case stmt_kind::scope: exec(s->body, inner(names), out); break;
        case stmt_kind::break_loop: return flow::break_loop;
        case stmt_kind::continue_loop: return flow::continue_loop;
      }
      if (f != flow::on) return f;
    }
    return flow::on;
  }

  flow conditional(const stmt& s, const scope_pointer& names, sink& out) {
    for (const branch& b : s.branches)
      if (!b.condition || truthy(eval(*b.condition, names))) return exec(b.body, names, out);
    return flow::on;
  }

  flow run_loop(const stmt& s, const value& over, const scope_pointer& names, std::int64_t depth0, sink& out) {
    rt_.m.line = s.line;
    std::vector<value> items = rt_.items_of(over);
    scope_pointer body = inner(names);
    if (s.condition) {
      std::vector<value> kept;
      for (value& item : items) {
        assign(s.to, item, body);
        if (truthy(eval(*s.condition, body))) kept.push_back(std::move(item));
        body->names.clear();
      }
      items = std::move(kept);
    }
    if (items.empty()) return exec(s.otherwise, body, out);
    const value loop_value = s.recursive ? rt_.own<loop_object>(rt_, std::move(items), depth0) : rt_.share<loop_object>(rt_, std::move(items), depth0);
    auto& l = static_cast<loop_object&>(loop_value.as_object());
    if (s.recursive) l.engine = this, l.node = &s, l.outer = names;
    bool completed = false;  // Jinja2 runs `else` unless some pass came to its end
    for (std::size_t i = 0; i < l.items().size(); ++i) {
      rt_.m.step();
      if (body.use_count() > 1) body = inner(names);  // a macro kept the last one
      else body->names.clear();
      l.index = i;
      store(*body, symbol_loop, loop_value);
      rt_.m.line = s.line;
      assign(s.to, l.items()[i], body);
      const flow f = exec(s.body, body, out);
      if (f == flow::on) completed = true;
      if (f == flow::break_loop) break;
    }
    if (!completed && !s.otherwise.empty()) return exec(s.otherwise, inner(names), out);
    return flow::on;
  }

  value filtered_block(const stmt& s, const scope_pointer& names) {
    sink out(rt_);
    const scope_pointer body = inner(names);
    exec(s.body, body, out);
    value v = rt_.make(std::move(out.t));
    for (const suffix& f : s.filters) {
      const arguments args = pass(f.args, names);
      rt_.m.line = f.line;
      v = apply_filter(rt_, f.name, v, args);
    }
    return v;
  }

  flow with(const stmt& s, const scope_pointer& names, sink& out) {
    const scope_pointer body = inner(names);
    for (const auto& [to, e] : s.bindings) assign(to, eval(*e, names), body);
    return exec(s.body, body, out);
  }

  value call_block(const stmt& s, const scope_pointer& names) {
    const expr& call = *s.value;
    const value callee = postfix(call, names, call.suffixes.size() - 1);
    arguments args = pass(call.suffixes.back().args, names);
    args.named.emplace_back("caller", rt_.own<macro_object>(*this, s, names));
    rt_.m.line = s.line;
    return call_value(rt_, callee, args);
  }

  value call_macro(const stmt& s, const scope_pointer& outer, const arguments& args) {
    const nested guard(rt_.m);
    const signature& sig = s.macro;
    const scope_pointer names = inner(outer);
    std::vector<bool> used(args.named.size(), false);
    const auto named = [&](std::string_view name) -> const value* {
      for (std::size_t i = 0; i < args.named.size(); ++i)
        if (!used[i] && args.named[i].first == name) {
          used[i] = true;
          return &args.named[i].second;
        }
      return nullptr;
    };
    bool has_caller = false;
    for (std::size_t i = 0; i < sig.parameters.size(); ++i) {
      const parameter& p = sig.parameters[i];
      has_caller = has_caller || p.symbol == symbol_caller;
      const value* given = i < args.positional.size() ? &args.positional[i] : named(p.name);
      store(*names, p.symbol, given ? *given : p.fallback ? eval(*p.fallback, names) : rt_.make_undefined("parameter '" + p.name + "' was not provided"));
    }
    if (sig.uses_caller && !has_caller) {
      const value* caller = named("caller");
      store(*names, symbol_caller, caller ? *caller : rt_.make_undefined("No caller defined"));
    }
    runtime::dict_maker more(rt_);
    for (std::size_t i = 0; i < used.size(); ++i) {
      if (used[i]) continue;
      if (!sig.uses_kwargs) rt_.fail({"expected arguments that macro '", sig.name, "' takes, got '", args.named[i].first, "'"});
      more.add(rt_.make(args.named[i].first, true), args.named[i].second);
    }
    if (sig.uses_kwargs) store(*names, symbol_kwargs, more.finish());
    if (args.positional.size() > sig.parameters.size() && !sig.uses_varargs)
      rt_.fail({"expected at most ", std::to_string(sig.parameters.size()), " arguments for macro '", sig.name, "', got ", std::to_string(args.positional.size())});
    if (sig.uses_varargs) {
      const std::size_t from = (std::min)(sig.parameters.size(), args.positional.size());
      store(*names, symbol_varargs, rt_.make_list(std::vector<value>(args.positional.begin() + static_cast<std::ptrdiff_t>(from), args.positional.end()), flavor::tuple));
    }
    sink out(rt_);
    exec(s.body, names, out);
    return rt_.make(std::move(out.t));
  }

  // --- names ------------------------------------------------------------------------------------------------------------------
  scope_pointer inner(const scope_pointer& outer) {
    rt_.m.step();
    auto s = std::make_shared<scope>();
    s->parent = outer;
    return s;
  }

  void store(scope& s, std::uint32_t symbol, value v) {
    rt_.m.step(1 + s.names.size() / 16);
    for (auto& [known, old] : s.names)
      if (known == symbol) {
        old = std::move(v);
        return;
      }
    s.names.emplace_back(symbol, std::move(v));
  }

  void assign(const target& to, value v, const scope_pointer& names) {
    if (!to.attribute.empty()) {
      const value ns = lookup(to.symbol, names);
      if (!ns.is(kind::object) || !ns.as_object().assign(rt_, to.attribute, std::move(v)))
        rt_.fail({"expected a namespace to set '", to.attribute, "' of, got '", type_name(ns), "'"});
      return;
    }
    if (!to.is_tuple) return store(*names, to.symbol, std::move(v));
    if (v.is_undefined() && !to.items.empty()) rt_.fail({"expected ", std::to_string(to.items.size()), " values to unpack, got an undefined one"});
    const std::vector<value> parts = rt_.items_of(v);
    if (parts.size() != to.items.size())
      rt_.fail({"expected ", std::to_string(to.items.size()), " values to unpack, got ", std::to_string(parts.size())});
    for (std::size_t i = 0; i < parts.size(); ++i) assign(to.items[i], parts[i], names);
  }

  value lookup(std::uint32_t symbol, const scope_pointer& names) {
    for (const scope* s = names.get(); s; s = s->parent.get()) {
      rt_.m.step(1 + s->names.size() / 16);
      for (const auto& [known, v] : s->names)
        if (known == symbol) return v;
    }
    const std::string& name = code_.symbols[symbol];
    if (const value* v = dict_find(variables_, name)) return *v;
    return find_global(rt_, name);
  }

  // --- expressions --------------------------------------------------------------------------------------------------------------
  value eval(const expr& e, const scope_pointer& names) {
    rt_.m.step();
    if (e.kind == expr_kind::constant) return e.constant;
    if (e.kind == expr_kind::name) return lookup(e.symbol, names);
    const nested guard(rt_.m);
    switch (e.kind) {
      case expr_kind::tuple: return rt_.make_list(eval_all(e.items, names), flavor::tuple);
      case expr_kind::list: return rt_.make_list(eval_all(e.items, names));
      case expr_kind::dict: return dict(e, names);
      case expr_kind::negate: return negate(rt_, eval(*e.items[0], names));
      case expr_kind::positive: return positive(eval(*e.items[0], names));
      case expr_kind::logical_not: return value(!truthy(eval(*e.items[0], names)));
      case expr_kind::logical_and:
      case expr_kind::logical_or: return logical(e, names);
      case expr_kind::compare: return comparison(e, names);
      case expr_kind::concat: return concat(e, names);
      case expr_kind::arithmetic: return chain(e, names);
      case expr_kind::conditional:
        if (truthy(eval(*e.items[0], names))) return eval(*e.items[1], names);
        if (e.items[2]) return eval(*e.items[2], names);
        return rt_.make_undefined("the inline if-expression on line " + std::to_string(e.line) + " evaluated to false and no else section was defined.");
      case expr_kind::postfix: return postfix(e, names, e.suffixes.size());
      case expr_kind::constant:
      case expr_kind::name: break;
    }
    return value();
  }

  std::vector<value> eval_all(const std::vector<const expr*>& items, const scope_pointer& names) {
    std::vector<value> out;
    out.reserve(items.size());
    for (const expr* item : items) out.push_back(eval(*item, names));
    return out;
  }

  value dict(const expr& e, const scope_pointer& names) {
    runtime::dict_maker d(rt_);
    for (std::size_t i = 0; i + 1 < e.items.size(); i += 2) {
      const value key = eval(*e.items[i], names);
      d.add(key, eval(*e.items[i + 1], names));
    }
    return d.finish();
  }

  value positive(const value& v) {
    if (v.is(kind::floating)) return v;
    if (v.is_number()) return value(v.as_integer());
    if (v.is_undefined()) rt_.use_of_undefined(v);
    rt_.fail({"expected a number after '+', got '", type_name(v), "'"});
  }

  value logical(const expr& e, const scope_pointer& names) {
    value v;
    for (const expr* item : e.items) {
      v = eval(*item, names);
      if (truthy(v) == (e.kind == expr_kind::logical_or)) return v;
    }
    return v;
  }

  value comparison(const expr& e, const scope_pointer& names) {
    value left = eval(*e.items[0], names);
    for (std::size_t i = 0; i < e.operations.size(); ++i) {
      value right = eval(*e.items[i + 1], names);
      rt_.m.line = e.line;
      if (!compare(rt_, e.operations[i], left, right)) return value(false);
      left = std::move(right);
    }
    return value(true);
  }

  value concat(const expr& e, const scope_pointer& names) {
    text t;
    for (const expr* item : e.items) append_str(rt_, t, eval(*item, names));
    return rt_.make(std::move(t));
  }

  value chain(const expr& e, const scope_pointer& names) {
    value left = eval(*e.items[0], names);
    for (std::size_t i = 0; i < e.operations.size(); ++i) {
      const value right = eval(*e.items[i + 1], names);
      rt_.m.line = e.line;
      left = arithmetic(rt_, e.operations[i], left, right);
    }
    return left;
  }

  arguments pass(const call_arguments& a, const scope_pointer& names) {
    arguments out;
    out.positional = eval_all(a.positional, names);
    for (const auto& [name, e] : a.named) out.named.emplace_back(name, eval(*e, names));
    if (a.more_positional)
      for (value& v : rt_.items_of(eval(*a.more_positional, names))) out.positional.push_back(std::move(v));
    if (a.more_named) {
      const value more = eval(*a.more_named, names);
      if (!more.is(kind::dict)) rt_.fail({"expected a mapping after '**', got '", type_name(more), "'"});
      for (const auto& [key, v] : more.as_dict().entries) {
        if (!key.is_string() || out.find(key.view())) rt_.fail("expected names that are new after '**', got another key");
        out.named.emplace_back(key.as_text().bytes(), v);
        rt_.m.step(1 + out.named.size() / 16);
      }
    }
    return out;
  }

  /// The first `n` suffixes of a postfix expression.
  value postfix(const expr& e, const scope_pointer& names, std::size_t n) {
    value v = eval(*e.items[0], names);
    for (std::size_t i = 0; i < n; ++i) v = apply(v, e.suffixes[i], names);
    return v;
  }

  value apply(const value& v, const suffix& s, const scope_pointer& names) {
    switch (s.kind) {
      case suffix_kind::attribute: rt_.m.line = s.line; return get_attribute(rt_, v, s.name);
      case suffix_kind::item: {
        const value key = eval(*s.item, names);
        rt_.m.line = s.line;
        return get_item(rt_, v, key);
      }
      case suffix_kind::slice: return slice(v, s, names);
      case suffix_kind::call:
      case suffix_kind::filter:
      case suffix_kind::test:
      case suffix_kind::not_test: break;
    }
    const arguments args = pass(s.args, names);
    rt_.m.line = s.line;
    if (s.kind == suffix_kind::call) return call_value(rt_, v, args);
    if (s.kind == suffix_kind::filter) return apply_filter(rt_, s.name, v, args);
    return value(apply_test(rt_, s.name, v, args) == (s.kind == suffix_kind::test));
  }

  value slice(const value& v, const suffix& s, const scope_pointer& names) {
    value parts[3];
    for (int i = 0; i < 3; ++i)
      if (s.slice[i]) parts[i] = eval(*s.slice[i], names);
    rt_.m.line = s.line;
    return get_slice(rt_, v, s.slice[0] ? &parts[0] : nullptr, s.slice[1] ? &parts[1] : nullptr, s.slice[2] ? &parts[2] : nullptr);
  }

  const program& code_;
  runtime& rt_;
  const dict_object& variables_;
};

inline value loop_object::call(runtime& rt, const arguments& args) {
  if (!engine) rt.fail("expected a loop marked 'recursive' to call, got another");
  const auto a = bind(rt, "loop", args, {"iterable"}, 1);
  const nested guard(rt.m);
  sink out(rt);
  engine->run_loop(*node, *a[0], outer, depth0_ + 1, out);
  return rt.make(std::move(out.t));
}

inline value macro_object::call(runtime&, const arguments& args) { return engine_.call_macro(node_, outer_, args); }

}  // namespace jinja
}  // namespace quena::inline QUENA_ABI
