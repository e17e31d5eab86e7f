// SPDX-License-Identifier: MIT
// One view over all kinds of models on disk: a Hugging Face folder, a GGUF file, or an artifact made of one of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../core/dtype.hpp"
#include "../core/error.hpp"
#include "artifact.hpp"
#include "file_system.hpp"
#include "gguf.hpp"
#include "gguf_names.hpp"
#include "json.hpp"
#include "json_fields.hpp"
#include "mapped_file.hpp"
#include "safetensors.hpp"
#include "sort_by_name.hpp"

namespace quena::inline QUENA_ABI {

/// A tensor of a checkpoint. Its bytes live as long as the checkpoint.
struct checkpoint_tensor {
  std::string name;                         ///< as in Hugging Face folders, for GGUF files too
  dtype type = dtype::f32;
  std::vector<std::size_t> shape;           ///< slowest first: [out_features, in_features]
  std::span<const std::byte> data;          ///< empty for an artifact's matrices, which are there in packed form only
  std::string file;                         ///< name of the file that holds it, without the folder
  std::size_t interleaved_head_dim = 0;     ///< 0: rows as in Hugging Face folders. GGUF's q and k: head_dim, the rows of a head
                                            ///< are permuted so that rotary pairs are neighbours (2i, 2i + 1) instead of halves
};

/// A file that the caller has in memory.
struct memory_file {
  std::string_view name;
  std::span<const std::byte> bytes;
};

struct checkpoint_options {
  bool weights = true;          ///< false: only configuration and text files are looked at; then config.json may be absent, too
  bool allow_symlinks = false;  ///< true: shards may be symbolic links that lead out of the folder
};

/// An open checkpoint: names, types, shapes and places of all tensors, the configuration as the file has it, and the text files
/// beside it. Every file was checked for consistency with itself; check_tensors() compares it with the configuration, and
/// check_finite() reads the weights for NaN.
///
/// Open     Hugging Face folder: config.json, and model.safetensors or model.safetensors.index.json with its shards
///          GGUF: the file, or a folder that holds exactly one of them and no config.json
///          artifact (artifact.hpp): the file. is_gguf() says what it was made of
/// Errors   io: something is absent or unreadable; malformed; unsupported: pickled weights, GGUF in several parts, other models
class checkpoint {
 public:
  static checkpoint open(std::string_view path, checkpoint_options options = {}) {
    switch (kind_of_path(path)) {
      case path_kind::absent: fail(errc::io, "load", "expected a model folder or a .gguf file, found nothing there", path);
      case path_kind::other: fail(errc::io, "load", "expected a model folder or a .gguf file, got a device, pipe or socket", path);
      case path_kind::file: {
        mapped_file file = mapped_file::open(checked_gguf_path(path));
        if (artifact_file::is_one(file.bytes())) return from_artifact(path, artifact_file::from_mapped(std::move(file)), options);
        return from_gguf(path, gguf_file::from_mapped(std::move(file)), options);
      }
      case path_kind::folder: break;
    }
    if (kind_of_path(join_path(path, "config.json")) == path_kind::absent && kind_of_path(join_path(path, "tokenizer.json")) == path_kind::absent) {
      const std::vector<std::string> files = names_in_folder(path, ".gguf");
      if (files.size() == 1) return from_gguf(path, gguf_file::open(join_path(path, files[0])), options);
      if (files.size() > 1) fail(errc::io, "load", {"expected one model, got ", files.size(), " .gguf files: name one of them"}, path);
    }
    checkpoint c;
    c.path_ = path;
    c.on_disk_ = true;
    c.read_folder(options);
    return c;
  }

  /// A GGUF file in the caller's memory, which must outlive the checkpoint and stay unchanged; or an artifact, which must outlive the
  /// model as well.
  static checkpoint from_memory(std::span<const std::byte> file, std::string_view name = "memory", checkpoint_options options = {}) {
    if (artifact_file::is_one(file)) return from_artifact(name, artifact_file::from_memory(file, name), options);
    return from_gguf(name, gguf_file::from_memory(file, name), options);
  }

  /// A Hugging Face folder in the caller's memory (at least config.json and model.safetensors, or the index and its shards), which
  /// must outlive the checkpoint and stay unchanged.
  static checkpoint from_memory(std::span<const memory_file> files, std::string_view name = "memory", checkpoint_options options = {}) {
    checkpoint c;
    c.path_ = name;
    for (const memory_file& f : files)
      if (!c.in_memory_.emplace(std::string(f.name), f.bytes).second) fail(errc::invalid_argument, "load", {"expected each file once, got ", detail::shortened(f.name), " twice"}, name);
    c.read_folder(options);
    return c;
  }

