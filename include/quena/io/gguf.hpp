// SPDX-License-Identifier: MIT
// GGUF files (versions 2 and 3): typed metadata and tensors over bytes that are mapped or the caller's.
//
//   "GGUF" u32 version, u64 n_tensors, u64 n_values
//   n_values  x { string key, u32 type, value }          string = u64 length + bytes; array = u32 type + u64 count + elements
//   n_tensors x { string name, u32 rank, u64 dims[rank] (fastest first), u32 type, u64 offset }
//   padding to the alignment, then the tensors' bytes; offsets count from here
#pragma once

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "../core/dtype.hpp"
#include "../core/error.hpp"
#include "mapped_file.hpp"
#include "sort_by_name.hpp"

namespace quena::inline QUENA_ABI {

/// Types of metadata values, by their numbers in the file.
enum class gguf_type : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };

[[nodiscard]] constexpr std::string_view gguf_type_name(gguf_type t) noexcept {
  constexpr std::string_view names[] = {"u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"};
  return static_cast<std::uint32_t>(t) < 13 ? names[static_cast<std::uint32_t>(t)] : "unknown";
}

/// One metadata entry, still in the file's bytes. For arrays `element` and `count` describe the content of `bytes`.
struct gguf_value {
  std::string_view key;
  gguf_type type = gguf_type::u8;
  gguf_type element = gguf_type::u8;  ///< of an array; else equal to `type`
  std::uint64_t count = 1;            ///< of an array; else 1
  std::span<const std::byte> bytes;   ///< the elements, one after the other
};

/// A tensor as the file has it: dims[0] is the fastest, i.e. a matrix is {in_features, out_features}.
struct gguf_tensor {
  std::string_view name;
  dtype type = dtype::f32;
  std::vector<std::size_t> dims;
  std::span<const std::byte> data;
};

namespace detail {

/// A number from little-endian bytes that may stand anywhere.
template <class T>
[[nodiscard]] T load_le(const std::byte* p) noexcept {
  std::byte raw[sizeof(T)];
  std::memcpy(raw, p, sizeof(T));
  if constexpr (std::endian::native == std::endian::big) std::reverse(raw, raw + sizeof(T));
  T value;
  std::memcpy(&value, raw, sizeof(T));
  return value;
}

/// Bytes of a fixed-size metadata type, 0 for string, array and unknown types.
[[nodiscard]] constexpr std::size_t gguf_scalar_bytes(gguf_type t) noexcept {
  constexpr std::size_t n[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return static_cast<std::uint32_t>(t) < 13 ? n[static_cast<std::uint32_t>(t)] : 0;
}

/// The file's number of a tensor type -> ours.
[[nodiscard]] constexpr std::optional<dtype> gguf_dtype(std::uint32_t id) noexcept {
  switch (id) {
    case 0: return dtype::f32;
    case 1: return dtype::f16;
    case 2: return dtype::q4_0;
    case 3: return dtype::q4_1;
    case 6: return dtype::q5_0;
    case 7: return dtype::q5_1;
    case 8: return dtype::q8_0;
    case 12: return dtype::q4_k;
    case 13: return dtype::q5_k;
    case 14: return dtype::q6_k;
    case 24: return dtype::i8;
    case 25: return dtype::i16;
    case 26: return dtype::i32;
    case 27: return dtype::i64;
    case 28: return dtype::f64;
    case 30: return dtype::bf16;
    default: return std::nullopt;
  }
}

/// Names of tensor types that exist but are not read here, for the message.
[[nodiscard]] constexpr std::string_view gguf_foreign_dtype(std::uint32_t id) noexcept {
  switch (id) {
    case 9: return "q8_1";
    case 10: return "q2_k";
    case 11: return "q3_k";
    case 15: return "q8_k";
    case 16: return "iq2_xxs";
    case 17: return "iq2_xs";
    case 18: return "iq3_xxs";
    case 19: return "iq1_s";
    case 20: return "iq4_nl";
    case 21: return "iq3_s";
    case 22: return "iq2_s";
    case 23: return "iq4_xs";
    case 29: return "iq1_m";
    case 34: return "tq1_0";
    case 35: return "tq2_0";
    case 39: return "mxfp4";
    default: return "";
  }
}

}  // namespace detail

/// An open GGUF file. Everything was checked when it was opened: all strings and tensors lie inside the bytes.
///
/// Access   find(key)      the raw entry, or nullptr
///          get_X(key)     the value; an error that names file and key if it is absent, of another type or out of range
///          find_X(key)    the same, but absent is nullopt
///          X is u64 (any integer that is not negative), i64, f64 (any number), bool, string;
///          arrays: strings(key), f32s(key), i32s(key), and bools are u8 arrays for i32s.
/// Cost     opening is linear in the metadata; nothing is allocated beyond one record for each entry and tensor.
class gguf_file {
 public:
  /// Errors   io; malformed: cut short, counts or offsets outside the file, duplicate keys or tensors, bad alignment, …;
  ///          unsupported: version 1 or unknown, big-endian, a tensor type we don't read.
  static gguf_file open(std::string_view path) { return from_mapped(mapped_file::open(path)); }

