// SPDX-License-Identifier: MIT
// The parsed template: expressions and statements. Nodes live in one arena and refer to each other by plain pointers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "value.hpp"

namespace quena::inline QUENA_ABI {
namespace jinja {

enum class operation : std::uint8_t { add, subtract, multiply, divide, floor_divide, modulo, power, equal, not_equal, less, less_equal, greater, greater_equal, contained, not_contained };

enum class expr_kind : std::uint8_t {
  constant,     // constant
  name,         // symbol
  tuple,        // items
  list,         // items
  dict,         // items: key, value, key, value, …
  negate,       // items[0]
  positive,     // items[0]
  logical_not,  // items[0]
  logical_and,  // items
  logical_or,   // items
  compare,      // items joined by operations: a < b < c
  concat,       // items: a ~ b ~ c
  arithmetic,   // items joined by operations, left to right
  conditional,  // items: condition, then, else (may be null)
  postfix,      // items[0] followed by suffixes, left to right
};

struct expr;

/// What a call, filter or test is given.
struct call_arguments {
  std::vector<const expr*> positional;
  std::vector<std::pair<std::string, const expr*>> named;
  const expr* more_positional = nullptr;  // *args
  const expr* more_named = nullptr;       // **kwargs
};

enum class suffix_kind : std::uint8_t { attribute, item, slice, call, filter, test, not_test };

/// `.name`, `[item]`, `[a:b:c]`, `(…)`, `|name(…)`, ` is name(…)`, ` is not name(…)`.
struct suffix {
  suffix_kind kind = suffix_kind::attribute;
  std::uint32_t line = 0;
  std::string name;
  const expr* item = nullptr;
  const expr* slice[3] = {nullptr, nullptr, nullptr};
  call_arguments args;
};

struct expr {
  expr_kind kind = expr_kind::constant;
  std::uint32_t line = 0;
  std::uint32_t depth = 1;
  std::uint32_t symbol = 0;
  value constant;
  std::vector<const expr*> items;
  std::vector<operation> operations;
  std::vector<suffix> suffixes;
};

/// Where `set`, `for`, `with` store: a name, an attribute of a namespace, or a tuple of targets.
struct target {
  std::uint32_t symbol = 0;
  std::string attribute;  ///< not empty: namespace attribute
  bool is_tuple = false;
  std::vector<target> items;
};

struct parameter {
  std::uint32_t symbol = 0;
  std::string name;
  const expr* fallback = nullptr;
};

/// A macro or the body of a call block.
struct signature {
  std::string name;
  std::vector<parameter> parameters;
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;
};

enum class stmt_kind : std::uint8_t { data, output, conditional, loop, assign, assign_block, with, macro, call_block, filter_block, scope, break_loop, continue_loop };

struct stmt;
using block = std::vector<const stmt*>;

struct branch {
  const expr* condition = nullptr;  ///< null: else
  block body;
};

struct stmt {
  stmt_kind kind = stmt_kind::data;
  std::uint32_t line = 0;
  std::string data;
  const expr* value = nullptr;      // output, assign; what a loop runs over; the call of a call block
  const expr* condition = nullptr;  // `if` of a loop
  target to;                        // assign, loop
  bool recursive = false;
  std::vector<branch> branches;     // conditional
  std::vector<std::pair<target, const expr*>> bindings;  // with
  std::vector<suffix> filters;      // filter_block, assign_block
  signature macro;                  // macro, call_block
  block body;
  block otherwise;                  // loop's else
};

/// A whole template.
struct program {
  std::vector<std::unique_ptr<expr>> exprs;
  std::vector<std::unique_ptr<stmt>> stmts;
  std::vector<std::string> symbols;  ///< names of variables; nodes hold the index
  block body;
};

/// Symbols every program has, at these indices.
enum : std::uint32_t { symbol_loop, symbol_caller, symbol_varargs, symbol_kwargs, n_fixed_symbols };

}  // namespace jinja
}  // namespace quena::inline QUENA_ABI
