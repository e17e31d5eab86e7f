// SPDX-License-Identifier: MIT
// What a checkpoint recommends for generation: end tokens and sampling settings.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "../io/checkpoint.hpp"
#include "../io/json_fields.hpp"
#include "config.hpp"

namespace quena::inline QUENA_ABI {

/// The checkpoint's own settings; what it doesn't say is nothing.
struct generation_defaults {
  std::vector<std::int32_t> eos_token_ids;  ///< union of generation_config.json and config.json, or of GGUF's eos, eot and eom
  std::optional<bool> do_sample;            ///< false: greedy, whatever else is set
  std::optional<float> temperature, top_p, min_p, typical_p, repetition_penalty;
  std::optional<std::int32_t> top_k;
};

/// Errors   malformed: generation_config.json is not what it should be, with the field's name
[[nodiscard]] inline generation_defaults read_generation_defaults(const checkpoint& files) {
  generation_defaults d;
  if (files.is_gguf()) {
    d.eos_token_ids = read_config(files).eos_token_ids;
    return d;
  }
  const auto add = [&](const std::vector<std::int32_t>& ids) {
    for (const std::int32_t id : ids)
      if (std::find(d.eos_token_ids.begin(), d.eos_token_ids.end(), id) == d.eos_token_ids.end()) d.eos_token_ids.push_back(id);
  };
  if (const std::optional<std::string> text = files.text_file("generation_config.json")) {
    const std::string path = files.file_path("generation_config.json");
    const json parsed = parse_json(*text, "load", path);
    const json_fields f(parsed, "load", path);
    const auto number = [&](std::string_view key, double least, double most) -> std::optional<float> {
      const std::optional<double> x = f.number(key, least, most);
      return x ? std::optional(static_cast<float>(*x)) : std::nullopt;
    };
    add(f.token_ids("eos_token_id"));
    d.do_sample = f.boolean("do_sample");
    d.temperature = number("temperature", 0, 1e6);
    d.top_p = number("top_p", 0, 1);
    d.min_p = number("min_p", 0, 1);
    d.typical_p = number("typical_p", 0, 1);
    if (f.has("repetition_penalty")) d.repetition_penalty = static_cast<float>(*f.positive("repetition_penalty", 1e6));
    if (const auto k = f.integer("top_k", 0, 1u << 30)) d.top_k = static_cast<std::int32_t>(*k);
  }
  if (files.config_json().is_object()) add(json_fields(files.config_json(), "config", files.file_path("config.json")).token_ids("eos_token_id"));
  return d;
}

}  // namespace quena::inline QUENA_ABI
