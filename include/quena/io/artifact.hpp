// SPDX-License-Identifier: MIT
// One file with everything a model needs, its matrices packed as a backend multiplies them: loading maps it.
//
// The file is a safetensors file (any reader of that format lists it), with these conventions:
//   __metadata__     "quena": hash of the header (see below), first; then for each tensor its hash: hash_pieces() over its bytes
//   manifest.json    what the packed tensors mean (model/packed_weights.hpp)
//   files/NAME       the model's small files as they were: config.json, tokenizer.json, …, or model.gguf without its tensors
//   packed/NAME      packed matrices, at multiples of 64 bytes;  padding/N  zeros in between
//   other names      plain tensors (norm gains), as in the checkpoint
// The header's own hash is content_hash() of the header with 16 zeros in place of the hash.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../core/checked.hpp"
#include "../core/dtype.hpp"
#include "../core/error.hpp"
#include "../core/hash.hpp"
#include "output_file.hpp"
#include "safetensors.hpp"
#include "sort_by_name.hpp"

namespace quena::inline QUENA_ABI {

namespace detail {

inline constexpr std::string_view artifact_start = R"({"__metadata__":{"quena":")";

inline std::string hash_text(std::uint64_t h) {
  std::string s(16, '0');
  for (std::size_t i = 16; i-- > 0; h >>= 4) s[i] = "0123456789abcdef"[h & 15];
  return s;
}

inline std::uint64_t serial_hash(std::span<const std::byte> bytes) {
  std::vector<std::uint64_t> pieces(n_hash_pieces(bytes.size()));
  hash_pieces(bytes, 0, pieces.size(), pieces);
  return combined_hash(pieces);
}

}  // namespace detail

/// An open artifact. Its header and small files were checked against their hashes; packed matrices are checked by whoever reads them.
class artifact_file {
 public:
  static constexpr std::size_t alignment = 64;

  /// Whether a file begins as an artifact does.
  [[nodiscard]] static bool is_one(std::span<const std::byte> bytes) noexcept {
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return text.size() > 8 && text.substr(8).starts_with(detail::artifact_start);
  }

  /// Errors   malformed: not a safetensors file, or its header or a small file has been altered.
  static artifact_file from_mapped(mapped_file file) {
    check_header(file.bytes(), file.path());
    return artifact_file(safetensors_file::from_mapped(std::move(file)));
  }
  /// `bytes` must be kept alive and unchanged by the caller.
  static artifact_file from_memory(std::span<const std::byte> bytes, std::string_view name = "memory") {
    check_header(bytes, name);
    return artifact_file(safetensors_file::from_memory(bytes, name));
  }

  [[nodiscard]] const std::string& file() const noexcept { return file_->file(); }
  [[nodiscard]] std::span<const safetensors_tensor> tensors() const noexcept { return file_->tensors(); }
  [[nodiscard]] std::optional<std::span<const std::byte>> find(std::string_view name) const noexcept {
    const safetensors_tensor* t = file_->find(name);
    return t == nullptr ? std::nullopt : std::optional(t->data);
  }
  /// Compares the hash of a tensor's bytes with the one in the header.
  /// Errors   malformed: the header has none, or the bytes are not those that were written.
  void expect_hash(std::string_view name, std::uint64_t got) const {
    const auto at = std::lower_bound(hashes_.begin(), hashes_.end(), name, [](const auto& entry, std::string_view n) { return entry.first < n; });
    if (at == hashes_.end() || at->first != name) fail(errc::malformed, "artifact", {"expected a hash of ", detail::shortened(name), ", got none"}, file());
    if (at->second != detail::hash_text(got)) fail(errc::malformed, "artifact", {detail::shortened(name), ": expected the bytes that were written, got others: the file is damaged"}, file());
  }
  /// What keeps the bytes in memory; null where the caller does.
  [[nodiscard]] std::shared_ptr<const void> keeper() const noexcept { return file_->mapped().bytes().empty() ? nullptr : std::shared_ptr<const void>(file_); }

 private:
  explicit artifact_file(safetensors_file file) : file_(std::make_shared<const safetensors_file>(std::move(file))) {
    for (const auto& [name, value] : file_->metadata()) hashes_.emplace_back(name, value);
    detail::sort_by_name(hashes_, [](const auto& entry) { return entry.first; });
    for (const safetensors_tensor& t : tensors())
      if (!t.name.starts_with("packed/")) expect_hash(t.name, detail::serial_hash(t.data));
  }

