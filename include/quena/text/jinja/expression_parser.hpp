// SPDX-License-Identifier: MIT
// Tokens to expressions: Jinja2's grammar and precedences.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../../core/error.hpp"
#include "ast.hpp"
#include "lexer.hpp"

namespace quena::inline QUENA_ABI {
namespace jinja {

/// The expression half of the parser; the statements are in parser.hpp. Chains of equal operators and of suffixes become one
/// node each, so only real nesting makes the tree deep, and that is bounded.
class expression_parser {
 protected:
  expression_parser(std::vector<token> tokens, std::string_view name, const limits& bounds)
      : tokens_(std::move(tokens)), name_(name), bounds_(bounds) {
    for (const char* fixed : {"loop", "caller", "varargs", "kwargs"}) symbol(fixed);
  }

  // --- tokens ---------------------------------------------------------------------------------------------------------
  [[nodiscard]] const token& current() const { return tokens_[at_]; }
  [[nodiscard]] const token& ahead() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  const token& next() {
    const token& t = tokens_[at_];
    if (at_ + 1 < tokens_.size()) ++at_;
    return t;
  }
  bool skip_op(std::string_view s) { return current().is_op(s) && (next(), true); }
  bool skip_name(std::string_view s) { return current().is_name(s) && (next(), true); }
  void expect_op(std::string_view s) {
    if (!skip_op(s)) unexpected({"'", s, "'"});
  }
  std::string expect_name() {
    if (current().kind != token_kind::name) unexpected("a name");
    return next().text;
  }
  void expect(token_kind k, std::string_view what) {
    if (current().kind != k) unexpected(what);
    next();
  }

  [[noreturn]] void fail(std::string_view message) const { fail({message}); }
  [[noreturn]] void fail(std::initializer_list<std::string_view> message) const { fail_at(errc::malformed, name_, current().line, message); }
  [[noreturn]] void unexpected(std::string_view wanted) const { fail({"expected ", wanted, ", got ", describe(current())}); }
  [[noreturn]] void unexpected(std::initializer_list<std::string_view> wanted) const {
    std::string s;
    for (const std::string_view piece : wanted) s.append(piece);
    unexpected(s);
  }
  static std::string describe(const token& t) {
    switch (t.kind) {
      case token_kind::end: return "the end of the template";
      case token_kind::data: return "template text";
      case token_kind::variable_begin: return "'{{'";
      case token_kind::variable_end: return "'}}'";
      case token_kind::block_begin: return "'{%'";
      case token_kind::block_end: return "'%}'";
      case token_kind::string: return "a string";
      case token_kind::name:
      case token_kind::integer:
      case token_kind::floating:
      case token_kind::op: break;
    }
    return "'" + t.text.substr(0, 60) + "'";
  }

  std::uint32_t symbol(const std::string& name) {
    const auto [it, fresh] = symbols_.emplace(name, static_cast<std::uint32_t>(program_.symbols.size()));
    if (fresh) program_.symbols.push_back(name);
    return it->second;
  }

  /// One level of nesting of the source, blocks and expressions together.
  class level {
   public:
    explicit level(expression_parser& p) : p_(p) {
      if (++p_.nesting_ > p_.bounds_.max_nesting)
        p_.fail("expected at most " + std::to_string(p_.bounds_.max_nesting) + " levels of nesting, got more");
    }
    ~level() { --p_.nesting_; }
    level(const level&) = delete;
    level& operator=(const level&) = delete;

   private:
    expression_parser& p_;
  };

  // --- nodes ----------------------------------------------------------------------------------------------------------
  expr* make(expr_kind k, std::uint32_t line) {
    program_.exprs.push_back(std::make_unique<expr>());
    program_.exprs.back()->kind = k;
    program_.exprs.back()->line = line;
    return program_.exprs.back().get();
  }
  void grow(expr& parent, const expr* child) {
    if (!child) return;
    if (child->depth + 1 > parent.depth) parent.depth = child->depth + 1;
    if (parent.depth > 2 * bounds_.max_nesting) fail("expected a simpler expression, got one nested too deep");
  }
  void add(expr& parent, const expr* child) {
    parent.items.push_back(child);
    grow(parent, child);
  }
  expr* constant(value v, std::uint32_t line) {
    expr* e = make(expr_kind::constant, line);
    e->constant = std::move(v);
    return e;
  }

