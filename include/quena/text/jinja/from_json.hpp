// SPDX-License-Identifier: MIT
// JSON text to template values: keys keep their order, integers their digits.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../../io/json.hpp"
#include "value.hpp"

namespace quena::inline QUENA_ABI {
namespace jinja {

/// Sink of read_json() that builds a value. Nothing in it counts as written by the template.
class value_builder {
 public:
  value_builder(std::string_view where, std::string_view file) : where_(where), file_(file) {}

  void null() { put(value(nullptr)); }
  void boolean(bool v) { put(value(v)); }
  void number_integer(std::int64_t v) { put(value(v)); }
  void number_unsigned(std::uint64_t v) {
    if (v <= static_cast<std::uint64_t>((std::numeric_limits<std::int64_t>::max)())) put(value(static_cast<std::int64_t>(v)));
    else put(big_integer(std::to_string(v)));
  }
  void number_float(double v, const std::string& literal) {
    if (literal.find_first_of(".eE") == std::string::npos) put(big_integer(literal));
    else put(value(v));
  }
  void string(std::string& v) { put(value(std::move(v))); }
  void start_object() { open_.push_back({std::make_unique<dict_object>(), {}, {}}); }
  void start_array() { open_.push_back({nullptr, {}, {}}); }
  void key(std::string& k) { open_.back().key = std::move(k); }
  void end_object() {
    auto d = std::move(open_.back().dict);
    open_.pop_back();
    put(value(kind::dict, std::move(d)));
  }
  void end_array() {
    auto items = std::move(open_.back().items);
    open_.pop_back();
    put(value::list(std::move(items)));
  }
  value take() { return std::move(root_); }

 private:
  struct container {
    std::unique_ptr<dict_object> dict;  // null: an array
    std::vector<value> items;
    std::string key;
  };

  static value big_integer(std::string digits) {
    auto made = std::make_unique<big_integer_object>();
    made->digits = std::move(digits);
    return value(kind::big_integer, std::move(made));
  }

  void put(value v) {
    if (open_.empty()) {
      root_ = std::move(v);
    } else if (container& c = open_.back(); !c.dict) {
      c.items.push_back(std::move(v));
    } else if (!dict_insert(*c.dict, value(c.key), std::move(v))) {
      fail(errc::malformed, where_, "expected each key once, got '" + c.key.substr(0, 200) + "' twice", file_);
    }
  }

  value root_;
  std::vector<container> open_;
  std::string_view where_, file_;
};

/// Parses a JSON text into a value.
/// Errors   malformed: as read_json, and a key given twice.   Cost  linear but for n log n in the keys of one object.
inline value value_from_json(std::string_view json_text, std::string_view where, std::string_view file = {}) {
  value_builder builder(where, file);
  read_json(json_text, builder, where, file);
  return builder.take();
}

}  // namespace jinja
}  // namespace quena::inline QUENA_ABI