  static gguf_file from_mapped(mapped_file file) {
    gguf_file g(file.bytes(), file.path());
    g.mapped_ = std::move(file);
    return g;
  }

  /// Reads from memory that the caller keeps alive and unchanged. `name` stands for the file in messages.
  static gguf_file from_memory(std::span<const std::byte> bytes, std::string_view name = "memory") { return gguf_file(bytes, std::string(name)); }

  [[nodiscard]] const std::string& file() const noexcept { return file_; }
  [[nodiscard]] std::uint32_t version() const noexcept { return version_; }
  [[nodiscard]] std::size_t alignment() const noexcept { return alignment_; }
  [[nodiscard]] std::span<const gguf_value> values() const noexcept { return values_; }    ///< sorted by key
  [[nodiscard]] std::span<const gguf_tensor> tensors() const noexcept { return tensors_; }  ///< sorted by name
  [[nodiscard]] const mapped_file& mapped() const noexcept { return mapped_; }              ///< empty for from_memory

  [[nodiscard]] const gguf_value* find(std::string_view key) const noexcept {
    const auto it = std::lower_bound(values_.begin(), values_.end(), key, [](const gguf_value& v, std::string_view k) { return v.key < k; });
    return it != values_.end() && it->key == key ? &*it : nullptr;
  }
  [[nodiscard]] bool has(std::string_view key) const noexcept { return find(key) != nullptr; }

  [[nodiscard]] const gguf_tensor* find_tensor(std::string_view name) const noexcept {
    const auto it = std::lower_bound(tensors_.begin(), tensors_.end(), name, [](const gguf_tensor& t, std::string_view n) { return t.name < n; });
    return it != tensors_.end() && it->name == name ? &*it : nullptr;
  }

  [[nodiscard]] std::uint64_t get_u64(std::string_view key) const { return as_u64(need(key)); }
  [[nodiscard]] std::int64_t get_i64(std::string_view key) const { return as_i64(need(key)); }
  [[nodiscard]] double get_f64(std::string_view key) const { return as_f64(need(key)); }
  [[nodiscard]] bool get_bool(std::string_view key) const { return as_bool(need(key)); }
  [[nodiscard]] std::string_view get_string(std::string_view key) const { return as_string(need(key)); }

  [[nodiscard]] std::optional<std::uint64_t> find_u64(std::string_view key) const { return maybe(key, [this](auto& v) { return as_u64(v); }); }
  [[nodiscard]] std::optional<std::int64_t> find_i64(std::string_view key) const { return maybe(key, [this](auto& v) { return as_i64(v); }); }
  [[nodiscard]] std::optional<double> find_f64(std::string_view key) const { return maybe(key, [this](auto& v) { return as_f64(v); }); }
  [[nodiscard]] std::optional<bool> find_bool(std::string_view key) const { return maybe(key, [this](auto& v) { return as_bool(v); }); }
  [[nodiscard]] std::optional<std::string_view> find_string(std::string_view key) const { return maybe(key, [this](auto& v) { return as_string(v); }); }

  /// The strings of an array, as views into the file.
  [[nodiscard]] std::vector<std::string_view> strings(std::string_view key) const {
    const gguf_value& v = need(key);
    if (v.type != gguf_type::array || v.element != gguf_type::string) wrong_type(v, "an array of strings");
    std::vector<std::string_view> out;
    out.reserve(static_cast<std::size_t>(v.count));  // each took 8 bytes of the file or more
    const std::byte* p = v.bytes.data();
    for (std::uint64_t i = 0; i < v.count; ++i) {
      const auto n = static_cast<std::size_t>(detail::load_le<std::uint64_t>(p));
      out.emplace_back(reinterpret_cast<const char*>(p + 8), n);
      p += 8 + n;
    }
    return out;
  }

