// SPDX-License-Identifier: MIT
// A GGUF file written anew with its matrices in another type: metadata and everything that is not a matrix stay as they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "../core/dtype.hpp"
#include "../core/error.hpp"
#include "../quant/encode_row.hpp"
#include "gguf.hpp"
#include "output_file.hpp"

namespace quena::inline QUENA_ABI {

namespace detail {

/// Our type -> the file's number of a tensor type.
[[nodiscard]] constexpr std::uint32_t gguf_dtype_id(dtype d) noexcept {
  std::uint32_t id = 0;
  while (gguf_dtype(id) != d) ++id;
  return id;
}

/// The head of a GGUF file, byte by byte.
class gguf_head {
 public:
  template <class T>
  void number(T value) {
    raw(std::as_bytes(std::span(&value, 1)));
  }
  void text(std::string_view s) {
    number(static_cast<std::uint64_t>(s.size()));
    raw(std::as_bytes(std::span(s.data(), s.size())));
  }
  void raw(std::span<const std::byte> b) {
    const std::size_t at = bytes_.size();
    bytes_.resize(at + b.size());
    if (!b.empty()) std::memcpy(bytes_.data() + at, b.data(), b.size());
  }
  void pad_to(std::size_t alignment) { bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment); }
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

/// Adds the head up to the tensors' records: metadata as in `source`, but for general.file_type where one is given.
inline void add_gguf_metadata(gguf_head& head, const gguf_file& source, std::size_t n_tensors, std::optional<std::uint32_t> file_type) {
  constexpr std::string_view version_key = "general.quantization_version";
  bool has_version = source.has(version_key) || !file_type;
  head.raw(std::as_bytes(std::span("GGUF", 4)));
  head.number(std::uint32_t{3});
  head.number(static_cast<std::uint64_t>(n_tensors));
  head.number(static_cast<std::uint64_t>(source.values().size() + (has_version ? 0 : 1)));
  const auto add_version = [&] { head.text(version_key), head.number(static_cast<std::uint32_t>(gguf_type::u32)), head.number(std::uint32_t{2}), has_version = true; };
  for (const gguf_value& v : source.values()) {  // sorted
    if (!has_version && v.key > version_key) add_version();
    head.text(v.key);
    head.number(static_cast<std::uint32_t>(v.type));
    if (v.type == gguf_type::array) head.number(static_cast<std::uint32_t>(v.element)), head.number(v.count);
    if (file_type && v.key == "general.file_type" && v.type == gguf_type::u32) {
      head.number(*file_type);
    } else if (v.type == gguf_type::string) {
      head.text(source.get_string(v.key));
    } else {
      head.raw(v.bytes);
    }
  }
  if (!has_version) add_version();
}

inline void add_gguf_record(gguf_head& head, const gguf_tensor& t, dtype stored, std::uint64_t offset) {
  head.text(t.name);
  head.number(static_cast<std::uint32_t>(t.dims.size()));
  for (const std::size_t d : t.dims) head.number(static_cast<std::uint64_t>(d));
  head.number(gguf_dtype_id(stored));
  head.number(offset);
}

/// A GGUF file with what `source` says of its model: the metadata, and the one tensor that belongs to the configuration.
inline gguf_head gguf_metadata(const gguf_file& source) {
  gguf_head head;
  const gguf_tensor* const divisors = source.find_tensor("rope_freqs.weight");
  add_gguf_metadata(head, source, divisors != nullptr ? 1 : 0, std::nullopt);
  if (divisors != nullptr) add_gguf_record(head, *divisors, divisors->type, 0);
  head.pad_to(source.alignment());
  if (divisors != nullptr) head.raw(divisors->data), head.pad_to(source.alignment());
  return head;
}

}  // namespace detail

/// What a GGUF file's matrices become.
struct gguf_target {
  dtype type = dtype::f16;
  /// q4_k with q6_k for the output matrix, and for the value and down projections of the layers that other programs' "Q4_K_M" gives
  /// more bits: the first and last eighth, and every third between.
  bool mixed = false;
};

namespace detail {

/// The type that a tensor gets: matrices whose rows are not whole blocks take a type of smaller ones.
inline dtype gguf_target_type(const gguf_target& target, const gguf_tensor& t, std::size_t n_layers, bool tied) {
  if (t.dims.size() != 2 || !is_weight_type(t.type)) return t.type;
  dtype want = target.type;
  if (target.mixed) {
    const std::string_view name = t.name;
    std::size_t layer = 0;
    for (std::size_t i = 4; name.starts_with("blk.") && i < name.size() && name[i] >= '0' && name[i] <= '9' && layer < 1'000'000; ++i) layer = layer * 10 + static_cast<std::size_t>(name[i] - '0');
    const std::size_t eighth = n_layers / 8;
    const bool more = layer < eighth || layer >= 7 * n_layers / 8 || (layer - eighth) % 3 == 2, choice = name.ends_with(".attn_v.weight") || name.ends_with(".ffn_down.weight");
    if (name == "output.weight" || (tied && name == "token_embd.weight") || (choice && more)) want = dtype::q6_k;
  }
  if (t.dims[0] % block_elements(want) == 0) return want;
  return t.dims[0] % block_elements(dtype::q8_0) == 0 ? dtype::q8_0 : dtype::f16;
}

}  // namespace detail

/// Writes `source` with its matrices in other types (gguf_target) and its other tensors unchanged.
/// Numerics see encode_row(). A matrix that has the type already is copied.
/// Errors   unsupported: a type that encode_row() does not write; malformed: a weight that is NaN or infinite, with its tensor.
/// Cost     one pass; memory: the head and one row.
inline void write_gguf(const gguf_file& source, const gguf_target& target, const byte_sink& sink, const std::function<void(double fraction)>& progress = {}) {
  const dtype type = target.type;
  if (!is_encodable(type)) fail(errc::unsupported, "quantize", {"expected ", encodable_types, ", got ", dtype_name(type)}, source.file());
  const std::size_t n_layers = static_cast<std::size_t>(source.find_u64("llama.block_count").value_or(0));
  const bool tied = source.find_tensor("output.weight") == nullptr;
  const auto stored = [&](const gguf_tensor& t) { return detail::gguf_target_type(target, t, n_layers, tied); };
  const auto elements = [](const gguf_tensor& t) { return t.data.size() / block_bytes(t.type) * block_elements(t.type); };
  const std::size_t alignment = source.alignment();

  detail::gguf_head head;
  const std::uint32_t file_type = type == dtype::f32 ? 0 : type == dtype::f16 ? 1 : type == dtype::q4_0 ? 2 : type == dtype::q8_0 ? 7 : type == dtype::q6_k ? 18 : type == dtype::bf16 ? 32 : target.mixed ? 15 : 14;
  detail::add_gguf_metadata(head, source, source.tensors().size(), file_type);
  std::uint64_t offset = 0;
  for (const gguf_tensor& t : source.tensors()) {
    detail::add_gguf_record(head, t, stored(t), offset);
    offset += (n_bytes(stored(t), elements(t)) + alignment - 1) / alignment * alignment;
  }
  head.pad_to(alignment);
  sink(head.bytes());

  const std::vector<std::byte> zeros(alignment);
  std::vector<float> row;
  std::vector<std::byte> out;
  double done = 0;
  for (const gguf_tensor& t : source.tensors()) {
    std::size_t written = 0;
    const dtype to = stored(t);
    if (to == t.type) {
      sink(t.data);
      written = t.data.size();
    } else {
      if (const std::size_t n = elements(t), bad = find_non_finite(t.type, t.data.data(), n); bad != n)
        fail(errc::malformed, "quantize", {t.name, ": expected finite weights, got one at element ", bad, " that is not"}, source.file());
      const std::size_t cols = t.dims[0], rows = t.dims[1], from_bytes = cols / block_elements(t.type) * block_bytes(t.type);
      row.resize(cols);
      out.resize(n_bytes(to, cols));
      for (std::size_t r = 0; r < rows; ++r) {
        dequantize_row(t.type, t.data.data() + r * from_bytes, row.data(), cols);
        encode_row(to, row.data(), cols, out.data());
        if (find_non_finite(to, out.data(), cols) != cols)
          fail(errc::non_finite, "quantize", {t.name, ": expected weights within the range of ", dtype_name(to), ", got larger ones in row ", r}, source.file());
        sink(out);
        written += out.size();
      }
    }
    if (const std::size_t rest = written % alignment; rest != 0) sink(std::span(zeros).first(alignment - rest)), written += alignment - rest;
    done += static_cast<double>(written);
    if (progress) progress(done / static_cast<double>(offset));
  }
}

}  // namespace quena::inline QUENA_ABI
