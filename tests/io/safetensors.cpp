// SPDX-License-Identifier: MIT
#include <quena/io/safetensors.hpp>

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>

#include "../support.hpp"

using namespace quena;

namespace {

std::string with_length(std::uint64_t n, std::string_view rest) {
  std::string s;
  for (int i = 0; i < 8; ++i) s += static_cast<char>(n >> (8 * i));
  return s.append(rest);
}

std::string file_of(std::string_view header, std::size_t n_data) { return with_length(header.size(), header) + std::string(n_data, '\1'); }

safetensors_file read(const std::string& bytes) { return safetensors_file::from_memory(std::as_bytes(std::span(bytes)), "f"); }

void refused(const std::string& bytes, std::string_view part) {
  try {
    (void)read(bytes);
    FAIL_CHECK("expected an error with: " << part);
  } catch (const error& e) {
    INFO(e.what());
    CHECK(std::string_view(e.what()).find(part) != std::string_view::npos);
    CHECK(std::string_view(e.what()).starts_with("[safetensors] "));
    CHECK(std::string_view(e.what()).ends_with(" (f)"));
  }
}

std::string one(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return R"({"t":{"dtype":")" + std::string(dtype) + R"(","shape":)" + std::string(shape) + R"(,"data_offsets":)" + std::string(offsets) + "}}";
}

}  // namespace

TEST_CASE("safetensors: valid files") {
  {
    const std::string bytes = file_of(R"({"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]},"a":{"shape":[2,1],"data_offsets":[0,4],"dtype":"BF16"}}   )", 12);
    const auto f = read(bytes);
    REQUIRE(f.tensors().size() == 2);
    CHECK(f.tensors()[0].name == "a");
    CHECK(f.tensors()[0].type == dtype::bf16);
    CHECK(f.tensors()[0].shape == std::vector<std::size_t>{2, 1});
    const safetensors_tensor* b = f.find("b");
    REQUIRE(b != nullptr);
    CHECK(b->data.size() == 8);
    CHECK(b->data.data() + 8 == std::as_bytes(std::span(bytes)).data() + bytes.size());
    CHECK(f.find("c") == nullptr);
  }
  const std::string scalar = file_of(R"({"__metadata__":{"format":"pt"},"t":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", 4);
  CHECK(read(scalar).tensors()[0].data.size() == 4);
  CHECK(read(scalar).metadata()[0] == std::pair<std::string, std::string>("format", "pt"));
  CHECK(read(file_of(R"({"e":{"dtype":"F32","shape":[0,3],"data_offsets":[0,0]},"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1)).tensors().size() == 2);
  CHECK(read(file_of("{}", 0)).tensors().empty());
}

TEST_CASE("safetensors: hostile headers") {
  refused("", "expected 8 bytes of header length, got a file of 0");
  refused("1234567", "got a file of 7");
  refused(with_length(~0ull, "{}"), "expected a header of at most 100000000 bytes, got 18446744073709551615");
  refused(with_length(1ull << 62, "{}"), "at most 100000000");
  refused(with_length(3, "{}"), "the file ends inside the header: expected 3 bytes of it, got 2");
  refused(with_length(0, "{}"), "begins with '{'");
  refused(file_of(" {}", 0), "begins with '{'");
  refused(file_of("{", 0), "expected JSON");
  refused(file_of("{}}", 0), "expected JSON");
  refused(file_of(one("F32", "[1]", "[0,4]") , 3), "t: expected data_offsets up to 3, where the file ends, got 0 to 4");
  refused(file_of(one("F32", "[1]", "[0,4]"), 5), "got 1 bytes after the last one");
  refused(file_of(one("F32", "[1]", "[1,5]"), 5), "t: expected data from byte 0 on, got 1 to 5 (a hole)");
  refused(file_of(one("F32", "[1]", "[4,0]"), 4), "data_offsets run backwards");
  refused(file_of(one("F32", "[2]", "[0,4]"), 4), "t: expected 8 bytes by dtype and shape, got 4");
  refused(file_of(one("F32", "[8589934592,8589934592]", "[0,0]"), 0), "expected more bytes");
  refused(file_of(one("F32", "[-1]", "[0,4]"), 4), "got a negative number");
  refused(file_of(one("F32", "[1.5]", "[0,4]"), 4), "a number that is not a 64-bit integer");
  refused(file_of(one("F32", "[1e0]", "[0,4]"), 4), "a number that is not a 64-bit integer");
  refused(file_of(one("F32", "[1]", "[0,4,4]"), 4), "two integers");
  refused(file_of(one("F32", "[1]", "[0]"), 4), "two numbers");
  refused(file_of(one("F32", "[1]", "0"), 4), "expected an array for data_offsets");
  refused(file_of(one("F32", "1", "[0,4]"), 4), "expected an array for shape");
  refused(file_of(one("F32", "[[1]]", "[0,4]"), 4), "got an array");
  refused(file_of(one("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4), "at most 8 dimensions");
  refused(file_of(one("Q99", "[1]", "[0,4]"), 4), "got 'Q99'");
  refused(file_of(one("F8_E4M3", "[4]", "[0,4]"), 4), "got 'F8_E4M3'");
  refused(file_of(R"({"t":{"dtype":"F32","shape":[1]}})", 0), "t: expected dtype, shape and data_offsets, got an incomplete record");
  refused(file_of(R"({"t":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4), "got one twice");
  refused(file_of(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})", 4), "got 'x'");
  refused(file_of(R"({"t":1})", 0), "expected an object, got a number");
  refused(file_of(R"({"t":null})", 0), "got null");
  refused(file_of(R"({"t":[]})", 0), "got an array");
  refused(file_of(R"({"__metadata__":{"a":1}})", 0), "expected a string, got a number");
  refused(file_of(R"({"__metadata__":{},"__metadata__":{}})", 0), "__metadata__ once");
  refused(file_of(R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"t":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2), "got t twice");
  refused(file_of(R"({"t":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"u":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", 3), "u: expected data from byte 2 on, got 1 to 3 (an overlap)");
  refused(file_of("{\"\xff\":{}}", 0), "expected JSON");
  refused(file_of(R"({"t":)" + std::string(100000, '['), 0), "got an array");
  refused(file_of(R"({"t":{"dtype":"F32","shape":)" + std::string(100000, '['), 0), "got an array");
}

TEST_CASE("safetensors: every cut of a valid file is refused") {
  const std::string whole = file_of(one("F32", "[4,2]", "[0,32]"), 32);
  CHECK(read(whole).tensors().size() == 1);
  for (std::size_t n = 0; n < whole.size(); ++n) CHECK_THROWS_AS((void)read(whole.substr(0, n)), error);
  CHECK_THROWS_AS((void)read(whole + '\0'), error);
}

TEST_CASE("safetensors: fixture file, mapped") {
  QUENA_NEEDS_FIXTURES(dir);
  safetensors_file f = safetensors_file::open(dir + "/models/stories260K/model.safetensors");
  const safetensors_file moved = std::move(f);
  REQUIRE(moved.find("model.norm.weight") != nullptr);
  CHECK(moved.find("model.norm.weight")->shape == std::vector<std::size_t>{64});
  float first;
  std::memcpy(&first, moved.find("model.norm.weight")->data.data(), 4);
  CHECK(first > 0.f);
  moved.mapped().release(moved.tensors()[3].data);
  CHECK(moved.tensors()[3].data.front() == moved.tensors()[3].data.front());
}
