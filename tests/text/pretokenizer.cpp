// SPDX-License-Identifier: MIT
#include <quena/text/pretokenizer.hpp>

#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

using namespace quena;

namespace {

using words = std::vector<std::string>;

words split(split_pattern p, std::string_view text) {
  words out;
  split_words(p, text, [&](std::string_view w) { out.emplace_back(w); });
  return out;
}
words llama3(std::string_view text) { return split(split_pattern::llama3, text); }
words gpt2(std::string_view text) { return split(split_pattern::gpt2, text); }

}  // namespace

TEST_CASE("pretokenizer: the Llama 3 pattern, alternative by alternative") {
  CHECK(llama3("") == words{});
  CHECK(llama3("Hello world") == words{"Hello", " world"});
  // contractions, in any case, before letters
  CHECK(llama3("I'm we'LL 'sea") == words{"I", "'m", " we", "'LL", " '", "sea"});
  CHECK(llama3("'sea'rex'xt") == words{"'s", "ea", "'re", "x", "'xt"});
  CHECK(llama3("x'\u017Fy") == words{"x", "'\u017F", "y"});  // the long s folds to s
  CHECK(llama3("x'l") == words{"x", "'l"});
  CHECK(llama3("it\u2019s") == words{"it", "\u2019s"});
  // any one character but a newline goes along with letters
  CHECK(llama3("\tx(y\u00A0z") == words{"\tx", "(y", "\u00A0z"});
  CHECK(llama3("\nx\rx") == words{"\n", "x", "\r", "x"});
  CHECK(llama3("((x") == words{"((", "x"});
  // numbers in threes
  CHECK(llama3("12345 6a7") == words{"123", "45", " ", "6", "a", "7"});
  CHECK(llama3("\u0661\u0662\u0663\u0664") == words{"\u0661\u0662\u0663", "\u0664"});
  // punctuation takes a space before it and newlines behind it
  CHECK(llama3(" ...\n\r\nx") == words{" ...\n\r\n", "x"});
  CHECK(llama3("  !") == words{" ", " !"});
  CHECK(llama3("\t!") == words{"\t", "!"});
  CHECK(llama3("a\u0301b") == words{"a", "\u0301b"});
  // white space: up to the last newline; else all but the last character; all at the end
  CHECK(llama3("a  \n \n  b") == words{"a", "  \n \n", " ", " b"});
  CHECK(llama3("a   b") == words{"a", "  ", " b"});
  CHECK(llama3("a   ") == words{"a", "   "});
  CHECK(llama3("a \t1") == words{"a", " ", "\t", "1"});
  CHECK(llama3("a\u3000\u30001") == words{"a", "\u3000", "\u3000", "1"});
}

TEST_CASE("pretokenizer: the GPT-2 pattern and single digits") {
  CHECK(gpt2("I'm 'LL don't") == words{"I", "'m", " '", "LL", " don", "'t"});
  CHECK(gpt2("12345 678\n\n x") == words{"12345", " 678", "\n\n", " x"});
  CHECK(gpt2("a   b  ") == words{"a", "  ", " b", "  "});
  CHECK(gpt2("\tx !?\n") == words{"\t", "x", " !?", "\n"});
  CHECK(split(split_pattern::gpt2_digits, "a 12b") == words{"a", " ", "1", "2", "b"});
  CHECK(split(split_pattern::gpt2_digits, "  7") == words{"  ", "7"});
  CHECK(split(split_pattern::none, "a b") == words{"a b"});
  CHECK(split(split_pattern::none, "") == words{});
}

TEST_CASE("pretokenizer: known patterns only") {
  CHECK(find_split_pattern(R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)") ==
        split_pattern::llama3);
  CHECK_FALSE(find_split_pattern(R"(\p{N})"));
  CHECK_FALSE(find_split_pattern(""));
}

TEST_CASE("pretokenizer: the words joined are the text, whatever it is") {
  std::mt19937 random(7);
  const std::string_view pieces[] = {"a", "Z", "1", " ", "\n", "\r", "\t", "'", "s", "'ll", ".", "\u00E9", "\u0301", "\u6F22", "\u0661", "\u3000", "\U0001F638", "\xFF", "\xE2\x82"};
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (auto n = random() % 24; n-- > 0;) text += pieces[random() % std::size(pieces)];
    for (const split_pattern p : {split_pattern::none, split_pattern::gpt2, split_pattern::gpt2_digits, split_pattern::llama3}) {
      std::string joined;
      split_words(p, text, [&](std::string_view w) {
        REQUIRE_FALSE(w.empty());
        joined += w;
      });
      REQUIRE(joined == text);
    }
  }
}
