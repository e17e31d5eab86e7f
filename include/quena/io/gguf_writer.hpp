// SPDX-License-Identifier: MIT
// Writes GGUF files: one anew with its matrices in another type, where metadata and everything that is not a matrix stay as they are, or
// one from whatever fills in a gguf_source (model/gguf_export.hpp: a Hugging Face folder).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
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
    bytes_.insert(bytes_.end(), b.begin(), b.end());
  }
  void pad_to(std::size_t alignment) { bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment); }
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace detail

/// A tensor to be written.
struct gguf_source_tensor {
  std::string name;
  dtype type = dtype::f32;
  std::vector<std::size_t> dims;      ///< fastest first: a matrix is {in_features, out_features}
  std::span<const std::byte> data;
  std::size_t rotary_head_dim = 0;    ///< not 0: rows (of a vector: elements) come in Hugging Face's order and go in GGUF's, see matrix_source

  /// Where row r of the file begins in `data`.
  [[nodiscard]] std::size_t row_offset(std::size_t r, std::size_t row_bytes) const noexcept {
    if (rotary_head_dim == 0) return r * row_bytes;
    const std::size_t in_head = r % rotary_head_dim;
    return (r - in_head + in_head % 2 * (rotary_head_dim / 2) + in_head / 2) * row_bytes;
  }
};

/// What a GGUF file is written from. The tensors' data must outlive it.
struct gguf_source {
  std::string file;                                       ///< for messages
  std::size_t alignment = 32, n_layers = 0;
  std::map<std::string, std::vector<std::byte>> metadata;  ///< by key: number of the type and what follows it
  std::vector<gguf_source_tensor> tensors;
  std::vector<std::byte> owned;                           ///< data that no file has: the tensors may refer to it

  template <class T>
  void set_number(const std::string& key, gguf_type type, T value) {
    set(key, type, [&](detail::gguf_head& h) { h.number(value); });
  }
  void set_u32(const std::string& key, std::size_t value) { set_number(key, gguf_type::u32, static_cast<std::uint32_t>(value)); }
  void set_f32(const std::string& key, double value) { set_number(key, gguf_type::f32, static_cast<float>(value)); }
  void set_bool(const std::string& key, bool value) { set_number(key, gguf_type::boolean, static_cast<std::uint8_t>(value)); }
  void set_text(const std::string& key, std::string_view value) {
    set(key, gguf_type::string, [&](detail::gguf_head& h) { h.text(value); });
  }
  /// write(head, i) adds element i.
  template <class F>
  void set_list(const std::string& key, gguf_type element, std::size_t n, F write) {
    set(key, gguf_type::array, [&](detail::gguf_head& h) {
      h.number(static_cast<std::uint32_t>(element)), h.number(static_cast<std::uint64_t>(n));
      for (std::size_t i = 0; i < n; ++i) write(h, i);
    });
  }

 private:
  template <class F>
  void set(const std::string& key, gguf_type type, F add) {
    detail::gguf_head value;
    value.number(static_cast<std::uint32_t>(type));
    add(value);
    metadata[key].assign(value.bytes().begin(), value.bytes().end());
  }
};

/// A GGUF file, to be written as it is.
[[nodiscard]] inline gguf_source gguf_source_of(const gguf_file& file) {
  gguf_source s;
  s.file = file.file(), s.alignment = file.alignment(), s.n_layers = static_cast<std::size_t>(file.find_u64("llama.block_count").value_or(0));
  for (const gguf_value& v : file.values()) {
    detail::gguf_head value;
    value.number(static_cast<std::uint32_t>(v.type));
    if (v.type == gguf_type::array) value.number(static_cast<std::uint32_t>(v.element)), value.number(v.count);
    if (v.type == gguf_type::string) value.text(file.get_string(v.key));
    else value.raw(v.bytes);
    s.metadata[std::string(v.key)].assign(value.bytes().begin(), value.bytes().end());
  }
  for (const gguf_tensor& t : file.tensors()) s.tensors.push_back({std::string(t.name), t.type, t.dims, t.data, 0});
  return s;
}

