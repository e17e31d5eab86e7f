// SPDX-License-Identifier: MIT
#include <quena/io/gguf.hpp>

#include <bit>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "../gguf_writer.hpp"
#include "../support.hpp"

using namespace quena;

namespace {

using writer = quena_test::gguf_writer;

gguf_file read(const std::string& bytes) { return gguf_file::from_memory(std::as_bytes(std::span(bytes)), "f"); }

void refused(const std::string& bytes, std::string_view part, errc code = errc::malformed) {
  try {
    (void)read(bytes);
    FAIL_CHECK("expected an error with: " << part);
  } catch (const error& e) {
    INFO(e.what());
    CHECK(std::string_view(e.what()).find(part) != std::string_view::npos);
    CHECK(std::string_view(e.what()).starts_with("[gguf] "));
    CHECK(std::string_view(e.what()).ends_with(" (f)"));
    CHECK(e.code() == code);
  }
}

writer all_types() {
  writer w;
  w.header(0, 14);
  w.key("u8", 0).number(std::uint8_t{200}).key("i8", 1).number(std::int8_t{-3}).key("u16", 2).number(std::uint16_t{60000}).key("i16", 3).number(std::int16_t{-300});
  w.key("u32", 4).number(std::uint32_t{4000000000u}).key("i32", 5).number(std::int32_t{-7}).key("f32", 6).number(0.5f).key("bool", 7).number(std::uint8_t{1});
  w.key("string", 8).string("text").key("u64", 10).number(~std::uint64_t{0}).key("i64", 11).number(std::int64_t{-1}).key("f64", 12).number(0.1);
  w.key("strings", 9).number(std::uint32_t{8}).number(std::uint64_t{3}).string("a").string("").string("ccc");
  w.key("bytes", 9).number(std::uint32_t{0}).number(std::uint64_t{2}).number(std::uint8_t{1}).number(std::uint8_t{255});
  return w;
}

}  // namespace

TEST_CASE("gguf: values of every type") {
  for (const std::uint32_t version : {2u, 3u}) {
    writer w = all_types();
    w.bytes[4] = static_cast<char>(version);
    const gguf_file g = read(w.bytes);
    CHECK(g.version() == version);
    CHECK(g.alignment() == 32);
    CHECK(g.values().size() == 14);
    CHECK(g.get_u64("u8") == 200);
    CHECK(g.get_i64("i8") == -3);
    CHECK(g.get_u64("u16") == 60000);
    CHECK(g.get_i64("i16") == -300);
    CHECK(g.get_u64("u32") == 4000000000u);
    CHECK(g.get_i64("i32") == -7);
    CHECK(g.get_f64("f32") == 0.5);
    CHECK(g.get_f64("i8") == -3);
    CHECK(g.get_bool("bool"));
    CHECK(g.get_string("string") == "text");
    CHECK(g.get_u64("u64") == ~std::uint64_t{0});
    CHECK(g.get_f64("u64") == 0x1p64);
    CHECK(g.get_i64("i64") == -1);
    CHECK(g.get_f64("f64") == 0.1);
    CHECK(g.strings("strings") == std::vector<std::string_view>{"a", "", "ccc"});
    CHECK(g.i32s("bytes") == std::vector<std::int32_t>{1, 255});
    CHECK(g.find("strings")->count == 3);
    CHECK(g.find("absent") == nullptr);
    CHECK_FALSE(g.find_u64("absent"));
    CHECK(g.find_string("string") == "text");
    CHECK_THROWS_WITH_AS((void)g.get_u64("absent"), "[gguf] expected the key absent, which is absent (f)", error);
    CHECK_THROWS_WITH_AS((void)g.get_u64("i8"), "[gguf] i8: expected an integer that is not negative, got -3 (f)", error);
    CHECK_THROWS_WITH_AS((void)g.get_i64("u64"), "[gguf] u64: expected an integer below 2^63, got a larger one (f)", error);
    CHECK_THROWS_WITH_AS((void)g.find_u64("string"), "[gguf] string: expected an integer, got string (f)", error);
    CHECK_THROWS_WITH_AS((void)g.get_u64("bool"), "[gguf] bool: expected an integer, got bool (f)", error);
    CHECK_THROWS_WITH_AS((void)g.get_bool("u8"), "[gguf] u8: expected a bool, got u8 (f)", error);
    CHECK_THROWS_WITH_AS((void)g.get_string("strings"), "[gguf] strings: expected a string, got array of string (f)", error);
    CHECK_THROWS_WITH_AS((void)g.strings("bytes"), "[gguf] bytes: expected an array of strings, got array of u8 (f)", error);
    CHECK_THROWS_AS((void)g.f32s("bytes"), error);
    CHECK_THROWS_AS((void)g.i32s("strings"), error);
    CHECK_THROWS_AS((void)g.get_f64("string"), error);
  }
}

