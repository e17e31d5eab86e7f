// SPDX-License-Identifier: MIT
// `x|name(…)`: the table of filters.
#pragma once

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>

#include "runtime.hpp"
#include "sequence_filters.hpp"
#include "text_filters.hpp"
#include "to_json.hpp"

namespace quena::inline QUENA_ABI {
namespace jinja {
namespace filters {

using filter_function = value (*)(runtime&, const value&, const arguments&);

struct named_filter {
  std::string_view name;
  filter_function f;
};
inline constexpr named_filter all[] = {  // sorted
    {"abs", absolute},
    {"attr", attr},
    {"batch", batch},
    {"capitalize", change_case<letter_case::capitalize>},
    {"center", center},
    {"count", length},
    {"d", fallback},
    {"default", fallback},
    {"dictsort", dictsort},
    {"e", escape},
    {"escape", escape},
    {"first", first},
    {"float", to_float},
    {"forceescape", escape},
    {"format", format},
    {"indent", indent},
    {"int", to_int},
    {"items", items},
    {"join", join},
    {"last", last},
    {"length", length},
    {"list", list},
    {"lower", change_case<letter_case::lower>},
    {"map", map},
    {"max", extreme<operation::greater>},
    {"min", extreme<operation::less>},
    {"reject", select<false, false>},
    {"rejectattr", select<false, true>},
    {"replace", replace},
    {"reverse", reverse},
    {"round", round},
    {"safe", string},
    {"select", select<true, false>},
    {"selectattr", select<true, true>},
    {"slice", slice},
    {"sort", sort},
    {"string", string},
    {"sum", sum},
    {"title", title},
    {"tojson", filter_tojson},
    {"trim", trim},
    {"truncate", truncate},
    {"unique", unique},
    {"upper", change_case<letter_case::upper>},
    {"urlencode", urlencode},
    {"wordcount", wordcount},
};

inline filter_function find(std::string_view name) {
  const auto* it = std::lower_bound(std::begin(all), std::end(all), name, [](const named_filter& f, std::string_view n) { return f.name < n; });
  return it != std::end(all) && it->name == name ? it->f : nullptr;
}

}  // namespace filters

inline bool filter_exists(std::string_view name) { return filters::find(name) != nullptr; }

inline value apply_filter(runtime& rt, std::string_view name, const value& input, const arguments& args) {
  const auto f = filters::find(name);
  if (!f) rt.fail({"expected a known filter, got '", name.substr(0, 60), "'"});
  rt.m.step();
  return f(rt, input, args);
}

}  // namespace jinja
}  // namespace quena::inline QUENA_ABI