  [[nodiscard]] bool is_gguf() const noexcept { return gguf_.has_value(); }
  /// What holds the matrices in packed form; null if this is not an artifact. manifest() says what they mean.
  [[nodiscard]] const artifact_file* artifact() const noexcept { return artifact_ ? &*artifact_ : nullptr; }
  [[nodiscard]] const json& manifest() const noexcept { return manifest_; }
  /// The GGUF file itself; only if is_gguf().
  [[nodiscard]] const gguf_file& gguf() const {
    if (!gguf_) fail(errc::invalid_argument, "load", "expected a GGUF file, got a Hugging Face folder", path_);
    return *gguf_;
  }
  /// config.json; null if is_gguf() or if it was absent and no weights were asked for.
  [[nodiscard]] const json& config_json() const noexcept { return config_; }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  /// The path of a file beside the weights, for messages.
  [[nodiscard]] std::string file_path(std::string_view name) const { return is_gguf() ? gguf_->file() : join_path(path_, name); }

  [[nodiscard]] std::span<const checkpoint_tensor> tensors() const noexcept { return tensors_; }  ///< sorted by name
  [[nodiscard]] const checkpoint_tensor* find(std::string_view name) const noexcept {
    const auto it = std::lower_bound(tensors_.begin(), tensors_.end(), name, [](const checkpoint_tensor& t, std::string_view n) { return t.name < n; });
    return it != tensors_.end() && it->name == name ? &*it : nullptr;
  }

  /// The content of a text file of the folder (tokenizer.json, …), nothing if it is absent or this is a GGUF file.
  /// Errors   malformed: larger than `most` bytes (parsed JSON takes several times its text's memory)
  [[nodiscard]] std::optional<std::string> text_file(std::string_view name, std::size_t most = std::size_t{1} << 28) const {
    if (is_gguf()) return std::nullopt;
    std::optional<folder_file> f = open_file(name);
    if (!f) return std::nullopt;
    if (f->bytes.size() > most)
      fail(errc::malformed, "load", {"expected a text file of at most ", most, " bytes, got ", f->bytes.size()}, file_path(name));
    return std::string(reinterpret_cast<const char*>(f->bytes.data()), f->bytes.size());
  }

  /// Lets go of a tensor's pages: it will not be read again soon (see mapped_file::release).
  void release(const checkpoint_tensor& t) const noexcept {
    if (gguf_) gguf_->mapped().release(t.data);
    for (const safetensors_file& s : shards_) s.mapped().release(t.data);
  }

 private:
  struct folder_file {
    mapped_file mapped;  // empty in memory
    std::span<const std::byte> bytes;
  };

  checkpoint() = default;

  // ---- GGUF

  /// Tells what else somebody may have named, since "not a GGUF file" alone doesn't help.
  static std::string_view checked_gguf_path(std::string_view path) {
    for (const std::string_view suffix : {".safetensors", ".json", ".bin", ".pth", ".pt"})
      if (path.ends_with(suffix)) fail(errc::invalid_argument, "load", "expected a model folder or a .gguf file, got one file of a folder", path);
    return path;
  }

  static checkpoint from_gguf(std::string_view path, gguf_file file, checkpoint_options options) {
    checkpoint c;
    c.path_ = path;
    c.gguf_ = std::move(file);
    if (options.weights) c.list_gguf_tensors();
    return c;
  }

  void list_gguf_tensors() {
    const gguf_file& g = *gguf_;
    if (const std::string_view arch = g.get_string("general.architecture"); arch != "llama")
      fail(errc::unsupported, "load", {"general.architecture: expected llama, got ", detail::shortened(arch)}, g.file());
    if (const auto parts = g.find_u64("split.count"); parts && *parts > 1)
      fail(errc::unsupported, "load", {"expected a whole model, got one of ", *parts, " parts: join them with llama-gguf-split --merge"}, g.file());
    const std::uint64_t n_heads = g.get_u64("llama.attention.head_count");
    if (n_heads == 0) fail(errc::malformed, "load", "llama.attention.head_count: expected at least 1, got 0", g.file());
    const std::uint64_t head_dim = g.find_u64("llama.attention.key_length").value_or(g.get_u64("llama.embedding_length") / n_heads);

    const std::string name = g.file().substr(g.file().find_last_of("/\\") + 1);
    for (const gguf_tensor& t : g.tensors()) {
      checkpoint_tensor out{hugging_face_name(t.name), t.type, {t.dims.rbegin(), t.dims.rend()}, t.data, name, 0};
      if (out.name.find(".self_attn.q_proj.") != out.name.npos || out.name.find(".self_attn.k_proj.") != out.name.npos)
        out.interleaved_head_dim = static_cast<std::size_t>(head_dim);
      tensors_.push_back(std::move(out));
    }
    sort_tensors();
  }

