// SPDX-License-Identifier: MIT
// safetensors files: named tensors over bytes that are mapped or the caller's.
//
//   u64 n | n bytes of JSON: {"name": {"dtype": "F32", "shape": [..], "data_offsets": [begin, end]}, ..., "__metadata__": {..}} | data
//   Offsets count from the data; the ranges must cover it without overlaps or holes, and names must differ.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../core/dtype.hpp"
#include "../core/error.hpp"
#include "json.hpp"
#include "mapped_file.hpp"
#include "sort_by_name.hpp"

namespace quena::inline QUENA_ABI {

/// A tensor as the file has it, row-major: a matrix is {out_features, in_features}.
struct safetensors_tensor {
  std::string name;
  dtype type = dtype::f32;
  std::vector<std::size_t> shape;
  std::span<const std::byte> data;
};

namespace detail {

[[nodiscard]] constexpr std::optional<dtype> safetensors_dtype(std::string_view name) noexcept {
  constexpr std::pair<std::string_view, dtype> table[] = {
      {"F32", dtype::f32}, {"F16", dtype::f16}, {"BF16", dtype::bf16}, {"F64", dtype::f64}, {"I8", dtype::i8},   {"U8", dtype::u8},       {"I16", dtype::i16},
      {"U16", dtype::u16}, {"I32", dtype::i32}, {"U32", dtype::u32},   {"I64", dtype::i64}, {"U64", dtype::u64}, {"BOOL", dtype::boolean}};
  for (const auto& [n, d] : table)
    if (n == name) return d;
  return std::nullopt;
}

/// A tensor's record in the header, as written there.
struct safetensors_record {
  std::string name;
  dtype type = dtype::f32;
  std::vector<std::size_t> shape;
  std::uint64_t begin = 0, end = 0;
};

/// Receives the header's JSON (see read_json) and keeps the records; anything that is not the format is refused at once.
class safetensors_header {
 public:
  explicit safetensors_header(std::string_view file) : file_(file) {}

  std::vector<safetensors_record> records;
  std::vector<std::pair<std::string, std::string>> metadata;

  void start_object() {
    if (state_ == state::before) return to(state::top);
    if (state_ == state::name) return to(is_metadata_ ? state::metadata : state::tensor);
    wrong("an object");
  }
  void end_object() {
    if (state_ == state::tensor) {
      if (seen_ != 7) broken("expected dtype, shape and data_offsets, got an incomplete record");
      to(state::top);
    } else {
      to(state_ == state::metadata ? state::top : state::after);
    }
  }
  void start_array() {
    if (state_ == state::shape_key) return to(state::shape);
    if (state_ == state::offsets_key) return to(state::offsets);
    wrong("an array");
  }
  void end_array() {
    if (state_ == state::offsets && n_offsets_ != 2) broken("data_offsets: expected two numbers");
    to(state::tensor);
  }
  void key(std::string& k) {
    if (state_ == state::top) {
      is_metadata_ = k == "__metadata__";
      if (is_metadata_ && std::exchange(has_metadata_, true)) broken("expected __metadata__ once, got it twice");
      if (!is_metadata_) records.emplace_back().name = std::move(k);
      seen_ = n_offsets_ = 0;
      to(state::name);
    } else if (state_ == state::metadata) {
      metadata.emplace_back(std::move(k), std::string());
      to(state::metadata_key);
    } else if (k == "dtype") {
      field(1, state::dtype_key);
    } else if (k == "shape") {
      field(2, state::shape_key);
    } else if (k == "data_offsets") {
      field(4, state::offsets_key);
    } else {
      broken({"expected dtype, shape or data_offsets, got '", shortened(k), "'"});
    }
  }
  void string(std::string& s) {
    if (state_ == state::metadata_key) {
      metadata.back().second = std::move(s);
      return to(state::metadata);
    }
    if (state_ != state::dtype_key) wrong("a string");
    const std::optional<dtype> d = safetensors_dtype(s);
    if (!d)
      broken({"expected a dtype of F64 F32 F16 BF16 I64 I32 I16 I8 U64 U32 U16 U8 BOOL, got '", shortened(s), "'"},
             s.starts_with("F8") || s.starts_with("F4") || s.starts_with("F6") ? errc::unsupported : errc::malformed);
    records.back().type = *d;
    to(state::tensor);
  }
  void number_unsigned(std::uint64_t v) {
    if (state_ == state::shape) {
      if (records.back().shape.size() == 8) broken("expected at most 8 dimensions, got more");
      if (v > (std::numeric_limits<std::size_t>::max)()) broken({"a dimension is too large: ", v});
      records.back().shape.push_back(static_cast<std::size_t>(v));
    } else if (state_ == state::offsets && n_offsets_ < 2) {
      (n_offsets_++ == 0 ? records.back().begin : records.back().end) = v;
    } else {
      wrong("a number");
    }
  }
  void number_integer(std::int64_t) { wrong("a negative number"); }
  void number_float(double) { wrong("a number that is not a 64-bit integer"); }
  void boolean(bool) { wrong("a bool"); }
  void null() { wrong("null"); }

