// SPDX-License-Identifier: MIT
// Writing artifacts: a loaded model as one file (io/artifact.hpp), and the cache that does so by itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../io/artifact.hpp"
#include "../io/gguf_writer.hpp"
#include "llama.hpp"

namespace quena::inline QUENA_ABI {

namespace detail {

inline constexpr std::string_view text_file_names[] = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"};

/// The small files of a checkpoint, as an artifact holds them: {name, bytes}.
inline std::vector<std::pair<std::string, std::string>> small_files(const checkpoint& files) {
  std::vector<std::pair<std::string, std::string>> out;
  if (files.is_gguf()) {
    const gguf_head head = gguf_metadata(files.gguf());
    out.emplace_back("model.gguf", std::string(reinterpret_cast<const char*>(head.bytes().data()), head.bytes().size()));
    return out;
  }
  for (const std::string_view name : text_file_names)
    if (std::optional<std::string> text = files.text_file(name)) out.emplace_back(std::string(name), std::move(*text));
  return out;
}

}  // namespace detail

/// Writes a model that was loaded from `files` as an artifact.
/// Cost     reads the packed weights twice, once for their hashes; memory: the small files and the header.
template <packing_backend B>
void write_artifact(const checkpoint& files, const llama<B>& model, const byte_sink& out, const std::function<void(double fraction)>& progress = {}) {
  if (model.config().tie_word_embeddings && model.weights().lm_head)
    fail(errc::unsupported, "artifact", "expected the embedding as output matrix, as the configuration says, got another one, of an adapter", files.path());
  json manifest = {{"version", 1}, {"form", B::packed_form}, {"format", format_name(model.weights().stored)}, {"tensors", json::array()}, {"matrices", json::object()}};
  artifact_writer writer;
  const auto texts = detail::small_files(files);
  for (const auto& [name, bytes] : texts) writer.add("files/" + name, std::as_bytes(std::span(bytes)));

  const auto add_gain = [&](const std::string& name, const typename B::vector& v) {  // the model's: a method may have scaled it
    const std::span<const float> values = model.backend().values(v);
    writer.add(name, dtype::f32, {values.size()}, std::as_bytes(values));
  };
  const auto add_tensors = [&](const std::vector<weight_spec>& specs) {
    for (const weight_spec& s : specs) {
      const checkpoint_tensor& t = *files.find(s.name);
      if (s.cols != 0) manifest["tensors"].push_back({{"name", t.name}, {"type", dtype_name(t.type)}, {"rows", s.rows}, {"cols", s.cols}});
      else if (t.name.ends_with(".bias")) writer.add(t.name, t.type, t.shape, t.data);
    }
  };
  add_tensors(outer_weights(model.config()));
  add_gain("model.norm.weight", model.weights().norm);
  for (std::size_t l = 0; l < model.config().n_layers; ++l) {
    const std::string layer = "model.layers." + std::to_string(l) + ".";
    add_tensors(layer_weights_table(model.config(), l));
    add_gain(layer + "input_layernorm.weight", model.weights().layers[l].input_layernorm);
    add_gain(layer + "post_attention_layernorm.weight", model.weights().layers[l].post_attention_layernorm);
  }
  for_each_matrix(model.weights(), [&](const std::string& name, const typename B::matrix& m) {
    json& list = manifest["matrices"][name] = json::array();
    for (const packed_part& p : model.backend().parts(m)) {
      const std::string part = detail::part_name(name, list.size());
      writer.add(part, p.weights, false);
      if (!p.bias.empty()) writer.add(part + "/bias", p.bias, false);
      list.push_back({{"rows", p.rows}, {"cols", p.cols}, {"layout", p.layout}, {"gate_up", p.gate_up}});
    }
  });
  const std::string text = manifest.dump();
  writer.add("manifest.json", std::as_bytes(std::span(text)));
  writer.write(out, progress);
}

/// Where a cache keeps the artifact of a checkpoint: the same path for the same content, format and form.
/// The content is known by the small files, by name, type, shape and some places of every tensor, and by the sizes and times of change
/// of the files: a tensor that was written anew is another content, also where the places agree. `more` is whatever else went into it.
/// Cost     reads about 256 bytes of each tensor.
[[nodiscard]] inline std::string artifact_cache_path(std::string_view folder, const checkpoint& files, format f, std::string_view form, std::vector<std::uint64_t> more = {}) {
  std::vector<std::uint64_t> sums = std::move(more);
  const auto add = [&](std::span<const std::byte> bytes) { sums.push_back(content_hash(bytes)); };
  const auto add_text = [&](std::string_view text) { add(std::as_bytes(std::span(text))); };
  add_text(form), add_text(format_name(f));
  for (const auto& [name, bytes] : detail::small_files(files)) add_text(name), add_text(bytes);
  std::string last;
  for (const checkpoint_tensor& t : files.tensors()) {
    add_text(t.name), add_text(dtype_name(t.type)), add(std::as_bytes(std::span(t.shape)));
    constexpr std::size_t n_places = 4, most = 64;
    for (std::size_t i = 0; i < n_places; ++i) {
      const std::size_t n = t.data.size() < most ? t.data.size() : most;
      add(t.data.subspan((t.data.size() - n) / (n_places - 1) * i, n));
    }
    if (t.file == last) continue;
    last = t.file;
    const file_stamp stamp = stamp_of(files.is_gguf() ? files.path() : join_path(files.path(), t.file));
    sums.push_back(stamp.size), sums.push_back(stamp.changed);
  }
  std::string name = files.path();
  while (!name.empty() && (name.back() == '/' || name.back() == '\\')) name.pop_back();
  name = name.substr(name.find_last_of("/\\") + 1);
  return join_path(folder, name + "-" + std::string(format_name(f)) + "-" + detail::hash_text(combined_hash(sums)) + ".quena");
}

}  // namespace quena::inline QUENA_ABI
