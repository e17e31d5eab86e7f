// SPDX-License-Identifier: MIT
// What tokenizer_config.json adds to tokenizer.json: which tokens begin and end a text, and the chat template.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "../core/error.hpp"
#include "../io/json.hpp"

namespace quena::inline QUENA_ABI {
namespace detail {

/// A member of a JSON object; null if it is absent, null, or `object` is no object.
inline const json* json_member(const json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

inline std::optional<bool> json_flag(const json& object, const char* key, std::string_view where, std::string_view file) {
  const json* v = json_member(object, key);
  if (v == nullptr) return std::nullopt;
  if (!v->is_boolean()) fail(errc::malformed, where, {key, ": expected true or false, got ", v->type_name()}, file);
  return v->get<bool>();
}

inline std::optional<std::string> json_text(const json& object, const char* key, std::string_view where, std::string_view file) {
  const json* v = json_member(object, key);
  if (v == nullptr) return std::nullopt;
  if (!v->is_string()) fail(errc::malformed, where, {key, ": expected a string, got ", v->type_name()}, file);
  return v->get<std::string>();
}

/// A token as the configuration writes it: its text, or an object whose `content` that is. Nothing if it is null or absent.
inline std::optional<std::string> json_token(const json& object, const char* key, std::string_view where, std::string_view file) {
  const json* v = json_member(object, key);
  if (v != nullptr && v->is_object()) return json_text(*v, "content", where, file);
  return json_text(object, key, where, file);
}

struct tokenizer_config {
  std::optional<bool> add_bos, add_eos;
  std::optional<std::string> bos, eos, unknown;
  std::vector<std::string> special;  // all tokens that the file calls special, the three above too
  std::optional<std::string> chat_template;
};

/// Reads tokenizer_config.json; an empty text gives an empty result. Of several chat templates `template_name` is taken.
/// Errors   malformed: not JSON, or a member of another type than it should be.
inline tokenizer_config read_tokenizer_config(std::string_view text, std::string_view file = "tokenizer_config.json",
                                              std::string_view template_name = "default") {
  constexpr std::string_view where = "tokenizer_config";
  tokenizer_config c;
  if (text.empty()) return c;
  const json j = parse_json(text, where, file);
  if (!j.is_object()) fail(errc::malformed, where, {"expected a JSON object, got ", j.type_name()}, file);
  c.add_bos = json_flag(j, "add_bos_token", where, file);
  c.add_eos = json_flag(j, "add_eos_token", where, file);
  c.bos = json_token(j, "bos_token", where, file);
  c.eos = json_token(j, "eos_token", where, file);
  c.unknown = json_token(j, "unk_token", where, file);
  for (const char* key : {"bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"})
    if (auto t = json_token(j, key, where, file)) c.special.push_back(std::move(*t));
  if (const json* more = json_member(j, "additional_special_tokens"); more != nullptr && more->is_array())
    for (const json& t : *more) {
      if (t.is_string()) c.special.push_back(t.get<std::string>());
      if (t.is_object())
        if (auto s = json_text(t, "content", where, file)) c.special.push_back(std::move(*s));
    }
  if (const json* t = json_member(j, "chat_template")) {
    if (t->is_string()) c.chat_template = t->get<std::string>();
    else if (t->is_array()) {
      for (const json& named : *t)
        if (json_text(named, "name", where, file) == template_name) c.chat_template = json_text(named, "template", where, file);
    } else {
      fail(errc::malformed, where, {"chat_template: expected a string or a list, got ", t->type_name()}, file);
    }
  }
  return c;
}

}  // namespace detail
}  // namespace quena::inline QUENA_ABI