  /// The elements of an array of f32.
  [[nodiscard]] std::vector<float> f32s(std::string_view key) const {
    const gguf_value& v = need(key);
    if (v.type != gguf_type::array || v.element != gguf_type::f32) wrong_type(v, "an array of f32");
    std::vector<float> out(static_cast<std::size_t>(v.count));
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = detail::load_le<float>(v.bytes.data() + 4 * i);
    return out;
  }

  /// The elements of an array of any integers that fit.
  [[nodiscard]] std::vector<std::int32_t> i32s(std::string_view key) const {
    const gguf_value& v = need(key);
    if (v.type != gguf_type::array || !is_integer(v.element)) wrong_type(v, "an array of integers");
    std::vector<std::int32_t> out(static_cast<std::size_t>(v.count));
    const std::size_t step = detail::gguf_scalar_bytes(v.element);
    for (std::size_t i = 0; i < out.size(); ++i) {
      const auto x = read_i64(v, v.bytes.data() + step * i);
      if (!x || *x < (std::numeric_limits<std::int32_t>::min)() || *x > (std::numeric_limits<std::int32_t>::max)())
        wrong(v, {"element ", i, ": expected a 32-bit integer, got a larger one"});
      out[i] = static_cast<std::int32_t>(*x);
    }
    return out;
  }

 private:
  gguf_file(std::span<const std::byte> bytes, std::string file) : bytes_(bytes), file_(std::move(file)) { parse(); }

  [[noreturn]] void broken(const error_message& message, errc code = errc::malformed) const { fail(code, "gguf", message, file_); }
  [[noreturn]] void wrong(const gguf_value& v, const error_message& message) const {
    broken({detail::shortened(v.key), ": ", message});
  }
  [[noreturn]] void wrong_type(const gguf_value& v, const error_message& wanted) const {
    std::string got(gguf_type_name(v.type));
    if (v.type == gguf_type::array) got.append(" of ").append(gguf_type_name(v.element));
    wrong(v, {"expected ", wanted, ", got ", got});
  }

  // ---- values

  const gguf_value& need(std::string_view key) const {
    const gguf_value* v = find(key);
    if (v == nullptr) broken({"expected the key ", detail::shortened(key), ", which is absent"});
    return *v;
  }

  template <class Read>
  auto maybe(std::string_view key, Read read) const -> std::optional<decltype(read(std::declval<const gguf_value&>()))> {
    const gguf_value* v = find(key);
    if (v == nullptr) return std::nullopt;
    return read(*v);
  }

  static bool is_integer(gguf_type t) noexcept {
    return t != gguf_type::f32 && t != gguf_type::f64 && t != gguf_type::string && t != gguf_type::array;
  }

  /// An element of any integer type (bool counts, as 0 and 1); nothing if it needs 64 unsigned bits.
  static std::optional<std::int64_t> read_i64(const gguf_value& v, const std::byte* p) noexcept {
    switch (v.element) {
      case gguf_type::u8:
      case gguf_type::boolean: return detail::load_le<std::uint8_t>(p);
      case gguf_type::i8: return detail::load_le<std::int8_t>(p);
      case gguf_type::u16: return detail::load_le<std::uint16_t>(p);
      case gguf_type::i16: return detail::load_le<std::int16_t>(p);
      case gguf_type::u32: return detail::load_le<std::uint32_t>(p);
      case gguf_type::i32: return detail::load_le<std::int32_t>(p);
      case gguf_type::i64: return detail::load_le<std::int64_t>(p);
      default: break;
    }
    const auto x = detail::load_le<std::uint64_t>(p);
    if (x > static_cast<std::uint64_t>((std::numeric_limits<std::int64_t>::max)())) return std::nullopt;
    return static_cast<std::int64_t>(x);
  }

  std::int64_t as_i64(const gguf_value& v) const {
    if (!is_integer(v.type) || v.type == gguf_type::boolean) wrong_type(v, "an integer");
    const auto x = read_i64(v, v.bytes.data());
    if (!x) wrong(v, "expected an integer below 2^63, got a larger one");
    return *x;
  }

  std::uint64_t as_u64(const gguf_value& v) const {
    if (v.type == gguf_type::u64) return detail::load_le<std::uint64_t>(v.bytes.data());
    const std::int64_t x = as_i64(v);
    if (x < 0) wrong(v, {"expected an integer that is not negative, got ", x});
    return static_cast<std::uint64_t>(x);
  }

