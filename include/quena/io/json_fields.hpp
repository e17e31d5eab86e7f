// SPDX-License-Identifier: MIT
// Typed fields of a JSON object that somebody else wrote, with errors that name the file and the field.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../core/error.hpp"
#include "json.hpp"

namespace quena::inline QUENA_ABI {

namespace detail {

/// A value for a message: scalars as they are, containers by their kind.
[[nodiscard]] inline std::string described(const json& v) {
  if (v.is_object()) return "an object";
  if (v.is_array()) return "an array";
  return shortened(v.dump());
}

/// An integer that is not negative; parsed text gives unsigned ones, a host's own json may give signed ones.
[[nodiscard]] inline std::optional<std::uint64_t> unsigned_value(const json& v) {
  if (v.is_number_unsigned()) return v.get<std::uint64_t>();
  if (v.is_number_integer() && v.get<std::int64_t>() >= 0) return static_cast<std::uint64_t>(v.get<std::int64_t>());
  return std::nullopt;
}

}  // namespace detail

/// Reads an object's fields. A field that is absent or null is nothing; one of the wrong type or out of range is an error.
/// An integer is accepted where a number is wanted, but not the reverse. Holds references: use it within one function.
class json_fields {
 public:
  json_fields(const json& object, std::string_view where, std::string_view file, std::string prefix = {})
      : object_(object), where_(where), file_(file), prefix_(std::move(prefix)) {
    if (!object.is_object()) wrong("", "an object", object);
  }

  /// The field, nullptr if absent or null.
  [[nodiscard]] const json* find(std::string_view key) const {
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  [[nodiscard]] bool has(std::string_view key) const { return find(key) != nullptr; }

  [[nodiscard]] std::optional<std::uint64_t> integer(std::string_view key, std::uint64_t least, std::uint64_t most) const {
    const json* v = find(key);
    if (v == nullptr) return std::nullopt;
    const std::optional<std::uint64_t> n = detail::unsigned_value(*v);
    if (!n || *n < least || *n > most) wrong(key, {"an integer from ", least, " to ", most}, *v);
    return n;
  }
  [[nodiscard]] std::uint64_t need_integer(std::string_view key, std::uint64_t least, std::uint64_t most) const { return need(key, integer(key, least, most), "an integer"); }

  /// A finite number.
  [[nodiscard]] std::optional<double> number(std::string_view key) const {
    const json* v = find(key);
    if (v == nullptr) return std::nullopt;
    if (!v->is_number() || !std::isfinite(v->get<double>())) wrong(key, "a number", *v);
    return v->get<double>();
  }
  /// A number in (0, most].
  [[nodiscard]] std::optional<double> positive(std::string_view key, double most = (std::numeric_limits<double>::max)()) const {
    const std::optional<double> x = number(key);
    if (x && !(*x > 0 && *x <= most))
      wrong(key, {"a number above 0", (most == (std::numeric_limits<double>::max)() ? std::string() : " and up to " + json(most).dump())}, *find(key));
    return x;
  }
  /// A number in [least, most].
  [[nodiscard]] std::optional<double> number(std::string_view key, double least, double most) const {
    const std::optional<double> x = number(key);
    if (x && !(*x >= least && *x <= most)) wrong(key, {"a number from ", json(least).dump(), " to ", json(most).dump()}, *find(key));
    return x;
  }

  [[nodiscard]] std::optional<bool> boolean(std::string_view key) const {
    const json* v = find(key);
    if (v == nullptr) return std::nullopt;
    if (!v->is_boolean()) wrong(key, "true or false", *v);
    return v->get<bool>();
  }

  [[nodiscard]] std::optional<std::string> string(std::string_view key) const {
    const json* v = find(key);
    if (v == nullptr) return std::nullopt;
    if (!v->is_string()) wrong(key, "a string", *v);
    return v->get<std::string>();
  }

  /// Token ids below `end`: one integer or an array of them; absent and null are no ids.
  [[nodiscard]] std::vector<std::int32_t> token_ids(std::string_view key, std::uint64_t end = std::uint64_t{1} << 31) const {
    std::vector<std::int32_t> ids;
    const json* v = find(key);
    if (v == nullptr) return ids;
    const auto add = [&](const json& id) {
      const std::optional<std::uint64_t> n = detail::unsigned_value(id);
      if (!n || *n >= end) wrong(key, {"token ids (integers from 0 to ", end - 1, ")"}, id);
      ids.push_back(static_cast<std::int32_t>(*n));
    };
    if (!v->is_array()) return add(*v), ids;
    for (const json& id : *v) add(id);
    return ids;
  }

  /// The value, or an error that says that the field is absent.
  template <class T>
  [[nodiscard]] T need(std::string_view key, const std::optional<T>& value, const error_message& wanted) const {
    if (!value) fail(errc::malformed, where_, {prefix_, key, ": expected ", wanted, ", but it is absent"}, file_);
    return *value;
  }

  [[noreturn]] void wrong(std::string_view key, const error_message& wanted, const json& got, errc code = errc::malformed) const {
    const std::string name = prefix_ + std::string(key);
    fail(code, where_, {(name.empty() ? "" : name + ": "), "expected ", wanted, ", got ", detail::described(got)}, file_);
  }

  [[nodiscard]] std::string_view file() const noexcept { return file_; }

 private:
  const json& object_;
  std::string_view where_, file_;
  std::string prefix_;
};

}  // namespace quena::inline QUENA_ABI