  // --- grammar, loosest first -----------------------------------------------------------------------------------------
  const expr* expression(bool with_conditional = true) {
    const level guard(*this);
    const expr* e = logical_or();
    if (!with_conditional) return e;
    while (current().is_name("if")) {
      expr* c = make(expr_kind::conditional, next().line);
      const expr* condition = logical_or();
      add(*c, condition);
      add(*c, e);
      add(*c, skip_name("else") ? expression() : nullptr);
      e = c;
    }
    return e;
  }

  const expr* logical_or() {
    const expr* first = logical_and();
    if (!current().is_name("or")) return first;
    expr* e = make(expr_kind::logical_or, current().line);
    add(*e, first);
    while (skip_name("or")) add(*e, logical_and());
    return e;
  }

  const expr* logical_and() {
    const expr* first = logical_not();
    if (!current().is_name("and")) return first;
    expr* e = make(expr_kind::logical_and, current().line);
    add(*e, first);
    while (skip_name("and")) add(*e, logical_not());
    return e;
  }

  const expr* logical_not() {
    if (!current().is_name("not")) return compare();
    const level guard(*this);
    expr* e = make(expr_kind::logical_not, next().line);
    add(*e, logical_not());
    return e;
  }

  const expr* compare() {
    const expr* first = sum();
    expr* e = nullptr;
    while (true) {
      operation op;
      const std::uint32_t line = current().line;
      if (current().kind == token_kind::op) {
        const std::string& s = current().text;
        if (s == "==") op = operation::equal;
        else if (s == "!=") op = operation::not_equal;
        else if (s == "<") op = operation::less;
        else if (s == "<=") op = operation::less_equal;
        else if (s == ">") op = operation::greater;
        else if (s == ">=") op = operation::greater_equal;
        else break;
        next();
      } else if (skip_name("in")) {
        op = operation::contained;
      } else if (current().is_name("not") && ahead().is_name("in")) {
        next(), next();
        op = operation::not_contained;
      } else {
        break;
      }
      if (!e) add(*(e = make(expr_kind::compare, line)), first);
      e->operations.push_back(op);
      add(*e, sum());
    }
    return e ? e : first;
  }

  const expr* sum() {
    const expr* first = concat();
    expr* e = nullptr;
    while (current().is_op("+") || current().is_op("-")) {
      const token& t = next();
      if (!e) add(*(e = make(expr_kind::arithmetic, t.line)), first);
      e->operations.push_back(t.text == "+" ? operation::add : operation::subtract);
      add(*e, concat());
    }
    return e ? e : first;
  }

  const expr* concat() {
    const expr* first = product();
    if (!current().is_op("~")) return first;
    expr* e = make(expr_kind::concat, current().line);
    add(*e, first);
    while (skip_op("~")) add(*e, product());
    return e;
  }

  const expr* product() {
    const expr* first = power();
    expr* e = nullptr;
    while (current().is_op("*") || current().is_op("/") || current().is_op("//") || current().is_op("%")) {
      const token& t = next();
      if (!e) add(*(e = make(expr_kind::arithmetic, t.line)), first);
      e->operations.push_back(t.text == "*" ? operation::multiply : t.text == "/" ? operation::divide : t.text == "%" ? operation::modulo : operation::floor_divide);
      add(*e, power());
    }
    return e ? e : first;
  }

  const expr* power() {  // left to right in Jinja2, unlike Python
    const expr* first = unary();
    expr* e = nullptr;
    while (current().is_op("**")) {
      const token& t = next();
      if (!e) add(*(e = make(expr_kind::arithmetic, t.line)), first);
      e->operations.push_back(operation::power);
      add(*e, unary());
    }
    return e ? e : first;
  }

  const expr* unary(bool with_filter = true) {
    const expr* e = nullptr;
    if (current().is_op("-") || current().is_op("+")) {
      const level guard(*this);
      const token& t = next();
      expr* sign = make(t.text == "-" ? expr_kind::negate : expr_kind::positive, t.line);
      add(*sign, unary(false));
      e = sign;
    } else {
      e = primary();
    }
    return suffixes(e, with_filter);
  }