namespace detail {

/// Everything up to the tensors' records.
inline void add_gguf_metadata(gguf_head& head, const gguf_source& source) {
  head.raw(std::as_bytes(std::span("GGUF", 4)));
  head.number(std::uint32_t{3});
  head.number(static_cast<std::uint64_t>(source.tensors.size()));
  head.number(static_cast<std::uint64_t>(source.metadata.size()));
  for (const auto& [key, value] : source.metadata) head.text(key), head.raw(value);
}

inline void add_gguf_record(gguf_head& head, const gguf_source_tensor& t, dtype stored, std::uint64_t offset) {
  head.text(t.name);
  head.number(static_cast<std::uint32_t>(t.dims.size()));
  for (const std::size_t d : t.dims) head.number(static_cast<std::uint64_t>(d));
  head.number(gguf_dtype_id(stored));
  head.number(offset);
}

/// A GGUF file with what another one says of its model: the metadata, and the one tensor that belongs to the configuration.
inline gguf_head gguf_metadata(const gguf_file& file) {
  gguf_source source = gguf_source_of(file);
  std::erase_if(source.tensors, [](const gguf_source_tensor& t) { return t.name != "rope_freqs.weight"; });
  gguf_head head;
  add_gguf_metadata(head, source);
  for (const gguf_source_tensor& t : source.tensors) add_gguf_record(head, t, t.type, 0);
  head.pad_to(source.alignment);
  for (const gguf_source_tensor& t : source.tensors) head.raw(t.data), head.pad_to(source.alignment);
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

/// The type that a tensor gets: matrices whose rows are not whole blocks take a type of smaller ones, vectors are f32 as readers expect.
inline dtype gguf_target_type(const gguf_target& target, const gguf_source_tensor& t, std::size_t n_layers, bool tied) {
  if (t.dims.size() == 1 && (t.type == dtype::f16 || t.type == dtype::bf16)) return dtype::f32;
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
inline void write_gguf(gguf_source source, const gguf_target& target, const byte_sink& sink, const std::function<void(double fraction)>& progress = {}) {
  const dtype type = target.type;
  if (!is_encodable(type)) fail(errc::unsupported, "quantize", {"expected ", encodable_types, ", got ", dtype_name(type)}, source.file);
  const bool tied = std::none_of(source.tensors.begin(), source.tensors.end(), [](const gguf_source_tensor& t) { return t.name == "output.weight"; });
  const auto stored = [&](const gguf_source_tensor& t) { return detail::gguf_target_type(target, t, source.n_layers, tied); };
  const auto elements = [](const gguf_source_tensor& t) { return t.data.size() / block_bytes(t.type) * block_elements(t.type); };
  const std::size_t alignment = source.alignment;

  const std::uint32_t file_type = type == dtype::f32 ? 0 : type == dtype::f16 ? 1 : type == dtype::q4_0 ? 2 : type == dtype::q8_0 ? 7 : type == dtype::q6_k ? 18 : type == dtype::bf16 ? 32 : target.mixed ? 15 : 14;
  source.set_u32("general.file_type", file_type);
  source.set_u32("general.quantization_version", 2);
  detail::gguf_head head;
  detail::add_gguf_metadata(head, source);
  std::uint64_t offset = 0;
  for (const gguf_source_tensor& t : source.tensors) {
    detail::add_gguf_record(head, t, stored(t), offset);
    offset += (n_bytes(stored(t), elements(t)) + alignment - 1) / alignment * alignment;
  }
  head.pad_to(alignment);
  sink(head.bytes());

  const std::vector<std::byte> zeros(alignment);
  std::vector<float> row;
  std::vector<std::byte> out;
  double done = 0;
  for (const gguf_source_tensor& t : source.tensors) {
    std::size_t written = 0;
    const dtype to = stored(t);
    if (to == t.type && t.rotary_head_dim == 0) {
      sink(t.data);
      written = t.data.size();
    } else {
      if (const std::size_t n = elements(t), bad = find_non_finite(t.type, t.data.data(), n); bad != n)
        fail(errc::malformed, "quantize", {t.name, ": expected finite weights, got one at element ", bad, " that is not"}, source.file);
      const std::size_t cols = t.dims.size() == 1 ? 1 : t.dims[0], rows = elements(t) / cols, from_bytes = cols / block_elements(t.type) * block_bytes(t.type);
      row.resize(cols);
      out.resize(n_bytes(to, cols));
      for (std::size_t r = 0; r < rows; ++r) {
        const std::byte* const from = t.data.data() + t.row_offset(r, from_bytes);
        if (to == t.type) {
          sink({from, from_bytes});
          written += from_bytes;
          continue;
        }
        dequantize_row(t.type, from, row.data(), cols);
        encode_row(to, row.data(), cols, out.data());
        if (find_non_finite(to, out.data(), cols) != cols)
          fail(errc::non_finite, "quantize", {t.name, ": expected weights within the range of ", dtype_name(to), ", got larger ones in row ", r}, source.file);
        sink(out);
        written += out.size();
      }
    }
    if (const std::size_t rest = written % alignment; rest != 0) sink(std::span(zeros).first(alignment - rest)), written += alignment - rest;
    done += static_cast<double>(written);
    if (progress) progress(done / static_cast<double>(offset));
  }
}

/// A GGUF file anew, with its matrices in another type.
inline void write_gguf(const gguf_file& source, const gguf_target& target, const byte_sink& sink, const std::function<void(double fraction)>& progress = {}) {
  write_gguf(gguf_source_of(source), target, sink, progress);
}

}  // namespace quena::inline QUENA_ABI
