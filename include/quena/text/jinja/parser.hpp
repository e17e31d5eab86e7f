// SPDX-License-Identifier: MIT
// Tokens to statements: a whole template becomes a program.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ast.hpp"
#include "expression_parser.hpp"
#include "lexer.hpp"

namespace quena::inline QUENA_ABI {
namespace jinja {

/// Parses a template.
/// Errors   malformed, with template name and line: syntax errors, nesting deeper than the limit, and tags that chat templates
///          have no use for (include, import, extends, block, do, …).
class parser : private expression_parser {
 public:
  parser(std::string_view source, std::string_view name, const limits& bounds)
      : expression_parser(lexer(source, name, bounds).run(), name, bounds) {}

  program run() {
    statements({}, program_.body);
    return std::move(program_);
  }

 private:
  using names = std::initializer_list<std::string_view>;

  stmt* make_stmt(stmt_kind k, std::uint32_t line) {
    program_.stmts.push_back(std::make_unique<stmt>());
    program_.stmts.back()->kind = k;
    program_.stmts.back()->line = line;
    return program_.stmts.back().get();
  }

  /// Statements up to a tag whose name is in `ends`; that name stays the current token.
  void statements(names ends, block& out) {
    while (true) {
      switch (current().kind) {
        case token_kind::end:
          if (ends.size() == 0) return;
          unexpected({"'{% ", ends.begin()[ends.size() - 1], " %}'"});
        case token_kind::data: {
          stmt* s = make_stmt(stmt_kind::data, current().line);
          s->data = next().text;
          out.push_back(s);
          break;
        }
        case token_kind::variable_begin: {
          stmt* s = make_stmt(stmt_kind::output, next().line);
          s->value = tuple(false, true, {}, false);
          expect(token_kind::variable_end, "'}}'");
          out.push_back(s);
          break;
        }
        case token_kind::block_begin: {
          next();
          for (const std::string_view e : ends)
            if (current().is_name(e)) return;
          statement(out);
          expect(token_kind::block_end, "'%}'");
          break;
        }
        case token_kind::variable_end:
        case token_kind::block_end:
        case token_kind::name:
        case token_kind::string:
        case token_kind::integer:
        case token_kind::floating:
        case token_kind::op: unexpected("text or a tag");
      }
    }
  }

  /// The rest of the opening tag, then a body up to one of `ends`.
  void body(names ends, block& out) {
    skip_op(":");
    expect(token_kind::block_end, "'%}'");
    const level guard(*this);
    statements(ends, out);
  }

  void statement(block& out) {
    const std::uint32_t line = current().line;
    const std::string tag = expect_name();
    if (tag == "if") out.push_back(conditional(line));
    else if (tag == "for") out.push_back(loop(line));
    else if (tag == "set") out.push_back(assign(line));
    else if (tag == "with") out.push_back(with(line));
    else if (tag == "macro") out.push_back(macro(line));
    else if (tag == "call") out.push_back(call_block(line));
    else if (tag == "filter") out.push_back(filter_block(line));
    else if (tag == "print") print(line, out);
    else if (tag == "generation") out.push_back(generation(line));
    else if (tag == "break" || tag == "continue") {
      if (loops_ == 0) fail({"expected '", tag, "' inside a loop, got it outside"});
      out.push_back(make_stmt(tag == "break" ? stmt_kind::break_loop : stmt_kind::continue_loop, line));
    } else {
      fail({"expected a tag that chat templates use, got '", tag.substr(0, 60), "'"});
    }
  }

  const stmt* conditional(std::uint32_t line) {
    stmt* s = make_stmt(stmt_kind::conditional, line);
    while (true) {
      branch b;
      b.condition = tuple(false, false, {}, false);
      body({"elif", "else", "endif"}, b.body);
      s->branches.push_back(std::move(b));
      if (skip_name("elif")) continue;
      if (skip_name("else")) {
        branch otherwise;
        body({"endif"}, otherwise.body);
        s->branches.push_back(std::move(otherwise));
      }
      next();
      return s;
    }
  }

  const stmt* loop(std::uint32_t line) {
    stmt* s = make_stmt(stmt_kind::loop, line);
    s->to = to_target("in", false);
    if (stores(s->to, symbol_loop)) fail("expected another name than 'loop' in 'for', it is taken");
    if (!skip_name("in")) unexpected("'in'");
    s->value = tuple(false, false, "recursive", false);
    if (skip_name("if")) s->condition = expression();
    s->recursive = skip_name("recursive");
    ++loops_;
    body({"endfor", "else"}, s->body);
    --loops_;
    if (skip_name("else")) body({"endfor"}, s->otherwise);
    next();
    return s;
  }

  const stmt* assign(std::uint32_t line) {
    stmt* s = make_stmt(stmt_kind::assign, line);
    s->to = to_target({}, true);
    if (skip_op("=")) {
      s->value = tuple(false, true, {}, false);
      return s;
    }
    s->kind = stmt_kind::assign_block;
    while (skip_op("|")) s->filters.push_back(filter());
    outside_loop([&] { body({"endset"}, s->body); });
    next();
    return s;
  }