  static void check_header(std::span<const std::byte> bytes, std::string_view file) {
    const std::uint64_t n = bytes.size() < 8 ? 0 : detail::unaligned<std::uint64_t>(bytes.data());
    const std::string_view start = detail::artifact_start;
    if (n < start.size() + 16 || n > bytes.size() - 8) fail(errc::malformed, "artifact", {"expected a header of ", n, " bytes, got a file of ", bytes.size()}, file);
    std::string header(reinterpret_cast<const char*>(bytes.data()) + 8, static_cast<std::size_t>(n));
    const std::string expected = header.substr(start.size(), 16);
    header.replace(start.size(), 16, 16, '0');
    if (detail::hash_text(content_hash(std::as_bytes(std::span(header)))) != expected)
      fail(errc::malformed, "artifact", "expected the header that was written, got another: the file is damaged", file);
  }

  std::shared_ptr<const safetensors_file> file_;
  std::vector<std::pair<std::string_view, std::string_view>> hashes_;  // {name, hash}, sorted
};

/// Collects what an artifact will hold, then writes it. The bytes given must live until then.
class artifact_writer {
 public:
  /// A tensor; one that is not `plain` gets a place that is aligned for kernels.
  void add(std::string name, dtype type, std::vector<std::size_t> shape, std::span<const std::byte> bytes, bool plain = true) {
    const std::size_t rest = size_ % artifact_file::alignment;
    if (!plain && rest != 0) append("padding/" + std::to_string(entries_.size()), dtype::u8, {artifact_file::alignment - rest}, std::span(zeros).first(artifact_file::alignment - rest));
    append(std::move(name), type, std::move(shape), bytes);
  }
  void add(std::string name, std::span<const std::byte> bytes, bool plain = true) { add(std::move(name), dtype::u8, {bytes.size()}, bytes, plain); }

  /// Cost     the bytes are read twice, once for their hashes.
  void write(const byte_sink& out, const std::function<void(double fraction)>& progress = {}) const {
    std::string header(detail::artifact_start);
    header.append(16, '0').append("\"");
    for (const entry& e : entries_) header.append(",\"").append(e.name).append("\":\"").append(detail::hash_text(detail::serial_hash(e.bytes))).append("\"");
    header += '}';
    std::size_t at = 0;
    for (const entry& e : entries_) {
      header.append(",\"").append(e.name).append(R"(":{"dtype":")").append(type_name(e.type)).append(R"(","shape":[)");
      for (std::size_t i = 0; i < e.shape.size(); ++i) header.append(i == 0 ? "" : ",").append(std::to_string(e.shape[i]));
      header.append(R"(],"data_offsets":[)").append(std::to_string(at)).append(",").append(std::to_string(at + e.bytes.size())).append("]}");
      at += e.bytes.size();
    }
    header += '}';
    header.append((artifact_file::alignment - (header.size() + 8) % artifact_file::alignment) % artifact_file::alignment, ' ');
    header.replace(detail::artifact_start.size(), 16, detail::hash_text(content_hash(std::as_bytes(std::span(header)))));
    const std::uint64_t n = header.size();
    out(std::as_bytes(std::span(&n, 1)));
    out(std::as_bytes(std::span(header)));
    std::size_t done = 0;
    for (const entry& e : entries_) {
      out(e.bytes);
      done += e.bytes.size();
      if (progress) progress(static_cast<double>(done) / static_cast<double>(size_));
    }
  }

 private:
  struct entry {
    std::string name;
    dtype type;
    std::vector<std::size_t> shape;
    std::span<const std::byte> bytes;
  };
  static constexpr std::array<std::byte, artifact_file::alignment> zeros{};

  void append(std::string name, dtype type, std::vector<std::size_t> shape, std::span<const std::byte> bytes) {
    size_ += bytes.size();
    entries_.push_back({std::move(name), type, std::move(shape), bytes});
  }
  static std::string_view type_name(dtype d) { return d == dtype::f32 ? "F32" : d == dtype::f16 ? "F16" : d == dtype::bf16 ? "BF16" : "U8"; }

  std::vector<entry> entries_;
  std::size_t size_ = 0;
};

}  // namespace quena::inline QUENA_ABI
