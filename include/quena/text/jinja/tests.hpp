// SPDX-License-Identifier: MIT
// `x is name(…)`.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>

#include "access.hpp"
#include "operators.hpp"
#include "runtime.hpp"
#include "string_methods.hpp"

namespace quena::inline QUENA_ABI {
namespace jinja {

bool filter_exists(std::string_view name);  // filters.hpp
bool test_exists(std::string_view name);

namespace tests {

using test_function = bool (*)(runtime&, const value&, const arguments&);

template <kind K>
bool is_kind(runtime&, const value& v, const arguments&) { return v.is(K); }

inline bool boolean(runtime&, const value& v, const arguments&) { return v.is(kind::boolean); }
inline bool callable(runtime&, const value& v, const arguments&) {
  return v.is_undefined() || (v.is(kind::object) && v.as_object().callable());  // Undefined has a __call__, if only to complain
}
inline bool defined(runtime&, const value& v, const arguments&) { return !v.is_undefined(); }
inline bool escaped(runtime&, const value&, const arguments&) { return false; }
inline bool is_false(runtime&, const value& v, const arguments&) { return v.is(kind::boolean) && !v.as_boolean(); }
inline bool is_true(runtime&, const value& v, const arguments&) { return v.is(kind::boolean) && v.as_boolean(); }
inline bool integer(runtime&, const value& v, const arguments&) { return v.is(kind::integer) || v.is(kind::big_integer); }
inline bool number(runtime&, const value& v, const arguments&) { return v.is_number() || v.is(kind::big_integer); }
inline bool iterable(runtime&, const value& v, const arguments&) {
  return v.is_undefined() || v.is_string() || v.is(kind::list) || v.is(kind::dict) || v.is(kind::generator) ||
         (v.is(kind::object) && v.as_object().type_name() == "LoopContext");
}
inline bool sequence(runtime&, const value& v, const arguments&) {
  return v.is_undefined() || v.is_string() || v.is(kind::dict) || (v.is(kind::list) && (is_sequence_literal(v) || v.as_list().kind_of == flavor::range));
}
inline bool lower(runtime& rt, const value& v, const arguments&) { return methods::is_all<letter_case::lower>(rt, to_text(rt, v)); }
inline bool upper(runtime& rt, const value& v, const arguments&) { return methods::is_all<letter_case::upper>(rt, to_text(rt, v)); }

inline bool remainder_is(runtime& rt, const value& v, const value& by, std::int64_t wanted) {
  return equal(rt, arithmetic(rt, operation::modulo, v, by), value(wanted));
}
inline bool even(runtime& rt, const value& v, const arguments&) { return remainder_is(rt, v, value(2), 0); }
inline bool odd(runtime& rt, const value& v, const arguments&) { return remainder_is(rt, v, value(2), 1); }
inline bool divisibleby(runtime& rt, const value& v, const arguments& args) {
  return remainder_is(rt, v, *bind(rt, "divisibleby", args, {"num"}, 1)[0], 0);
}

template <operation Op>
bool compares(runtime& rt, const value& v, const arguments& args) { return compare(rt, Op, v, *bind(rt, "a comparison", args, {"other"}, 1)[0]); }
inline bool contained(runtime& rt, const value& v, const arguments& args) { return contains(rt, *bind(rt, "in", args, {"seq"}, 1)[0], v); }
inline bool sameas(runtime& rt, const value& v, const arguments& args) { return v.same_as(*bind(rt, "sameas", args, {"other"}, 1)[0]); }
inline bool filter(runtime&, const value& v, const arguments&) { return v.is_string() && filter_exists(v.view()); }
inline bool test(runtime&, const value& v, const arguments&) { return v.is_string() && test_exists(v.view()); }

struct named_test {
  std::string_view name;
  test_function f;
};
inline constexpr named_test all[] = {  // sorted
    {"!=", compares<operation::not_equal>},
    {"<", compares<operation::less>},
    {"<=", compares<operation::less_equal>},
    {"==", compares<operation::equal>},
    {">", compares<operation::greater>},
    {">=", compares<operation::greater_equal>},
    {"boolean", boolean},
    {"callable", callable},
    {"defined", defined},
    {"divisibleby", divisibleby},
    {"eq", compares<operation::equal>},
    {"equalto", compares<operation::equal>},
    {"escaped", escaped},
    {"even", even},
    {"false", is_false},
    {"filter", filter},
    {"float", is_kind<kind::floating>},
    {"ge", compares<operation::greater_equal>},
    {"greaterthan", compares<operation::greater>},
    {"gt", compares<operation::greater>},
    {"in", contained},
    {"integer", integer},
    {"iterable", iterable},
    {"le", compares<operation::less_equal>},
    {"lessthan", compares<operation::less>},
    {"lower", lower},
    {"lt", compares<operation::less>},
    {"mapping", is_kind<kind::dict>},
    {"ne", compares<operation::not_equal>},
    {"none", is_kind<kind::none>},
    {"number", number},
    {"odd", odd},
    {"sameas", sameas},
    {"sequence", sequence},
    {"string", is_kind<kind::string>},
    {"test", test},
    {"true", is_true},
    {"undefined", is_kind<kind::undefined>},
    {"upper", upper},
};

inline test_function find(std::string_view name) {
  const auto* it = std::lower_bound(std::begin(all), std::end(all), name, [](const named_test& t, std::string_view n) { return t.name < n; });
  return it != std::end(all) && it->name == name ? it->f : nullptr;
}

}  // namespace tests

inline bool test_exists(std::string_view name) { return tests::find(name) != nullptr; }

inline bool apply_test(runtime& rt, std::string_view name, const value& input, const arguments& args) {
  const auto f = tests::find(name);
  if (!f) rt.fail({"expected a known test, got '", name.substr(0, 60), "'"});
  rt.m.step();
  return f(rt, input, args);
}

}  // namespace jinja
}  // namespace quena::inline QUENA_ABI