  // ---- artifact

  static checkpoint from_artifact(std::string_view path, artifact_file file, checkpoint_options options) {
    checkpoint c;
    c.path_ = path;
    c.artifact_ = std::move(file);
    c.read_artifact(options);
    return c;
  }

  void read_artifact(checkpoint_options options) {
    constexpr std::string_view files = "files/", packed = "packed/", padding = "padding/", manifest = "manifest.json";
    std::vector<checkpoint_tensor> plain;
    std::optional<std::span<const std::byte>> gguf;
    for (const safetensors_tensor& t : artifact_->tensors()) {
      if (t.name.starts_with(files)) {
        if (t.name == "files/model.gguf") gguf = t.data;
        else in_memory_.emplace(t.name.substr(files.size()), t.data);
      } else if (!t.name.starts_with(packed) && !t.name.starts_with(padding) && t.name != manifest) {
        plain.push_back({t.name, t.type, t.shape, t.data, path_, 0});
      }
    }
    if (gguf) gguf_ = gguf_file::from_memory(*gguf, path_);
    const auto text = artifact_->find(manifest);
    if (!text) fail(errc::malformed, "artifact", "expected a manifest.json, got none", path_);
    manifest_ = parse_json({reinterpret_cast<const char*>(text->data()), text->size()}, "artifact", path_);
    const json_fields fields(manifest_, "artifact", path_);
    if (fields.need_integer("version", 1, 1u << 30) != 1) fields.wrong("version", "version 1", *fields.find("version"), errc::unsupported);
    if (!gguf) read_folder({.weights = false, .allow_symlinks = false});
    if (!options.weights) return;

    tensors_ = std::move(plain);
    const json* listed = fields.find("tensors");
    if (listed == nullptr || !listed->is_array()) fail(errc::malformed, "artifact", "expected a list of tensors", path_);
    for (const json& entry : *listed) {
      const json_fields t(entry, "artifact", path_, "tensors.");
      const std::string type = t.need("type", t.string("type"), "a type");
      checkpoint_tensor out{t.need("name", t.string("name"), "a name"), dtype::f32, {static_cast<std::size_t>(t.need_integer("rows", 1, 1u << 30)), static_cast<std::size_t>(t.need_integer("cols", 1, 1u << 30))}, {}, path_, 0};
      std::size_t d = 0;
      while (d < n_dtypes && dtype_name(static_cast<dtype>(d)) != type) ++d;
      if (d == n_dtypes) t.wrong("type", "a tensor's type", *t.find("type"));
      out.type = static_cast<dtype>(d);
      tensors_.push_back(std::move(out));
    }
    sort_tensors();
  }

  // ---- Hugging Face folder

  /// A file of the folder by its plain name, nothing if it is absent.
  [[nodiscard]] std::optional<folder_file> open_file(std::string_view name) const {
    folder_file f;
    if (on_disk_) {
      const std::string path = join_path(path_, name);
      if (kind_of_path(path) == path_kind::absent) return std::nullopt;
      f.mapped = mapped_file::open(path);
      f.bytes = f.mapped.bytes();
    } else {
      const auto it = in_memory_.find(name);
      if (it == in_memory_.end()) return std::nullopt;
      f.bytes = it->second;
    }
    return f;
  }

  void read_folder(checkpoint_options options) {
    const std::optional<std::string> config = text_file("config.json", std::size_t{1} << 24);
    if (config) config_ = parse_json(*config, "load", file_path("config.json"));
    if (!options.weights) return;
    if (!config) fail(errc::io, "load", "expected a model folder, but config.json is absent", path_);

    if (std::optional<folder_file> whole = open_file("model.safetensors")) {
      add_shard("model.safetensors", std::move(*whole));
    } else if (const std::optional<std::string> index = text_file("model.safetensors.index.json", std::size_t{1} << 26)) {
      read_index(*index, options);
    } else {
      const bool pickled = open_file("pytorch_model.bin") || open_file("pytorch_model.bin.index.json");
      fail(pickled ? errc::unsupported : errc::io, "load",
           pickled ? "expected safetensors weights, got pickled ones (pytorch_model.bin)" : "expected model.safetensors or model.safetensors.index.json, both are absent", path_);
    }
    sort_tensors();
  }