  const stmt* with(std::uint32_t line) {
    stmt* s = make_stmt(stmt_kind::with, line);
    while (current().kind != token_kind::block_end && !current().is_op(":")) {
      if (!s->bindings.empty()) expect_op(",");
      target t = to_target({}, false);
      expect_op("=");
      s->bindings.emplace_back(std::move(t), expression());
    }
    body({"endwith"}, s->body);
    next();
    return s;
  }

  const stmt* macro(std::uint32_t line) {
    stmt* s = make_stmt(stmt_kind::macro, line);
    const std::string name = expect_name();
    check_assignable(name);
    s->to.symbol = symbol(name);
    s->macro.name = name;
    signature_of(s->macro);
    macro_body(s, "endmacro");
    return s;
  }

  const stmt* call_block(std::uint32_t line) {
    stmt* s = make_stmt(stmt_kind::call_block, line);
    if (current().is_op("(")) signature_of(s->macro);
    s->macro.name = "caller";
    s->value = expression();
    if (s->value->kind != expr_kind::postfix || s->value->suffixes.back().kind != suffix_kind::call) fail("expected a call of a macro in 'call'");
    macro_body(s, "endcall");
    return s;
  }

  const stmt* filter_block(std::uint32_t line) {
    stmt* s = make_stmt(stmt_kind::filter_block, line);
    do s->filters.push_back(filter());
    while (skip_op("|"));
    outside_loop([&] { body({"endfilter"}, s->body); });
    next();
    return s;
  }

  /// Hugging Face's tag around what the assistant said; it only opens a scope.
  const stmt* generation(std::uint32_t line) {
    stmt* s = make_stmt(stmt_kind::scope, line);
    outside_loop([&] { body({"endgeneration"}, s->body); });
    next();
    return s;
  }

  void print(std::uint32_t line, block& out) {
    bool first = true;
    while (current().kind != token_kind::block_end) {
      if (!first) expect_op(",");
      first = false;
      stmt* s = make_stmt(stmt_kind::output, line);
      s->value = expression();
      out.push_back(s);
    }
  }

  void signature_of(signature& sig) {
    expect_op("(");
    while (!current().is_op(")")) {
      if (!sig.parameters.empty()) expect_op(",");
      parameter p;
      p.name = expect_name();
      check_assignable(p.name);
      for (const parameter& other : sig.parameters)
        if (other.name == p.name) fail({"expected each parameter once, got '", p.name, "' twice"});
      p.symbol = symbol(p.name);
      if (skip_op("=")) p.fallback = expression();
      else if (!sig.parameters.empty() && sig.parameters.back().fallback) fail("expected a default after a parameter with a default");
      sig.parameters.push_back(std::move(p));
    }
    next();
  }

  void macro_body(stmt* s, std::string_view end) {
    bool outer[n_fixed_symbols];
    for (std::size_t i = 0; i < n_fixed_symbols; ++i) outer[i] = std::exchange(used_[i], false);
    outside_loop([&] { body({end}, s->body); });
    next();
    for (const parameter& p : s->macro.parameters)
      if (p.symbol == symbol_caller && !p.fallback) fail("expected a default for the parameter 'caller', got none");
    s->macro.uses_caller = used_[symbol_caller];
    s->macro.uses_varargs = used_[symbol_varargs];
    s->macro.uses_kwargs = used_[symbol_kwargs];
    for (std::size_t i = 0; i < n_fixed_symbols; ++i) used_[i] = used_[i] || outer[i];
  }

  /// `break` inside these bodies does not reach the loop around them.
  template <class F>
  void outside_loop(F&& f) {
    const std::size_t loops = std::exchange(loops_, 0);
    f();
    loops_ = loops;
  }

  target to_target(std::string_view stop, bool with_namespace) {
    target t;
    if (with_namespace && ahead().is_op(".")) {
      t.symbol = symbol(expect_name());
      next();
      t.attribute = expect_name();
      return t;
    }
    return target_of(tuple(true, true, stop, false));
  }

  target target_of(const expr* e) {
    target t;
    if (e->kind == expr_kind::name) {
      t.symbol = e->symbol;
      check_assignable(program_.symbols[e->symbol]);
    } else if (e->kind == expr_kind::tuple || e->kind == expr_kind::list) {
      t.is_tuple = true;
      for (const expr* item : e->items) t.items.push_back(target_of(item));
    } else {
      fail("expected a name to assign to, got another expression");
    }
    return t;
  }

  static bool stores(const target& t, std::uint32_t symbol) {
    if (!t.is_tuple) return t.symbol == symbol;
    for (const target& item : t.items)
      if (stores(item, symbol)) return true;
    return false;
  }

  void check_assignable(const std::string& name) const {
    if (name == "true" || name == "false" || name == "none" || name == "True" || name == "False" || name == "None")
      fail({"expected a name to assign to, got '", name, "'"});
  }

  std::size_t loops_ = 0;
};

}  // namespace jinja
}  // namespace quena::inline QUENA_ABI
