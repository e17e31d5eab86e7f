// SPDX-License-Identifier: MIT
// What an artifact's manifest says of its packed matrices.
//
//   {"version": 1, "form": "cpu-1", "format": "int4",
//    "tensors":  [{"name": "model.layers.0.self_attn.q_proj.weight", "type": "bf16", "rows": 2048, "cols": 2048}, …]   what they were made of
//    "matrices": {"model.layers.0.self_attn.q_proj+k_proj+v_proj": [{"rows": 3072, "cols": 2048, "layout": "int4", "gate_up": false}], …}}
//
// Part i of matrix M lies in packed/M/i, its bias in packed/M/i/bias.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "../backend/backend.hpp"
#include "../io/checkpoint.hpp"
#include "../io/json_fields.hpp"

namespace quena::inline QUENA_ABI {

namespace detail {

inline std::string part_name(std::string_view matrix, std::size_t i) { return std::string("packed/").append(matrix).append("/").append(std::to_string(i)); }

/// The parts of one matrix; views into the artifact. Their sizes are checked by the backend that adopts them, their hashes by the caller.
/// Errors   malformed: no such matrix, or another shape.
inline std::vector<packed_part> packed_parts(const checkpoint& files, const std::string& matrix, std::size_t rows, std::size_t cols, std::size_t most_parts) {
  const artifact_file& a = *files.artifact();
  const json_fields manifest(files.manifest(), "artifact", a.file());
  const json* const all = manifest.find("matrices");
  const json none = json::object();
  const json_fields matrices(all != nullptr ? *all : none, "artifact", a.file(), "matrices.");
  const json* const list = matrices.find(matrix);
  if (list == nullptr || !list->is_array() || list->empty() || list->size() > most_parts)
    fail(errc::malformed, "artifact", {matrix, ": expected 1 to ", most_parts, " parts"}, a.file());
  std::vector<packed_part> parts;
  std::size_t n_rows = 0;
  for (const json& entry : *list) {
    const json_fields f(entry, "artifact", a.file(), matrix + ".");
    const std::string name = part_name(matrix, parts.size());
    const auto bytes = a.find(name);
    if (!bytes) fail(errc::malformed, "artifact", {"expected ", name, ", which is absent"}, a.file());
    const json* const layout = f.find("layout");
    if (layout == nullptr || !layout->is_string()) fail(errc::malformed, "artifact", {matrix, ": expected the name of a layout"}, a.file());
    parts.push_back({static_cast<std::size_t>(f.need_integer("rows", 1, rows)), static_cast<std::size_t>(f.need_integer("cols", cols, cols)), layout->get_ref<const std::string&>(),
                     f.boolean("gate_up").value_or(false), *bytes, a.find(name + "/bias").value_or(std::span<const std::byte>())});
    n_rows += parts.back().rows;
  }
  if (n_rows != rows) fail(errc::malformed, "artifact", {matrix, ": expected ", rows, " rows, got ", n_rows}, a.file());
  return parts;
}

/// The format of an artifact's matrices.
/// Errors   unsupported: packed for another backend, or not in the format that is wanted.
template <backend B>
format artifact_format(const checkpoint& files, format wanted) {
  const json_fields manifest(files.manifest(), "artifact", files.path());
  std::string_view form = "no artifacts";
  if constexpr (packing_backend<B>) form = B::packed_form;
  if (manifest.string("form") != form) fail(errc::unsupported, "artifact", {"expected matrices packed as ", form, ", got ", shortened(manifest.string("form").value_or("none"))}, files.path());
  const std::optional<format> stored = parse_format(manifest.need("format", manifest.string("format"), "a format"));
  if (!stored) manifest.wrong("format", "a format", *manifest.find("format"));
  if (wanted != format::automatic && wanted != *stored)
    fail(errc::unsupported, "artifact", {"expected format auto or ", format_name(*stored), ", which the file has, got ", format_name(wanted)}, files.path());
  return *stored;
}

}  // namespace detail
}  // namespace quena::inline QUENA_ABI