  const expr* primary() {
    const token& t = current();
    switch (t.kind) {
      case token_kind::name: {
        next();
        if (t.text == "true" || t.text == "True") return constant(value(true), t.line);
        if (t.text == "false" || t.text == "False") return constant(value(false), t.line);
        if (t.text == "none" || t.text == "None") return constant(value(nullptr), t.line);
        expr* e = make(expr_kind::name, t.line);
        e->symbol = symbol(t.text);
        if (e->symbol < n_fixed_symbols) used_[e->symbol] = true;
        return e;
      }
      case token_kind::string: {
        std::string s;
        while (current().kind == token_kind::string) s += next().text;
        return constant(value(std::move(s), true), t.line);
      }
      case token_kind::integer: next(); return constant(integer(t.text), t.line);
      case token_kind::floating: next(); return constant(floating(t.text), t.line);
      case token_kind::op:
        if (t.text == "(") {
          next();
          const expr* e = tuple(false, true, {}, true);
          expect_op(")");
          return e;
        }
        if (t.text == "[") return list();
        if (t.text == "{") return dict();
        break;
      case token_kind::data:
      case token_kind::variable_begin:
      case token_kind::variable_end:
      case token_kind::block_begin:
      case token_kind::block_end:
      case token_kind::end: break;
    }
    unexpected("an expression");
  }

  value integer(std::string_view s) const {
    const bool based = s.size() > 2 && s[0] == '0' && (s[1] | 0x20) >= 'b' && s[1] != '0';
    const int base = !based ? 10 : (s[1] | 0x20) == 'x' ? 16 : (s[1] | 0x20) == 'o' ? 8 : 2;
    if (based) s.remove_prefix(2);
    std::int64_t v = 0;
    const auto [end, ec] = std::from_chars(s.data(), s.data() + s.size(), v, base);
    if (ec != std::errc() || end != s.data() + s.size()) fail("expected an integer of at most 64 bits, got a longer one");
    return value(v);
  }
  value floating(std::string_view s) const {
    double v = 0;
    const auto [end, ec] = std::from_chars(s.data(), s.data() + s.size(), v);
    if (ec != std::errc() || end != s.data() + s.size()) fail("expected a number, got one out of range");
    return value(v);
  }

  /// `a, b` makes a tuple; one expression without a comma is itself. `names` parses only names and literals, as targets need.
  const expr* tuple(bool names, bool with_conditional, std::string_view stop, bool parentheses) {
    std::vector<const expr*> items;
    bool is_tuple = false;
    const std::uint32_t line = current().line;
    while (true) {
      if (!items.empty()) expect_op(",");
      if (current().kind == token_kind::variable_end || current().kind == token_kind::block_end || current().is_op(")") ||
          (!stop.empty() && current().is_name(stop)))
        break;
      if (names) {
        const level guard(*this);
        items.push_back(primary());
      } else {
        items.push_back(expression(with_conditional));
      }
      if (!current().is_op(",")) break;
      is_tuple = true;
    }
    if (!is_tuple) {
      if (!items.empty()) return items[0];
      if (!parentheses) unexpected("an expression");
    }
    expr* e = make(expr_kind::tuple, line);
    for (const expr* item : items) add(*e, item);
    return e;
  }

  const expr* list() {
    expr* e = make(expr_kind::list, next().line);
    while (!current().is_op("]")) {
      if (!e->items.empty()) expect_op(",");
      if (current().is_op("]")) break;
      add(*e, expression());
    }
    next();
    return e;
  }

  const expr* dict() {
    expr* e = make(expr_kind::dict, next().line);
    while (!current().is_op("}")) {
      if (!e->items.empty()) expect_op(",");
      if (current().is_op("}")) break;
      add(*e, expression());
      expect_op(":");
      add(*e, expression());
    }
    next();
    return e;
  }

  // --- suffixes -------------------------------------------------------------------------------------------------------
  const expr* suffixes(const expr* base, bool with_filter) {
    std::vector<suffix> found;
    while (true) {
      if (current().is_op(".") || current().is_op("[")) found.push_back(subscript());
      else if (current().is_op("(")) found.push_back(call());
      else break;
    }
    while (with_filter) {
      if (current().is_op("|")) {
        next();
        found.push_back(filter());
      } else if (current().is_name("is")) {
        found.push_back(test());
      } else if (current().is_op("(")) {
        found.push_back(call());
      } else {
        break;
      }
    }
    if (found.empty()) return base;
    expr* e = make(expr_kind::postfix, base->line);
    add(*e, base);
    for (const suffix& s : found) {
      grow(*e, s.item);
      for (const expr* part : s.slice) grow(*e, part);
      for (const expr* a : s.args.positional) grow(*e, a);
      for (const auto& [key, a] : s.args.named) grow(*e, a);
      grow(*e, s.args.more_positional);
      grow(*e, s.args.more_named);
    }
    e->suffixes = std::move(found);
    return e;
  }

