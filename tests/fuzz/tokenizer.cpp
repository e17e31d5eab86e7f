// SPDX-License-Identifier: MIT
// Fuzzes the tokenizer: files (tokenizer.json, GGUF metadata) and texts. Whatever a file holds, reading it throws quena::error or gives a
// tokenizer that keeps its promises on any text.
//   "GGUF…"   a GGUF file;   "{…"   a tokenizer.json;   anything else: a text for two small built-in tokenizers
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <quena/text/stream_decoder.hpp>
#include <quena/text/tokenizer.hpp>

using namespace quena;

namespace {

void require(bool ok) {
  if (!ok) std::abort();
}

/// Encodes and decodes in every way; `whole` says that each byte must come back.
void exercise(const tokenizer& t, std::string_view text, bool whole) {
  for (const bool special : {false, true}) {
    std::vector<token_id> ids;
    try {
      ids = t.encode(text, {.add_bos = false, .parse_special = special});
    } catch (const error& e) {
      require(e.code() == errc::invalid_argument && !whole);  // a byte that the vocabulary has no token for
      return;
    }
    for (const token_id id : ids) require(t.contains(id));
    const std::string decoded = t.decode(ids);
    if (whole) require(decoded == text);
    stream_decoder s(t);
    std::string streamed;
    for (const token_id id : ids) {
      const std::string_view piece = s.push(id);
      require(is_valid_utf8(piece));
      streamed += piece;
    }
    streamed += s.flush();
    require(streamed == to_valid_utf8(decoded));

    // The same text in trusted pieces is the same ids; in untrusted ones no special token appears.
    const std::size_t third = text.size() / 3;
    const text_segment parts[] = {{text.substr(0, third), special}, {text.substr(third, third), special}, {text.substr(2 * third), special}};
    require(t.encode_segments(parts, false) == ids);
    if (!special && whole)
      for (const token_id id : ids) require(!t.is_special(id));
  }
  (void)t.encode(text);
}

constexpr std::string_view regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)";

tokenizer small_byte_level() {
  std::string vocab;
  for (std::uint32_t b = 0; b < 256; ++b) {
    std::string text;
    append_utf8(text, b <= 0x20 ? 0x100 + b : b >= 0x7F && b <= 0xA0 ? 0x121 + b - 0x7F : b == 0xAD ? 0x143 : b);
    if (text == "\"" || text == "\\") text.insert(text.begin(), '\\');
    vocab += "\"" + text + "\":" + std::to_string(b) + ",";
  }
  return tokenizer::from_json(R"({"added_tokens":[{"id":300,"content":"<|a|>","special":true},{"id":301,"content":"<|a|><|","special":false}],"pre_tokenizer":{"type":"Sequence",
    "pretokenizers":[{"type":"Split","pattern":{"Regex":")" + std::string(regex) + R"("},"behavior":"Isolated"},{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]},
    "model":{"type":"BPE","ignore_merges":true,"vocab":{)" + vocab + R"("ab":256,"aa":257,"aab":258,"aaaa":259,"Ġa":260},"merges":["a b","a a","a ab","aa aa","Ġ a"]}})");
}

tokenizer small_sentencepiece() {
  std::string vocab;
  for (std::uint32_t b = 0; b < 256; ++b) {
    constexpr std::string_view hex = "0123456789ABCDEF";
    vocab += std::string("\"<0x") + hex[b / 16] + hex[b % 16] + ">\":" + std::to_string(b) + ",";
  }
  return tokenizer::from_json(R"({"added_tokens":[{"id":300,"content":"<s>","special":true,"normalized":false},{"id":301,"content":"</s>","special":true,"normalized":true}],
    "normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},{"type":"Replace","pattern":{"String":" "},"content":"▁"}]},
    "decoder":{"type":"Strip","content":" ","start":1,"stop":0},
    "model":{"type":"BPE","byte_fallback":true,"vocab":{)" + vocab + R"("▁":256,"a":257,"b":258,"ab":259,"▁a":260,"▁▁":261},"merges":["a b","▁ a","▁ ▁"]}})");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const tokenizer byte_level = small_byte_level(), sentencepiece = small_sentencepiece();
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const bool gguf = input.substr(0, 4) == "GGUF";
  if (!gguf && input.substr(0, 1) != "{") {
    exercise(byte_level, input, true);
    if (input.find(detail::sentencepiece_space) == input.npos) exercise(sentencepiece, input, false);
    return 0;
  }
  try {
    const tokenizer t = gguf ? tokenizer::from_gguf(gguf_file::from_memory(std::as_bytes(std::span(data, size)))) : tokenizer::from_json(input);
    for (std::size_t i = 0; i < t.vocab_size() && i < 2000; ++i)
      if (const auto id = static_cast<token_id>(i); t.contains(id)) (void)t.token_bytes(id);
    exercise(t, input.substr(0, 500), false);
    exercise(t, " it's  1234\r\n\n\u00E9\u6F22 <|eot_id|></s>", false);
  } catch (const error&) {
  }
  return 0;
}