  [[noreturn]] void broken(const error_message& message, errc code = errc::malformed) const {
    const bool in_tensor = !is_metadata_ && !records.empty() && state_ > state::top;
    fail(code, "safetensors", {(in_tensor ? shortened(records.back().name) + ": " : std::string()), message}, file_);
  }

 private:
  enum class state : std::uint8_t { before, after, top, name, metadata, metadata_key, tensor, dtype_key, shape_key, shape, offsets_key, offsets };

  void to(state s) { state_ = s; }
  void field(unsigned bit, state s) {
    if (seen_ & bit) broken("expected each field once, got one twice");
    seen_ |= bit;
    to(s);
  }
  [[noreturn]] void wrong(std::string_view got) const {
    static constexpr std::string_view wanted[] = {"an object", "nothing more", "a tensor's name", "an object", "a string", "a string", "a field",
                                                  "a string for dtype", "an array for shape", "dimensions (integers >= 0)", "an array for data_offsets", "two integers >= 0"};
    broken({"expected ", wanted[static_cast<std::size_t>(state_)], ", got ", got});
  }

  std::string_view file_;
  state state_ = state::before;
  bool is_metadata_ = false, has_metadata_ = false;
  unsigned seen_ = 0, n_offsets_ = 0;
};

}  // namespace detail

/// An open safetensors file. Everything was checked when it was opened: every tensor's bytes lie inside the file, and their
/// number follows from type and shape.
/// Cost     opening is linear in the header; nothing is allocated beyond one record for each tensor.
class safetensors_file {
 public:
  static constexpr std::size_t max_header_bytes = 100'000'000;  ///< the format's own limit

  /// Errors   io; malformed: cut short or too long, not the format, overlaps, holes, duplicates, wrong sizes; unsupported: 8-bit
  ///          and smaller floats.
  static safetensors_file open(std::string_view path) { return from_mapped(mapped_file::open(path)); }

  static safetensors_file from_mapped(mapped_file file) {
    safetensors_file s(file.bytes(), file.path());
    s.mapped_ = std::move(file);
    return s;
  }

  /// Reads from memory that the caller keeps alive and unchanged. `name` stands for the file in messages.
  static safetensors_file from_memory(std::span<const std::byte> bytes, std::string_view name = "memory") { return safetensors_file(bytes, std::string(name)); }

  [[nodiscard]] const std::string& file() const noexcept { return file_; }
  [[nodiscard]] std::span<const safetensors_tensor> tensors() const noexcept { return tensors_; }  ///< sorted by name
  [[nodiscard]] std::span<const std::pair<std::string, std::string>> metadata() const noexcept { return metadata_; }
  [[nodiscard]] const mapped_file& mapped() const noexcept { return mapped_; }  ///< empty for from_memory