  suffix subscript() {
    suffix s;
    s.line = current().line;
    if (skip_op(".")) {
      if (current().kind == token_kind::integer) {
        s.kind = suffix_kind::item;
        const token& t = next();
        s.item = constant(integer(t.text), t.line);
      } else {
        s.name = expect_name();
      }
      return s;
    }
    next();
    std::vector<const expr*> items;
    bool sliced = false;
    while (!current().is_op("]")) {
      if (!items.empty() || sliced) expect_op(",");
      const expr* parts[3] = {nullptr, nullptr, nullptr};
      if (!current().is_op(":")) parts[0] = expression();
      if (current().is_op(":")) {
        sliced = true;
        for (int i = 1; i < 3 && skip_op(":"); ++i)
          if (!current().is_op(":") && !current().is_op("]") && !current().is_op(",")) parts[i] = expression();
        for (int i = 0; i < 3; ++i) s.slice[i] = parts[i];
      } else {
        items.push_back(parts[0]);
      }
      if (sliced && !current().is_op("]")) fail("expected one slice, got more");
    }
    next();
    if (sliced) {
      s.kind = suffix_kind::slice;
      return s;
    }
    if (items.empty()) fail("expected an index, got '[]'");
    s.kind = suffix_kind::item;
    if (items.size() == 1) {
      s.item = items[0];
    } else {
      expr* e = make(expr_kind::tuple, s.line);
      for (const expr* item : items) add(*e, item);
      s.item = e;
    }
    return s;
  }

  suffix call() {
    suffix s;
    s.kind = suffix_kind::call;
    s.line = current().line;
    s.args = call_args();
    return s;
  }

  suffix filter() {  // after the '|'
    suffix s;
    s.kind = suffix_kind::filter;
    s.line = current().line;
    s.name = dotted_name();
    if (current().is_op("(")) s.args = call_args();
    return s;
  }

  suffix test() {
    suffix s;
    s.line = next().line;
    s.kind = skip_name("not") ? suffix_kind::not_test : suffix_kind::test;
    s.name = dotted_name();
    const token& t = current();
    if (t.is_op("(")) {
      s.args = call_args();
    } else if ((t.kind == token_kind::name && !t.is_name("else") && !t.is_name("or") && !t.is_name("and")) ||
               t.kind == token_kind::string || t.kind == token_kind::integer || t.kind == token_kind::floating || t.is_op("[") ||
               t.is_op("{")) {
      if (t.is_name("is")) fail("expected one test, got a chain of 'is'");
      const level guard(*this);
      s.args.positional.push_back(suffixes(primary(), false));
    }
    return s;
  }

  std::string dotted_name() {
    std::string name = expect_name();
    while (skip_op(".")) name += "." + expect_name();
    return name;
  }

  call_arguments call_args() {
    const level guard(*this);
    call_arguments a;
    expect_op("(");
    bool more = false;
    while (!current().is_op(")")) {
      if (more) {
        expect_op(",");
        if (current().is_op(")")) break;
      }
      more = true;
      if (current().is_op("*")) {
        if (a.more_positional || a.more_named) fail("expected one '*' argument, got another");
        next();
        a.more_positional = expression();
      } else if (current().is_op("**")) {
        if (a.more_named) fail("expected one '**' argument, got another");
        next();
        a.more_named = expression();
      } else if (current().kind == token_kind::name && ahead().is_op("=")) {
        if (a.more_named) fail("expected '**' last, got an argument after it");
        std::string name = next().text;
        next();
        for (const auto& [key, e] : a.named)
          if (key == name) fail({"expected each argument once, got '", name, "' twice"});
        a.named.emplace_back(std::move(name), expression());
      } else {
        if (a.more_positional || a.more_named || !a.named.empty()) fail("expected arguments without a name first");
        a.positional.push_back(expression());
      }
    }
    next();
    return a;
  }

  std::vector<token> tokens_;
  std::size_t at_ = 0;
  std::string_view name_;
  limits bounds_;
  std::size_t nesting_ = 0;
  program program_;
  std::map<std::string, std::uint32_t> symbols_;
  bool used_[n_fixed_symbols] = {};  // special names met since a macro's body began
};

}  // namespace jinja
}  // namespace quena::inline QUENA_ABI
