// SPDX-License-Identifier: MIT
#include <quena/io/gguf_writer.hpp>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "../support.hpp"

using namespace quena;

namespace {

/// A file with a matrix [3 rows, 64 columns], one [2, 33], a vector, and some metadata.
std::vector<std::byte> small_file(float odd_one = 1.0f) {
  detail::gguf_head h;
  h.raw(std::as_bytes(std::span("GGUF", 4)));
  h.number(std::uint32_t{3}), h.number(std::uint64_t{3}), h.number(std::uint64_t{3});
  h.text("general.architecture"), h.number(std::uint32_t{8}), h.text("llama");
  h.text("general.file_type"), h.number(std::uint32_t{4}), h.number(std::uint32_t{0});
  h.text("some.list"), h.number(std::uint32_t{9}), h.number(std::uint32_t{8}), h.number(std::uint64_t{2}), h.text("a"), h.text("bc");
  const auto tensor = [&](const char* name, std::vector<std::uint64_t> dims, std::uint64_t offset) {
    h.text(name), h.number(static_cast<std::uint32_t>(dims.size()));
    for (const std::uint64_t d : dims) h.number(d);
    h.number(std::uint32_t{0}), h.number(offset);
  };
  tensor("m", {64, 3}, 0), tensor("odd", {33, 2}, 768), tensor("v", {5}, 1056);
  h.pad_to(32);
  for (int i = 0; i < 192; ++i) h.number(static_cast<float>(i % 17 - 8));
  for (int i = 0; i < 66; ++i) h.number(i == 40 ? odd_one : 0.5f);
  h.pad_to(32);
  for (int i = 0; i < 5; ++i) h.number(static_cast<float>(i));
  return {h.bytes().begin(), h.bytes().end()};
}

std::vector<std::byte> written(const gguf_file& source, dtype type) {
  std::vector<std::byte> out;
  double last = 0;
  write_gguf(source, {type}, [&](std::span<const std::byte> b) { out.insert(out.end(), b.begin(), b.end()); }, [&](double f) {
    CHECK(f >= last);
    last = f;
  });
  CHECK(last == doctest::Approx(1));
  return out;
}

std::vector<float> values(const gguf_tensor& t) {
  std::vector<float> v(t.data.size() / block_bytes(t.type) * block_elements(t.type));
  dequantize_row(t.type, t.data.data(), v.data(), v.size());
  return v;
}

}  // namespace

TEST_CASE("gguf writer: matrices change their type, the rest stays") {
  const std::vector<std::byte> bytes = small_file();
  const gguf_file source = gguf_file::from_memory(bytes);
  for (const auto& [stored, number] : {std::pair{dtype::f32, 0u}, {dtype::f16, 1u}, {dtype::bf16, 32u}, {dtype::q8_0, 7u}, {dtype::q4_0, 2u}}) {
    const dtype type = stored;  // clang 14 captures no structured binding
    CAPTURE(dtype_name(type));
    const std::vector<std::byte> out = written(source, type);
    const gguf_file file = gguf_file::from_memory(out);
    CHECK(file.get_string("general.architecture") == "llama");
    CHECK(file.get_u64("general.file_type") == number);
    CHECK(file.get_u64("general.quantization_version") == 2);
    CHECK(file.strings("some.list") == std::vector<std::string_view>{"a", "bc"});
    REQUIRE(file.tensors().size() == 3);
    const gguf_tensor &m = *file.find_tensor("m"), &odd = *file.find_tensor("odd"), &v = *file.find_tensor("v");
    CHECK(m.type == type);
    CHECK(odd.type == (is_block_type(type) ? dtype::f16 : type));  // 33 columns are not whole blocks
    CHECK(v.type == dtype::f32);
    CHECK(values(v) == values(*source.find_tensor("v")));
    CHECK(values(odd) == values(*source.find_tensor("odd")));
    const std::vector<float> want = values(*source.find_tensor("m")), got = values(m);
    for (std::size_t i = 0; i < want.size(); ++i) CHECK(std::fabs(got[i] - want[i]) <= (type == dtype::q4_0 ? 1.0f : type == dtype::q8_0 ? 8.5f / 254 : 0.0f));
  }
}

TEST_CASE("gguf writer: written once, it is written the same again") {
  const std::vector<std::byte> bytes = small_file();
  const std::vector<std::byte> once = written(gguf_file::from_memory(bytes), dtype::q8_0), again = written(gguf_file::from_memory(once), dtype::q8_0);
  CHECK(once == again);
}

TEST_CASE("gguf writer: refuses types it does not write and weights that are not finite") {
  const auto nothing = [](std::span<const std::byte>) {};
  const std::vector<std::byte> good = small_file(), bad = small_file(std::numeric_limits<float>::infinity());
  CHECK(quena_test::code_of([&] { write_gguf(gguf_file::from_memory(good), {dtype::q5_0}, nothing); }) == errc::unsupported);
  CHECK(quena_test::code_of([&] { write_gguf(gguf_file::from_memory(bad), {dtype::q8_0}, nothing); }) == errc::malformed);
  CHECK_THROWS_WITH(write_gguf(gguf_file::from_memory(bad), {dtype::q8_0}, nothing), doctest::Contains("odd: expected finite weights, got one at element 40"));
}

TEST_CASE("gguf writer: weights beyond the range of their new type are refused") {
  const std::vector<std::byte> large = small_file(1e6f);  // in the matrix that falls back to f16
  CHECK(quena_test::code_of([&] { write_gguf(gguf_file::from_memory(large), {dtype::q8_0}, [](std::span<const std::byte>) {}); }) == errc::non_finite);
  CHECK_NOTHROW(write_gguf(gguf_file::from_memory(large), {dtype::bf16}, [](std::span<const std::byte>) {}));
}

TEST_CASE("gguf writer: the head of a file keeps the tensor that belongs to the configuration") {
  detail::gguf_head h;
  h.raw(std::as_bytes(std::span("GGUF", 4)));
  h.number(std::uint32_t{3}), h.number(std::uint64_t{1}), h.number(std::uint64_t{1});
  h.text("general.architecture"), h.number(std::uint32_t{8}), h.text("llama");
  h.text("rope_freqs.weight"), h.number(std::uint32_t{1}), h.number(std::uint64_t{3}), h.number(std::uint32_t{0}), h.number(std::uint64_t{0});
  h.pad_to(32);
  for (const float x : {1.0f, 3.0f, 8.0f}) h.number(x);
  h.pad_to(32);
  const gguf_file source = gguf_file::from_memory(h.bytes());
  const detail::gguf_head again = detail::gguf_metadata(source);
  const gguf_file head = gguf_file::from_memory(again.bytes());
  REQUIRE(head.find_tensor("rope_freqs.weight") != nullptr);
  CHECK(values(*head.find_tensor("rope_freqs.weight")) == std::vector<float>{1, 3, 8});
  CHECK(head.get_string("general.architecture") == "llama");
}
