// SPDX-License-Identifier: MIT
#include <quena/text/stream_decoder.hpp>

#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include "support.hpp"

using namespace quena;

namespace {

/// A SentencePiece tokenizer of a few tokens: ids 0 <unk>, 1 <s>, 2 </s>, 3..258 bytes, then " ", "a", "b", " a".
tokenizer small_sentencepiece() {
  std::string vocab = R"("<unk>":0,"<s>":1,"</s>":2)";
  for (int b = 0; b < 256; ++b) {
    const char* hex = "0123456789ABCDEF";
    vocab += std::string(",\"<0x") + hex[b / 16] + hex[b % 16] + ">\":" + std::to_string(b + 3);
  }
  vocab += ",\"\u2581\":259,\"a\":260,\"b\":261,\"\u2581a\":262";
  return tokenizer::from_json(R"({"added_tokens":[{"id":1,"content":"<s>","special":true,"normalized":false},{"id":2,"content":"</s>","special":true,"normalized":false}],
    "normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},{"type":"Replace","pattern":{"String":" "},"content":"▁"}]},
    "decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]},
    "model":{"type":"BPE","unk_token":"<unk>","fuse_unk":true,"byte_fallback":true,"vocab":{)" + vocab + R"(},"merges":["▁ a"]}})");
}

constexpr token_id byte(int b) { return b + 3; }
constexpr token_id space = 259, a = 260, b = 261, space_a = 262;

}  // namespace

TEST_CASE("stream: a character split over tokens comes out whole, nothing else waits") {
  const tokenizer t = small_sentencepiece();
  stream_decoder s(t, {.skip_special = false, .continues = true});
  CHECK(s.push(a) == "a");
  CHECK(s.push(byte(0xF0)) == "");
  CHECK(s.push(byte(0x9F)) == "");
  CHECK(s.push(byte(0x98)) == "");
  CHECK(s.push(byte(0xB8)) == "\U0001F638");
  CHECK(s.push(b) == "b");
  CHECK(s.push(byte(0xE6)) == "");
  CHECK(s.push(b) == "\uFFFD" "b");  // it can't be completed any more
  CHECK(s.push(byte(0x80)) == "\uFFFD");
  CHECK(s.push(byte(0xE2)) == "");
  CHECK(s.push(byte(0x82)) == "");
  CHECK(s.flush() == "\uFFFD");
  CHECK(s.flush() == "");
  CHECK(s.push(byte(0xAC)) == "\uFFFD");
  CHECK_THROWS_WITH_AS(s.push(263), doctest::Contains("expected a token id below 263"), error);
  CHECK_THROWS_AS(s.push(-1), error);
  CHECK(s.push(a) == "a");
}

TEST_CASE("stream: the space at the start goes exactly where decode() drops it") {
  const tokenizer t = small_sentencepiece();
  const auto streamed = [&](const std::vector<token_id>& ids, decode_options options) {
    stream_decoder s(t, options);
    std::string out;
    for (const token_id id : ids) out += s.push(id);
    return out += s.flush();
  };
  for (const std::vector<token_id>& ids : {std::vector<token_id>{space_a, b, space_a}, {1, space_a}, {space, space, a}, {a, space}, {2, 1}, {}, {byte(' '), a}})
    for (const bool skip : {false, true})
      for (const bool continues : {false, true}) {
        const decode_options options{skip, continues};
        CHECK(streamed(ids, options) == t.decode(ids, options));
      }
  const std::vector<token_id> one = {space_a, b};
  CHECK(t.decode(one) == "ab");
  CHECK(t.decode(one, {.skip_special = false, .continues = true}) == " ab");
}

TEST_CASE("stream: pieces are valid UTF-8 and joined they are the lossy text, for random bytes") {
  const tokenizer t = small_sentencepiece();
  std::mt19937 random(11);
  const int bytes[] = {'x', 0x80, 0xBF, 0xC3, 0xE0, 0xA0, 0xE2, 0x82, 0xAC, 0xED, 0xF0, 0x9F, 0x98, 0xB8, 0xF4, 0x90, 0xFF};
  for (int round = 0; round < 3000; ++round) {
    std::vector<token_id> ids;
    for (auto n = random() % 12; n-- > 0;) ids.push_back(byte(bytes[random() % std::size(bytes)]));
    stream_decoder s(t);
    std::string joined;
    for (const token_id id : ids) {
      const std::string_view piece = s.push(id);
      REQUIRE(is_valid_utf8(piece));
      joined += piece;
    }
    joined += s.flush();
    REQUIRE(joined == to_valid_utf8(t.decode(ids)));
  }
}