  double as_f64(const gguf_value& v) const {
    if (v.type == gguf_type::f32) return detail::load_le<float>(v.bytes.data());
    if (v.type == gguf_type::f64) return detail::load_le<double>(v.bytes.data());
    if (!is_integer(v.type) || v.type == gguf_type::boolean) wrong_type(v, "a number");
    return v.type == gguf_type::u64 ? static_cast<double>(as_u64(v)) : static_cast<double>(as_i64(v));
  }

  bool as_bool(const gguf_value& v) const {
    if (v.type != gguf_type::boolean) wrong_type(v, "a bool");
    return v.bytes[0] != std::byte{0};
  }

  std::string_view as_string(const gguf_value& v) const {
    if (v.type != gguf_type::string) wrong_type(v, "a string");
    return {reinterpret_cast<const char*>(v.bytes.data()), v.bytes.size()};
  }

  // ---- parsing: at_ never passes the end

  const std::byte* take(std::uint64_t n, std::string_view what) {
    if (n > bytes_.size() - at_) broken({"the file ends inside ", what, ": expected ", n, " bytes at byte ", at_, ", got ", bytes_.size() - at_});
    const std::byte* p = bytes_.data() + at_;
    at_ += static_cast<std::size_t>(n);
    return p;
  }

  template <class T>
  T number(std::string_view what) { return detail::load_le<T>(take(sizeof(T), what)); }

  std::string_view string(std::string_view what) {
    const auto n = number<std::uint64_t>(what);
    const std::byte* p = take(n, what);
    return {reinterpret_cast<const char*>(p), static_cast<std::size_t>(n)};
  }

  /// A count of things that take at least `least` bytes each: what cannot fit is refused before anything is done for it.
  std::uint64_t counted(std::uint64_t n, std::size_t least, std::string_view what) const {
    const std::size_t most = (bytes_.size() - at_) / least;
    if (n > most) broken({"expected at most ", most, " ", what, " in the rest of the file, got ", n});
    return n;
  }

  void parse() {
    if (bytes_.size() < 4 || std::memcmp(bytes_.data(), "GGUF", 4) != 0)
      broken(bytes_.empty() ? "expected a GGUF file, got an empty one" : "expected a file that begins with \"GGUF\", got another one");
    at_ = 4;
    version_ = number<std::uint32_t>("the header");
    if ((version_ & 0xffffu) == 0 && version_ != 0) broken("expected a little-endian file, got a big-endian one", errc::unsupported);
    if (version_ != 2 && version_ != 3) broken({"expected GGUF version 2 or 3, got ", version_}, errc::unsupported);
    const auto n_tensors = number<std::uint64_t>("the header");
    const auto n_values = number<std::uint64_t>("the header");

    counted(n_values, 8 + 4 + 1, "metadata entries");
    for (std::uint64_t i = 0; i < n_values; ++i) values_.push_back(parse_value());
    detail::sort_by_name(values_, [](const gguf_value& v) { return v.key; });
    for (std::size_t i = 1; i < values_.size(); ++i)
      if (values_[i].key == values_[i - 1].key) wrong(values_[i], "expected each key once, got it twice");
    parse_alignment();

    counted(n_tensors, 8 + 4 + 4 + 8, "tensors");
    std::vector<std::uint64_t> offsets;
    for (std::uint64_t i = 0; i < n_tensors; ++i) offsets.push_back(parse_tensor());
    place_tensors(offsets);
  }

  gguf_value parse_value() {
    gguf_value v;
    v.key = string("a metadata key");
    const std::string where = "the value of " + detail::shortened(v.key);
    v.type = v.element = static_cast<gguf_type>(number<std::uint32_t>(where));
    if (v.type == gguf_type::array) {
      v.element = static_cast<gguf_type>(number<std::uint32_t>(where));
      v.count = number<std::uint64_t>(where);
      if (v.element == gguf_type::array) wrong(v, "expected an array of plain values, got an array of arrays");
    }
    if (v.element == gguf_type::string && v.type == gguf_type::array) {
      counted(v.count, 8, "strings");
      const std::byte* begin = bytes_.data() + at_;
      for (std::uint64_t i = 0; i < v.count; ++i) string(where);
      v.bytes = {begin, bytes_.data() + at_};
    } else if (v.element == gguf_type::string) {
      const std::string_view s = string(where);
      v.bytes = std::as_bytes(std::span(s.data(), s.size()));
    } else {
      const std::size_t each = detail::gguf_scalar_bytes(v.element);
      if (each == 0) wrong(v, {"expected a value of a known type, got type ", static_cast<std::uint32_t>(v.element)});
      counted(v.count, each, "array elements");
      v.bytes = {take(v.count * each, where), static_cast<std::size_t>(v.count) * each};
    }
    return v;
  }