  [[nodiscard]] const safetensors_tensor* find(std::string_view name) const noexcept {
    const auto it = std::lower_bound(tensors_.begin(), tensors_.end(), name, [](const safetensors_tensor& t, std::string_view n) { return t.name < n; });
    return it != tensors_.end() && it->name == name ? &*it : nullptr;
  }

 private:
  safetensors_file(std::span<const std::byte> bytes, std::string file) : file_(std::move(file)) { parse(bytes); }

  [[noreturn]] void broken(const error_message& message) const { fail(errc::malformed, "safetensors", message, file_); }

  void parse(std::span<const std::byte> bytes) {
    if (bytes.size() < 8) broken({"expected 8 bytes of header length, got a file of ", bytes.size()});
    std::uint64_t n = 0;
    for (std::size_t i = 8; i-- > 0;) n = n << 8 | std::to_integer<std::uint64_t>(bytes[i]);
    if (n > max_header_bytes) broken({"expected a header of at most ", max_header_bytes, " bytes, got ", n});
    if (n > bytes.size() - 8) broken({"the file ends inside the header: expected ", n, " bytes of it, got ", bytes.size() - 8});
    const std::span<const std::byte> header_bytes = bytes.subspan(8, static_cast<std::size_t>(n)), data = bytes.subspan(8 + static_cast<std::size_t>(n));
    const std::string_view text(reinterpret_cast<const char*>(header_bytes.data()), header_bytes.size());
    if (text.empty() || text.front() != '{') broken("expected a header that begins with '{'");

    detail::safetensors_header header(file_);
    read_json(text, header, "safetensors", file_);
    metadata_ = std::move(header.metadata);

    std::vector<detail::safetensors_record>& records = header.records;
    detail::sort_by_name(records, [](const auto& r) { return std::string_view(r.name); });
    for (std::size_t i = 1; i < records.size(); ++i)
      if (records[i].name == records[i - 1].name) broken({"expected each tensor once, got ", detail::shortened(records[i].name), " twice"});
    std::sort(records.begin(), records.end(), [](const auto& a, const auto& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
    std::uint64_t covered = 0;
    for (detail::safetensors_record& r : records) {
      const std::string name = detail::shortened(r.name);
      const std::string range = std::to_string(r.begin) + " to " + std::to_string(r.end);
      if (r.end < r.begin) broken({name, ": data_offsets run backwards, from ", range});
      if (r.end > data.size()) broken({name, ": expected data_offsets up to ", data.size(), ", where the file ends, got ", range});
      if (r.begin != covered)
        broken({name, ": expected data from byte ", covered, " on, got ", range, (r.begin < covered ? " (an overlap)" : " (a hole)")});
      covered = r.end;

      std::optional<std::size_t> elements = 1;
      for (const std::size_t dim : r.shape) elements = elements ? detail::checked_mul(*elements, dim) : std::nullopt;
      const std::optional<std::size_t> size = elements ? checked_n_bytes(r.type, *elements) : std::nullopt;
      if (!size || *size != r.end - r.begin)
        broken({name, ": expected ", (size ? std::to_string(*size) : std::string("more")), " bytes by dtype and shape, got ", r.end - r.begin});
      tensors_.push_back({std::move(r.name), r.type, std::move(r.shape), data.subspan(static_cast<std::size_t>(r.begin), *size)});
    }
    if (covered != data.size())
      broken({"expected tensors up to the end of the file, got ", data.size() - covered, " bytes after the last one"});
    detail::sort_by_name(tensors_, [](const auto& t) { return std::string_view(t.name); });
  }

  mapped_file mapped_;
  std::string file_;
  std::vector<safetensors_tensor> tensors_;
  std::vector<std::pair<std::string, std::string>> metadata_;
};

}  // namespace quena::inline QUENA_ABI