TEST_CASE("gguf: every cut of a valid file is refused") {
  writer w = all_types();
  w.bytes[8] = 1;
  w.tensor("t", {4}, 0, 0).pad(32).data(16);
  CHECK(read(w.bytes).tensors().size() == 1);
  for (std::size_t n = 0; n < w.bytes.size(); ++n) CHECK_THROWS_AS((void)read(w.bytes.substr(0, n)), error);
  CHECK(read(w.bytes + "more").tensors().size() == 1);  // the format allows that
}

TEST_CASE("gguf: hostile headers") {
  refused("", "got an empty one");
  refused("GGU", "begins with \"GGUF\"");
  refused("GGML1234", "begins with \"GGUF\"");
  refused(writer{}.header(0, 0, 0).bytes, "expected GGUF version 2 or 3, got 0", errc::unsupported);
  refused(writer{}.header(0, 0, 1).bytes, "got 1", errc::unsupported);
  refused(writer{}.header(0, 0, 4).bytes, "got 4", errc::unsupported);
  refused(writer{}.header(0, 0, 3u << 24).bytes, "got a big-endian one", errc::unsupported);
  refused(writer{}.header(1ull << 63, 0).bytes, "at most 0 tensors");
  refused(writer{}.header(0, ~0ull).bytes, "at most 0 metadata entries");
  refused(writer{}.header(0, 1).number(~0ull).data(30).bytes, "the file ends inside a metadata key");
  refused(writer{}.header(0, 1).key("k", 8).number(std::uint64_t{6}).raw("short").bytes, "the file ends inside the value of k: expected 6 bytes at byte 45, got 5");
  refused(writer{}.header(0, 1).key("k", 13).data(30).bytes, "k: expected a value of a known type, got type 13");
  refused(writer{}.header(0, 1).key("k", 9).number(std::uint32_t{8}).number(1ull << 60).data(30).bytes, "strings in the rest of the file");
  refused(writer{}.header(0, 1).key("k", 9).number(std::uint32_t{12}).number(1ull << 61).data(30).bytes, "array elements in the rest of the file");
  refused(writer{}.header(0, 1).key("k", 9).number(std::uint32_t{9}).number(1ull).data(30).bytes, "got an array of arrays");
  refused(writer{}.header(0, 1).key("k", 9).number(std::uint32_t{77}).number(0ull).data(30).bytes, "known type, got type 77");
  refused(writer{}.header(0, 1).key("k", 9).number(std::uint32_t{8}).number(2ull).string("a").number(~0ull).bytes, "the value of k");
  refused(writer{}.header(0, 2).key("k", 0).number('x').key("k", 0).number('y').bytes, "k: expected each key once, got it twice");
  std::string long_name(5000, 'n');
  refused(writer{}.header(0, 2).key(long_name, 0).number('x').key(long_name, 0).number('y').bytes, std::string(100, 'n') + "...: expected");
}

TEST_CASE("gguf: alignment") {
  const auto aligned = [](std::uint32_t type, auto value, std::uint64_t offset = 0, std::size_t padding = 64) {
    writer w;
    w.header(1, 1).key("general.alignment", type);
    if constexpr (std::is_same_v<decltype(value), const char*>) w.string(value);
    else w.number(value);
    return w.tensor("t", {4}, 0, offset).pad(padding).data(static_cast<std::size_t>(offset) + 16).bytes;
  };
  for (const std::uint32_t bad : {0u, 13u, 4u, 0x80000000u}) refused(aligned(4, bad), "general.alignment: expected a power of two from 8 to 1048576");
  refused(aligned(5, std::int32_t{32}), "general.alignment: expected a u32, got i32");
  refused(aligned(8, "32"), "general.alignment: expected a u32, got string");
  CHECK(read(aligned(4, 64u)).alignment() == 64);
  CHECK(read(aligned(4, 64u, 64)).tensors()[0].data.size() == 16);
  refused(aligned(4, 64u, 32), "t: expected an offset that is a multiple of 64, got 32");
  CHECK(read(aligned(4, 8u, 8, 8)).tensors()[0].data.size() == 16);
}