  void parse_alignment() {
    const gguf_value* v = find("general.alignment");
    if (v == nullptr) return;
    if (v->type != gguf_type::u32) wrong_type(*v, "a u32");
    const auto n = detail::load_le<std::uint32_t>(v->bytes.data());
    if (n < 8 || n > (1u << 20) || !std::has_single_bit(n)) wrong(*v, {"expected a power of two from 8 to 1048576, got ", n});
    alignment_ = n;
  }

  /// Reads one tensor's record; its size is left in the data span, its place is what is returned.
  std::uint64_t parse_tensor() {
    gguf_tensor t;
    t.name = string("a tensor's name");
    const std::string name = detail::shortened(t.name);
    const auto rank = number<std::uint32_t>(name);
    if (rank > 4) broken({name, ": expected at most 4 dimensions, got ", rank});
    std::optional<std::size_t> n = 1;
    for (std::uint32_t d = 0; d < rank; ++d) {
      const auto dim = number<std::uint64_t>(name);
      if (dim > (std::numeric_limits<std::size_t>::max)()) broken({name, ": a dimension is too large: ", dim});
      t.dims.push_back(static_cast<std::size_t>(dim));
      if (n) n = detail::checked_mul(*n, t.dims.back());
    }
    const auto id = number<std::uint32_t>(name);
    const auto offset = number<std::uint64_t>(name);
    const std::optional<dtype> type = detail::gguf_dtype(id);
    if (!type) {
      const std::string_view foreign = detail::gguf_foreign_dtype(id);
      broken({name, ": expected a tensor type that this library reads, got ", (foreign.empty() ? "number " + std::to_string(id) : std::string(foreign))},
             foreign.empty() ? errc::malformed : errc::unsupported);
    }
    t.type = *type;
    const std::size_t row = t.dims.empty() ? 1 : t.dims[0];
    if (row % block_elements(*type) != 0)
      broken({name, ": expected rows of a multiple of ", block_elements(*type), " elements for ", dtype_name(*type), ", got ", row});
    const std::optional<std::size_t> size = n ? checked_n_bytes(*type, *n) : std::nullopt;
    if (!size || *size > bytes_.size()) broken({name, ": the dimensions need more bytes than the file has"});
    if (offset % alignment_ != 0)
      broken({name, ": expected an offset that is a multiple of ", alignment_, ", got ", offset});
    t.data = {bytes_.data(), *size};
    tensors_.push_back(std::move(t));
    return offset;
  }

  void place_tensors(std::span<const std::uint64_t> offsets) {
    const std::size_t padded = (at_ + alignment_ - 1) / alignment_ * alignment_;
    const std::size_t start = (std::min)(padded, bytes_.size()), room = bytes_.size() - start;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      gguf_tensor& t = tensors_[i];
      const std::size_t size = t.data.size();
      if (offsets[i] > room || size > room - offsets[i])
        broken({detail::shortened(t.name), ": expected ", size, " bytes at ", offsets[i], " in the data, which has ", room});
      t.data = bytes_.subspan(start + static_cast<std::size_t>(offsets[i]), size);
      if (size != 0) ranges.emplace_back(offsets[i], offsets[i] + size);
    }
    std::sort(ranges.begin(), ranges.end());
    for (std::size_t i = 1; i < ranges.size(); ++i)
      if (ranges[i].first < ranges[i - 1].second) broken({"two tensors overlap at byte ", ranges[i].first, " of the data"});
    const std::uint64_t end = ranges.empty() ? 0 : ranges.back().second, padded_end = (end + alignment_ - 1) / alignment_ * alignment_;
    if (room > padded_end) broken({"expected the data to end with its last tensor at byte ", padded_end, ", got ", room, " bytes"});
    detail::sort_by_name(tensors_, [](const gguf_tensor& t) { return t.name; });
    for (std::size_t i = 1; i < tensors_.size(); ++i)
      if (tensors_[i].name == tensors_[i - 1].name) broken({"expected each tensor once, got ", detail::shortened(tensors_[i].name), " twice"});
  }

  std::span<const std::byte> bytes_;
  mapped_file mapped_;
  std::string file_;
  std::uint32_t version_ = 0;
  std::size_t alignment_ = 32;
  std::size_t at_ = 0;
  std::vector<gguf_value> values_;
  std::vector<gguf_tensor> tensors_;
};

}  // namespace quena::inline QUENA_ABI
