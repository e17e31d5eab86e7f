// SPDX-License-Identifier: MIT
#include <quena/text/unicode.hpp>

#include <cstdint>
#include <string>
#include <string_view>

#include <doctest/doctest.h>

using namespace quena;

TEST_CASE("unicode: every code point survives encoding and decoding; surrogates are no characters") {
  for (std::uint32_t cp = 0; cp < 0x110000; ++cp) {
    std::string s;
    append_utf8(s, cp);
    const utf8_char c = decode_utf8(s);
    if (cp >= 0xD800 && cp < 0xE000) {
      REQUIRE_FALSE(c.valid);
      continue;
    }
    REQUIRE(c.valid);
    REQUIRE(c.code_point == cp);
    REQUIRE(c.n_bytes == s.size());
    // Every proper beginning is invalid now but could still become a character.
    for (std::size_t n = 1; n < s.size(); ++n) {
      const utf8_char part = decode_utf8(std::string_view(s).substr(0, n));
      REQUIRE_FALSE(part.valid);
      REQUIRE(part.truncated);
      REQUIRE(part.n_bytes == n);
    }
  }
}

TEST_CASE("unicode: invalid bytes become one U+FFFD for each maximal subpart") {
  const auto check = [](std::string_view bytes, std::string_view want) {
    CAPTURE(bytes);
    CHECK(to_valid_utf8(bytes) == want);
    CHECK(is_valid_utf8(bytes) == (bytes == want));
  };
  check("", "");
  check("plain", "plain");
  check("\xFF", "\uFFFD");
  check("\xE2\x82", "\uFFFD");                    // cut short: one
  check("\xE2\x82(", "\uFFFD(");
  check("\xC0\x80", "\uFFFD\uFFFD");              // overlong: neither byte can start anything
  check("\xE0\x80\x80", "\uFFFD\uFFFD\uFFFD");
  check("\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD");    // a surrogate
  check("\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD");
  check("\x80", "\uFFFD");
  check("\xF8\x88\x80\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD");
  check("\xF0\x9F\x98\xF0\x9F\x98\xB8", "\uFFFD\U0001F638");
  check("a\xF1\x80\x80" "b", "a\uFFFD" "b");
}

TEST_CASE("unicode: character classes") {
  using enum char_class;
  CHECK(classify('a') == letter);
  CHECK(classify('Z') == letter);
  CHECK(classify('0') == number);
  CHECK(classify(' ') == space);
  CHECK(classify('\r') == space);
  CHECK(classify('_') == other);
  CHECK(classify('\0') == other);
  CHECK(classify(0x1F) == other);      // a separator, white space for isspace-like functions but not for \s
  CHECK(classify(0x85) == space);      // NEL
  CHECK(classify(0xA0) == space);      // no-break space
  CHECK(classify(0x200B) == other);    // zero width space
  CHECK(classify(0xFEFF) == other);    // byte order mark
  CHECK(classify(0x3000) == space);    // ideographic space
  CHECK(classify(0xAA) == letter);     // feminine ordinal
  CHECK(classify(0xB2) == number);     // superscript two
  CHECK(classify(0x2160) == number);   // Roman numeral one
  CHECK(classify(0x3007) == number);   // ideographic zero
  CHECK(classify(0x0301) == other);    // a combining mark is no letter
  CHECK(classify(0x6F22) == letter);
  CHECK(classify(0x1D7D8) == number);  // double-struck zero
  CHECK(classify(0x1F638) == other);
  CHECK(classify(0x10FFFF) == other);
  CHECK(classify(0xFFFFFFFF) == other);
  std::size_t count[4] = {};
  for (std::uint32_t cp = 0; cp < 0x110000; ++cp) ++count[static_cast<std::size_t>(classify(cp))];
  CHECK(count[1] == 141028);  // of Unicode 16.0
  CHECK(count[2] == 1911);
  CHECK(count[3] == 25);
}
