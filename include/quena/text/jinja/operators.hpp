// SPDX-License-Identifier: MIT
// Comparison, membership and arithmetic with Python's rules.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ast.hpp"
#include "repr.hpp"
#include "runtime.hpp"
#include "search.hpp"

namespace quena::inline QUENA_ABI {
namespace jinja {

value format_percent(runtime&, const text& format, const value& args);  // format.hpp

/// Exact comparison of an integer with a float that is not NaN: negative, zero or positive.
inline int compare_mixed(std::int64_t i, double d) {
  if (d >= 9223372036854775808.0) return -1;
  if (d < -9223372036854775808.0) return 1;
  const double whole = std::floor(d);
  const std::int64_t w = static_cast<std::int64_t>(whole);
  if (i != w) return i < w ? -1 : 1;
  return whole < d ? -1 : 0;
}

inline bool is_nan(const value& v) { return v.is(kind::floating) && std::isnan(v.as_float()); }

/// Sign of a - b for two numbers, neither NaN.
inline int compare_numbers(const value& a, const value& b) {
  if (a.is(kind::floating) && b.is(kind::floating)) return a.as_float() < b.as_float() ? -1 : a.as_float() > b.as_float() ? 1 : 0;
  if (a.is(kind::floating)) return -compare_mixed(b.as_integer(), a.as_float());
  if (b.is(kind::floating)) return compare_mixed(a.as_integer(), b.as_float());
  return a.as_integer() < b.as_integer() ? -1 : a.as_integer() > b.as_integer() ? 1 : 0;
}

/// Python's ==.
inline bool equal(runtime& rt, const value& a, const value& b) {
  const nested guard(rt.m);
  rt.m.step();
  if (a.is_number() && b.is_number()) return !is_nan(a) && !is_nan(b) && compare_numbers(a, b) == 0;
  if (a.type() != b.type()) return false;
  switch (a.type()) {
    case kind::undefined:
    case kind::none: return true;
    case kind::big_integer: return a.digits() == b.digits();
    case kind::string:
      rt.m.touch((std::min)(a.as_text().size(), b.as_text().size()));
      return a.view() == b.view();
    case kind::list: {
      const list_object &x = a.as_list(), &y = b.as_list();
      if (x.kind_of != y.kind_of || x.items.size() != y.items.size()) return false;
      if (x.kind_of == flavor::dict_values) return &x == &y;
      for (std::size_t i = 0; i < x.items.size(); ++i)
        if (!x.items[i].same_as(y.items[i]) && !equal(rt, x.items[i], y.items[i])) return false;
      return true;
    }
    case kind::dict: {
      const dict_object &x = a.as_dict(), &y = b.as_dict();
      if (x.entries.size() != y.entries.size()) return false;
      for (const auto& [key, item] : x.entries) {
        const value* other = dict_lookup(y, key);
        if (!other || (!item.same_as(*other) && !equal(rt, item, *other))) return false;
      }
      return true;
    }
    case kind::generator:
    case kind::object: return a.same_as(b);
    case kind::boolean:
    case kind::integer:
    case kind::floating: break;
  }
  return false;
}

/// Python's order: a <op> b for < <= > >=.
inline bool ordered(runtime& rt, operation op, const value& a, const value& b) {
  const nested guard(rt.m);
  const auto decide = [op](int sign) {
    return op == operation::less ? sign < 0 : op == operation::less_equal ? sign <= 0 : op == operation::greater ? sign > 0 : sign >= 0;
  };
  rt.m.step();
  if (a.is_number() && b.is_number()) return !is_nan(a) && !is_nan(b) && decide(compare_numbers(a, b));
  if (a.is_undefined()) rt.use_of_undefined(a);
  if (b.is_undefined()) rt.use_of_undefined(b);
  if (a.is_string() && b.is_string()) {
    rt.m.touch((std::min)(a.as_text().size(), b.as_text().size()));
    return decide(a.view().compare(b.view()));  // the order of UTF-8 bytes is that of code points
  }
  if (a.is(kind::list) && b.is(kind::list) && a.as_list().kind_of == b.as_list().kind_of &&
      (a.as_list().kind_of == flavor::list || a.as_list().kind_of == flavor::tuple)) {
    const auto &x = a.as_list().items, &y = b.as_list().items;
    for (std::size_t i = 0; i < x.size() && i < y.size(); ++i)
      if (!x[i].same_as(y[i]) && !equal(rt, x[i], y[i])) return ordered(rt, op, x[i], y[i]);
    return decide(x.size() < y.size() ? -1 : x.size() > y.size() ? 1 : 0);
  }
  rt.fail({"expected two values with an order, got '", type_name(a), "' and '", type_name(b), "'"});
}

/// Python's `item in container`.
inline bool contains(runtime& rt, const value& container, const value& item) {
  switch (container.type()) {
    case kind::undefined: return false;
    case kind::string:
      if (item.is_undefined()) rt.use_of_undefined(item);
      if (!item.is_string()) rt.fail({"expected a string to look for in a string, got '", type_name(item), "'"});
      rt.m.touch(container.as_text().size());
      return find_text(container.view(), item.view()) != std::string_view::npos;
    case kind::list:
      for (const value& v : container.as_list().items)
        if (v.same_as(item) || equal(rt, v, item)) return true;
      return false;
    case kind::dict:
      if (!item.is_string() && dict_key(item).empty()) rt.fail({"expected a hashable key, got '", type_name(item), "'"});
      rt.m.step();
      return dict_lookup(container.as_dict(), item) != nullptr;
    case kind::generator: {
      generator_object& g = container.as_generator();
      while (g.at < g.items.size())
        if (const value& v = g.items[g.at++]; v.same_as(item) || equal(rt, v, item)) return true;
      return false;
    }
    case kind::none:
    case kind::boolean:
    case kind::integer:
    case kind::big_integer:
    case kind::floating:
    case kind::object: break;
  }
  rt.fail({"expected a container after 'in', got '", type_name(container), "'"});
}

inline bool compare(runtime& rt, operation op, const value& a, const value& b) {
  switch (op) {
    case operation::equal: return equal(rt, a, b);
    case operation::not_equal: return !equal(rt, a, b);
    case operation::contained: return contains(rt, b, a);
    case operation::not_contained: return !contains(rt, b, a);
    case operation::less:
    case operation::less_equal:
    case operation::greater:
    case operation::greater_equal: return ordered(rt, op, a, b);
    case operation::add:
    case operation::subtract:
    case operation::multiply:
    case operation::divide:
    case operation::floor_divide:
    case operation::modulo:
    case operation::power: break;
  }
  return false;
}

// --- arithmetic ---------------------------------------------------------------------------------------------------------

inline std::string_view symbol_of(operation op) {
  switch (op) {
    case operation::add: return "+";
    case operation::subtract: return "-";
    case operation::multiply: return "*";
    case operation::divide: return "/";
    case operation::floor_divide: return "//";
    case operation::modulo: return "%";
    case operation::power: return "**";
    case operation::equal:
    case operation::not_equal:
    case operation::less:
    case operation::less_equal:
    case operation::greater:
    case operation::greater_equal:
    case operation::contained:
    case operation::not_contained: break;
  }
  return "?";
}

/// a + b, a - b, a * b of 64-bit integers; false on overflow, where Python would go on with longer ones.
inline bool checked_integer(operation op, std::int64_t a, std::int64_t b, std::int64_t& out) {
  constexpr std::int64_t highest = (std::numeric_limits<std::int64_t>::max)(), lowest = (std::numeric_limits<std::int64_t>::min)();
  if (op == operation::subtract) {
    if (b == lowest) return a < 0 ? (out = a - b, true) : false;
    return checked_integer(operation::add, a, -b, out);
  }
  if (op == operation::add) {
    if (b > 0 ? a > highest - b : a < lowest - b) return false;
    out = a + b;
    return true;
  }
  if (a == 0 || b == 0) return out = 0, true;
  if (a == -1 || b == -1) {
    const std::int64_t x = a == -1 ? b : a;
    return x == lowest ? false : (out = -x, true);
  }
  if (a > 0 ? (b > 0 ? a > highest / b : b < lowest / a) : (b > 0 ? a < lowest / b : b < highest / a)) return false;
  out = a * b;
  return true;
}

inline value float_power(runtime& rt, double a, double b) {
  if (a == 0 && b < 0) rt.fail("expected a power that exists, got zero to a negative power");
  const double r = std::pow(a, b);
  if (std::isnan(r) && !std::isnan(a) && !std::isnan(b)) rt.fail("expected a real result of '**', got a complex one");
  if (std::isinf(r) && !std::isinf(a) && !std::isinf(b)) rt.fail("expected a result of '**' within range, got one too large");
  return value(r);
}

inline value integer_power(runtime& rt, std::int64_t a, std::int64_t b) {
  if (b < 0) return float_power(rt, static_cast<double>(a), static_cast<double>(b));
  std::int64_t result = 1;
  while (b > 0) {
    if (b & 1)
      if (!checked_integer(operation::multiply, result, a, result)) rt.fail("expected integers of at most 64 bits, got a longer result of '**'");
    b >>= 1;
    if (b > 0 && !checked_integer(operation::multiply, a, a, a)) rt.fail("expected integers of at most 64 bits, got a longer result of '**'");
  }
  return value(result);
}

inline double float_modulo(double a, double b) {  // the sign of the divisor, as in Python
  double r = std::fmod(a, b);
  if (r != 0 && (r < 0) != (b < 0)) r += b;
  else if (r == 0) r = std::copysign(0.0, b);
  return r;
}
inline double float_floor_divide(double a, double b) {
  const double r = std::fmod(a, b);
  double q = (a - r) / b;
  if (r != 0 && (r < 0) != (b < 0)) q -= 1;
  if (q == 0) return std::copysign(0.0, a / b);
  const double whole = std::floor(q);
  return q - whole > 0.5 ? whole + 1 : whole;
}

inline value number_arithmetic(runtime& rt, operation op, const value& a, const value& b) {
  const bool floating = a.is(kind::floating) || b.is(kind::floating);
  const bool divides = op == operation::divide || op == operation::floor_divide || op == operation::modulo;
  if (divides && b.as_float() == 0) rt.fail("expected a divisor other than zero, got zero");
  if (op == operation::divide) return value(a.as_float() / b.as_float());
  if (floating) {
    const double x = a.as_float(), y = b.as_float();
    switch (op) {
      case operation::add: return value(x + y);
      case operation::subtract: return value(x - y);
      case operation::multiply: return value(x * y);
      case operation::floor_divide: return value(float_floor_divide(x, y));
      case operation::modulo: return value(float_modulo(x, y));
      default: return float_power(rt, x, y);
    }
  }
  const std::int64_t x = a.as_integer(), y = b.as_integer();
  if (op == operation::power) return integer_power(rt, x, y);
  if (op == operation::floor_divide || op == operation::modulo) {
    std::int64_t q = 0, r = 0;
    if (y == -1) {
      if (op == operation::floor_divide && !checked_integer(operation::multiply, x, -1, q)) rt.fail("expected integers of at most 64 bits, got a longer result of '//'");
    } else {
      q = x / y, r = x % y;
      if (r != 0 && (r < 0) != (y < 0)) --q, r += y;
    }
    return value(op == operation::floor_divide ? q : r);
  }
  std::int64_t out = 0;
  if (!checked_integer(op, x, y, out)) rt.fail({"expected integers of at most 64 bits, got a longer result of '", symbol_of(op), "'"});
  return value(out);
}

inline value repeat(runtime& rt, const value& v, std::int64_t times) {
  const std::size_t n = times < 0 ? 0 : static_cast<std::size_t>(times);
  const std::size_t size = v.is_string() ? v.as_text().size() : v.as_list().items.size();
  if (size != 0 && n > (std::size_t{1} << 40) / size) rt.m.check_text(std::size_t{1} << 40);  // certainly over any budget
  if (v.is_string()) {
    rt.m.check_text(size * n);
    text t;
    t.reserve(size * n);
    for (std::size_t bit = std::size_t{1} << 40; bit > 0 && size > 0; bit >>= 1) {  // doubles what is there, few long copies
      if (!t.empty()) t.append(text(t));
      if (n & bit) t.append(v.as_text());
    }
    return rt.make(std::move(t));
  }
  const charge held(&rt.m, sizeof(value) * size * n);
  rt.m.step(1 + size * n);
  std::vector<value> items;
  items.reserve(size * n);
  for (std::size_t i = 0; i < n && size > 0; ++i) items.insert(items.end(), v.as_list().items.begin(), v.as_list().items.end());
  return rt.make_list(std::move(items), v.as_list().kind_of);
}

inline bool is_sequence_literal(const value& v) {
  return v.is(kind::list) && (v.as_list().kind_of == flavor::list || v.as_list().kind_of == flavor::tuple);
}

inline value arithmetic(runtime& rt, operation op, const value& a, const value& b) {
  if (a.is_number() && b.is_number()) return number_arithmetic(rt, op, a, b);
  if (op == operation::modulo && a.is_string()) return format_percent(rt, a.as_text(), b);
  if (a.is_undefined()) rt.use_of_undefined(a);
  if (b.is_undefined()) rt.use_of_undefined(b);
  if (op == operation::add) {
    if (a.is_string() && b.is_string()) {
      rt.m.check_text(a.as_text().size() + b.as_text().size());
      text t;
      t.reserve(a.as_text().size() + b.as_text().size());
      t.append(a.as_text());
      t.append(b.as_text());
      return rt.make(std::move(t));
    }
    if (is_sequence_literal(a) && is_sequence_literal(b) && a.as_list().kind_of == b.as_list().kind_of) {
      const auto &x = a.as_list().items, &y = b.as_list().items;
      const charge held(&rt.m, sizeof(value) * (x.size() + y.size()));
      std::vector<value> items;
      items.reserve(x.size() + y.size());
      items.insert(items.end(), x.begin(), x.end());
      items.insert(items.end(), y.begin(), y.end());
      return rt.make_list(std::move(items), a.as_list().kind_of);
    }
  }
  if (op == operation::multiply) {
    const auto repeatable = [](const value& v) { return v.is_string() || is_sequence_literal(v); };
    const auto count = [](const value& v) { return v.is(kind::integer) || v.is(kind::boolean); };
    if (repeatable(a) && count(b)) return repeat(rt, a, b.as_integer());
    if (repeatable(b) && count(a)) return repeat(rt, b, a.as_integer());
  }
  rt.fail({"expected operands that '", symbol_of(op), "' can combine, got '", type_name(a), "' and '" +
          std::string(type_name(b)), "'"});
}

inline value negate(runtime& rt, const value& v) {
  if (v.is(kind::floating)) return value(-v.as_float());
  if (v.is(kind::integer) || v.is(kind::boolean)) return number_arithmetic(rt, operation::subtract, value(0), v);
  if (v.is_undefined()) rt.use_of_undefined(v);
  rt.fail({"expected a number after '-', got '", type_name(v), "'"});
}

}  // namespace jinja
}  // namespace quena::inline QUENA_ABI