TEST_CASE("gguf: tensors") {
  const auto one = [](std::vector<std::uint64_t> dims, std::uint32_t type, std::uint64_t offset, std::size_t n) {
    return writer{}.header(1, 0).tensor("t", std::move(dims), type, offset).pad(32).data(n).bytes;
  };
  CHECK(read(one({32, 2}, 8, 0, 68)).tensors()[0].type == dtype::q8_0);
  CHECK(read(one({32, 2}, 8, 0, 68)).find_tensor("t")->dims == std::vector<std::size_t>{32, 2});
  CHECK(read(one({0}, 0, 0, 0)).tensors()[0].data.empty());
  CHECK(read(one({}, 0, 0, 4)).tensors()[0].data.size() == 4);
  refused(one({32, 2}, 8, 0, 67), "t: expected 68 bytes at 0 in the data, which has 67");
  refused(one({32, 2}, 8, 32, 99), "t: expected 68 bytes at 32");
  refused(one({32, 2}, 8, ~0ull - 31, 200), "t: expected 68 bytes at 18446744073709551584");
  refused(one({31, 2}, 8, 0, 200), "t: expected rows of a multiple of 32 elements for q8_0, got 31");
  refused(one({32, 1, 1, 1, 1}, 0, 0, 200), "t: expected at most 4 dimensions, got 5");
  refused(one({1ull << 33, 1ull << 33}, 0, 0, 200), "t: the dimensions need more bytes than the file has");
  refused(one({1ull << 62}, 0, 0, 200), "more bytes than the file has");
  refused(one({32}, 250, 0, 200), "got number 250");
  refused(one({32}, 4, 0, 200), "got number 4");
  refused(one({256}, 10, 0, 200), "got q2_k", errc::unsupported);
  refused(writer{}.header(2, 0).tensor("a", {8}, 0, 0).tensor("a", {8}, 0, 32).pad(32).data(64).bytes, "expected each tensor once, got a twice");
  refused(writer{}.header(2, 0).tensor("a", {9}, 0, 0).tensor("b", {8}, 0, 32).pad(32).data(64).bytes, "two tensors overlap at byte 32");
  // Nothing follows the last tensor but padding (known failure A26): so a wrong alignment shows, too.
  CHECK(read(one({5}, 0, 0, 32)).tensors()[0].data.size() == 20);
  refused(one({5}, 0, 0, 33), "expected the data to end with its last tensor at byte 32, got 33 bytes");
  refused(writer{}.header(0, 0).pad(32).data(1).bytes, "expected the data to end with its last tensor at byte 0, got 1 bytes");
  CHECK(read(writer{}.header(2, 0).tensor("b", {8}, 0, 32).tensor("a", {8}, 0, 0).pad(32).data(64).bytes).tensors()[0].name == "a");
}

TEST_CASE("gguf: fixture, mapped") {
  QUENA_NEEDS_FIXTURES(dir);
  gguf_file opened = gguf_file::open(dir + "/gguf/stories260K/stories260K-q4_k_m.gguf");
  const gguf_file g = std::move(opened);
  CHECK(g.version() == 3);
  CHECK(g.get_string("general.architecture") == "llama");
  CHECK(g.get_u64("llama.block_count") == 5);
  CHECK(g.get_f64("llama.rope.freq_base") == 10000.0);
  CHECK(g.get_bool("tokenizer.ggml.add_bos_token"));
  CHECK(g.strings("tokenizer.ggml.tokens").at(1) == "<s>");
  CHECK(g.f32s("tokenizer.ggml.scores").size() == 512);
  CHECK(g.i32s("tokenizer.ggml.token_type").at(3) == 6);
  CHECK(g.find_tensor("blk.4.attn_v.weight")->type == dtype::q8_0);
}
