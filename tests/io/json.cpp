// SPDX-License-Identifier: MIT
#include <quena/io/json.hpp>
#include <quena/io/json_fields.hpp>

#include <string>

#include "../support.hpp"

using namespace quena;

namespace {

std::string message_of(std::string_view text, json_limits limits = {}) {
  try {
    (void)parse_json(text, "where", "file", limits);
  } catch (const error& e) {
    CHECK(e.code() == errc::malformed);
    return e.what();
  }
  return "";
}

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

std::string nested(std::size_t n) { return std::string(n, '[') + std::string(n, ']'); }

}  // namespace

TEST_CASE("json: values") {
  const json v = parse_json(R"({"a":[1,-2,3.5,true,false,null,"x\u00e9\ud83d\ude38"],"b":{},"":-0})", "where");
  CHECK(v["a"][0].is_number_unsigned());
  CHECK(v["a"][1] == -2);
  CHECK(v["a"][2] == 3.5);
  CHECK(v["a"][5].is_null());
  CHECK(v["a"][6] == "x\xc3\xa9\xf0\x9f\x98\xb8");
  CHECK(v["b"].is_object());
  CHECK(parse_json("1", "w") == 1);
  CHECK(parse_json(" \"s\" \n", "w") == "s");
  CHECK(parse_json("18446744073709551615", "w").get<std::uint64_t>() == 18446744073709551615u);
  CHECK(parse_json("18446744073709551616", "w").is_number_float());
}

TEST_CASE("json: what is not JSON") {
  for (const char* bad : {"", " ", "{", "}", "[1,]", "{\"a\":1,}", "{a:1}", "'x'", "01", "1.", ".5", "+1", "NaN", "Infinity", "nul", "[1 2]", "{} {}", "\"\\x\"", "\"\t\"", "// c\n1",
                          "\"\\ud83d\"", "\"\\udc00\"", "\"\xff\"", "\"\xc0\xaf\"", "\"\xed\xa0\x80\"", "1e999", "-1e999"}) {
    const std::string m = message_of(bad);
    CHECK_MESSAGE(has(m, "[where] "), bad);
    CHECK_MESSAGE(m.ends_with(" (file)"), bad);
  }
  CHECK(has(message_of(std::string("\0", 1)), "[where] "));
  CHECK(message_of("[1,\n 2,\n x]") == "[where] expected JSON, got an error at line 3, column 2: invalid literal near 'x' (file)");
  CHECK(message_of("{\"a\":1") == "[where] expected JSON, got an error at line 1, column 7: unexpected end of input; expected '}' (file)");
}

TEST_CASE("json: duplicate keys, depth") {
  CHECK(message_of(R"({"a":1,"b":{"a":1,"a":2}})") == "[where] expected each key once, got 'a' twice (file)");
  CHECK(message_of(nested(64)).empty());
  CHECK(message_of(nested(65)) == "[where] expected JSON nested at most 64 deep, got more (file)");
  CHECK(message_of(std::string(100000, '[')) == message_of(nested(65)));
  CHECK(message_of(nested(10), {.max_depth = 9}) != "");
  std::string objects;
  for (int i = 0; i < 5000; ++i) objects += "{\"a\":";
  CHECK(message_of(objects) == message_of(nested(65)));
  std::string flat = "[0";
  for (int i = 0; i < 100000; ++i) flat += ",0";
  CHECK(parse_json(flat + "]", "w").size() == 100001);
}

TEST_CASE("json: a byte order mark is skipped") { CHECK(parse_json("\xef\xbb\xbf[1]", "w") == json::array({1})); }

TEST_CASE("json fields: types, ranges, absence") {
  const json v = parse_json(R"({"n":5,"x":0.5,"s":"t","b":true,"z":null,"neg":-1,"ids":[1,2],"id":3})", "w");
  const json_fields f(v, "where", "file", "outer.");
  CHECK(f.integer("n", 0, 5) == 5u);
  CHECK_FALSE(f.integer("z", 0, 5));
  CHECK_FALSE(f.integer("absent", 0, 5));
  CHECK(f.number("n") == 5.0);
  CHECK(f.number("x", 0, 1) == 0.5);
  CHECK(f.string("s") == "t");
  CHECK(f.boolean("b") == true);
  CHECK(f.token_ids("ids") == std::vector<std::int32_t>{1, 2});
  CHECK(f.token_ids("id") == std::vector<std::int32_t>{3});
  CHECK(f.token_ids("z").empty());
  CHECK_THROWS_WITH_AS((void)f.integer("n", 0, 4), "[where] outer.n: expected an integer from 0 to 4, got 5 (file)", error);
  CHECK_THROWS_WITH_AS((void)f.integer("neg", 0, 4), "[where] outer.neg: expected an integer from 0 to 4, got -1 (file)", error);
  CHECK_THROWS_WITH_AS((void)f.number("s"), "[where] outer.s: expected a number, got \"t\" (file)", error);
  CHECK_THROWS_WITH_AS((void)f.number("x", 0, 0.25), "[where] outer.x: expected a number from 0.0 to 0.25, got 0.5 (file)", error);
  CHECK_THROWS_WITH_AS((void)f.positive("neg"), "[where] outer.neg: expected a number above 0, got -1 (file)", error);
  CHECK_THROWS_WITH_AS((void)f.boolean("ids"), "[where] outer.ids: expected true or false, got an array (file)", error);
  CHECK_THROWS_WITH_AS((void)f.need_integer("q", 0, 1), "[where] outer.q: expected an integer, but it is absent (file)", error);
  CHECK_THROWS_AS((void)f.token_ids("ids", 2), error);
  CHECK_THROWS_WITH_AS(json_fields(v["ids"], "where", "file"), "[where] expected an object, got an array (file)", error);
}