  void read_index(std::string_view text, checkpoint_options options) {
    const std::string file = file_path("model.safetensors.index.json");
    const json index = parse_json(text, "load", file);
    const auto map = index.is_object() ? index.find("weight_map") : index.end();
    if (map == index.end() || !map->is_object()) fail(errc::malformed, "load", "expected an object weight_map", file);

    std::map<std::string, std::size_t, std::less<>> shards;  // name -> place in shards_
    for (const auto& [tensor, shard] : map->items()) {
      if (!shard.is_string()) fail(errc::malformed, "load", {"weight_map.", detail::shortened(tensor), ": expected a file name"}, file);
      shards.emplace(shard.get_ref<const std::string&>(), 0);
    }
    for (auto& [name, place] : shards) {
      check_shard_name(name, file);
      if (on_disk_ && !options.allow_symlinks) check_shard_link(name, file);
      std::optional<folder_file> f = open_file(name);
      if (!f) fail(errc::io, "load", {"expected the shard ", detail::shortened(name), ", which is absent"}, file);
      place = shards_.size();
      add_shard(name, std::move(*f));
    }
    for (const auto& [tensor, shard] : map->items()) {
      const std::string& name = shard.get_ref<const std::string&>();
      if (shards_[shards.find(name)->second].find(tensor) == nullptr)
        fail(errc::malformed, "load", {detail::shortened(tensor), ": expected in ", detail::shortened(name), ", which has no such tensor"}, file);
    }
  }

  /// Shards are files in the folder itself; the index is not trusted to name others.
  static void check_shard_name(std::string_view name, std::string_view file) {
    constexpr std::string_view suffix = ".safetensors";
    const bool plain = name.size() > suffix.size() && name.ends_with(suffix) && name.front() != '.' && name.size() <= 255 &&
                       std::none_of(name.begin(), name.end(), [](char c) { return c == '/' || c == '\\' || c == ':' || static_cast<unsigned char>(c) < 0x20; });
    if (!plain) fail(errc::malformed, "load", {"expected shard names like model-00001-of-00002.safetensors, got '", detail::shortened(name), "'"}, file);
  }

  /// A link may lead to another place in the folder, or to the blobs folder of a Hugging Face cache (…/snapshots/<revision> beside
  /// …/blobs), nowhere else.
  void check_shard_link(std::string_view name, std::string_view file) const {
    if (kind_of_path(join_path(path_, name)) == path_kind::absent) return;  // said better by the caller
    const auto parent = [](std::string_view p) { return p.substr(0, (std::min)(p.size(), p.find_last_of("/\\"))); };
    const std::string shard = detail::resolved(join_path(path_, name)), beside = join_path(detail::resolved(path_), name);
    const std::string_view holder = parent(shard), folder = parent(beside), snapshots = parent(folder);
    if (!shard.empty() && holder == folder) return;
    if (!shard.empty() && snapshots.ends_with("/snapshots") && holder == join_path(parent(snapshots), "blobs")) return;
    fail(errc::malformed, "load", {"expected the shard ", detail::shortened(name), " in the folder, got a link that leads out of it (allow_symlinks permits that)"}, file);
  }

  void add_shard(std::string_view name, folder_file f) {
    safetensors_file shard = on_disk_ ? safetensors_file::from_mapped(std::move(f.mapped)) : safetensors_file::from_memory(f.bytes, join_path(path_, name));
    for (const safetensors_tensor& t : shard.tensors()) tensors_.push_back({t.name, t.type, t.shape, t.data, std::string(name), 0});
    shards_.push_back(std::move(shard));
  }

  void sort_tensors() {
    detail::sort_by_name(tensors_, [](const checkpoint_tensor& t) { return std::string_view(t.name); });
    for (std::size_t i = 1; i < tensors_.size(); ++i)
      if (tensors_[i].name == tensors_[i - 1].name)
        fail(errc::malformed, "load", {detail::shortened(tensors_[i].name), ": expected once, got it in ", tensors_[i - 1].file, " and in ", tensors_[i].file}, path_);
  }

  std::string path_;
  bool on_disk_ = false;
  std::map<std::string, std::span<const std::byte>, std::less<>> in_memory_;
  std::optional<artifact_file> artifact_;
  json manifest_;
  std::optional<gguf_file> gguf_;
  json config_;
  std::vector<safetensors_file> shards_;
  std::vector<checkpoint_tensor> tensors_;
};

}  // namespace quena::inline QUENA_ABI
