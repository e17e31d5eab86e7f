// SPDX-License-Identifier: MIT
// The template engine against Jinja2's own answers (tests/tools/jinja_reference.py), its budgets and its errors.
#include "quena/text/chat_template.hpp"

#include <chrono>
#include <clocale>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "../support.hpp"

namespace {

using namespace quena;
using jinja::value;

std::tm saturday() {
  std::tm t{};
  t.tm_year = 124, t.tm_mon = 6, t.tm_mday = 6, t.tm_hour = 15, t.tm_min = 4, t.tm_sec = 9;
  return t;
}

std::string render(const std::string& source, const value& variables = value::dict({})) {
  return chat_template(source).render(variables, saturday).text();
}

std::string error_of(const std::string& source, errc code, const value& variables = value::dict({})) {
  try {
    render(source, variables);
  } catch (const error& e) {
    CHECK_MESSAGE(e.code() == code, e.what());
    return e.what();
  }
  FAIL("no error from ", source.substr(0, 100));
  return {};
}

TEST_CASE("jinja: every reference case renders as in Jinja2") {
  const value all = jinja::value_from_json(quena_test::read_file(quena_test::data("jinja_cases.json")), "test");
  const value& common = *jinja::dict_find(all.as_dict(), "variables");
  std::size_t n = 0;
  for (const value& c : jinja::dict_find(all.as_dict(), "cases")->as_list().items) {
    const std::string source(jinja::dict_find(c.as_dict(), "template")->view());
    const value* own = jinja::dict_find(c.as_dict(), "variables");
    const value* expected = jinja::dict_find(c.as_dict(), "expected");
    std::string got;
    bool refused = false;
    try {
      got = render(source, own ? *own : common);
    } catch (const error& e) {
      refused = true;
      got = e.what();
    }
    CAPTURE(source);
    if (expected) {
      CHECK_FALSE(refused);
      CHECK(got == expected->view());
    } else {
      CHECK_MESSAGE(refused, got);
      CHECK(got.find("[chat_template] ") == 0);
      CHECK(got.find("line ") != std::string::npos);
    }
    ++n;
  }
  CHECK(n > 1000);
}

TEST_CASE("jinja: errors name the template and the line") {
  CHECK(error_of("a\nb\n{{ x.y }}", errc::invalid_argument) == "[chat_template] line 3: expected a defined value: 'x' is undefined");
  CHECK(error_of("a\n{% if x %}\nb", errc::malformed) == "[chat_template] line 3: expected '{% endif %}', got the end of the template");
  CHECK(error_of("{{ 1 +\n\n* }}", errc::malformed) == "[chat_template] line 3: expected an expression, got '*'");
  CHECK(error_of("\n{{ 'a\nb' ~\n (1 + none) }}", errc::invalid_argument).find("line 4: ") != std::string::npos);
  CHECK(error_of("{% macro f() %}\n{{ 1/0 }}\n{% endmacro %}\n{{ f() }}", errc::invalid_argument).find("line 2: ") != std::string::npos);
  CHECK(error_of("{{ raise_exception('no\ntools') }}", errc::invalid_argument) == "[chat_template] line 1: the template refuses: no?tools");
  CHECK(error_of("{# never\nclosed", errc::malformed).find("line 1") != std::string::npos);
  CHECK_THROWS_WITH_AS(chat_template("{{ x", "my.jinja"), "[my.jinja] line 1: expected '}}', got the end of the template", error);
  CHECK_THROWS_AS(chat_template("\xff"), error);
  CHECK_THROWS_AS(chat_template("{{ '\xed\xa0\x80' }}"), error);
}

std::string repeated(const std::string& s, std::size_t n) {
  std::string out;
  for (std::size_t i = 0; i < n; ++i) out += s;
  return out;
}

TEST_CASE("jinja: a template that never ends is an error within a second") {
  const std::vector<std::string> endless = {
      "{% for a in range(999) %}{% for b in range(999) %}{% for c in range(999) %}{% endfor %}{% endfor %}{% endfor %}",
      "{% for i in range(1000000000) %}{% endfor %}",
      "{{ 'a' * 10**9 }}",
      "{{ 'a' * 9223372036854775807 }}",
      "{{ [1] * 10**9 }}",
      "{{ [[1] * 1000] * 10**6 }}",
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{% endmacro %}{{ f() }}",
      "{% macro f(x) %}{% if true %}{% for a in [1] %}{{ (1 + (2 * (3 ~ f(x))))|string }}{% endfor %}{% endif %}{% endmacro %}{{ f(1) }}",
      "{% set ns = namespace(x='ab') %}{% for i in range(99999) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
      "{% set ns = namespace(x='ab') %}{% for i in range(99999) %}{% set ns.x = ns.x|replace('a', ns.x) %}{% endfor %}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(99999) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
      "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}",
      "{% set ns = namespace(x={}) %}{% for i in range(99999) %}{% set ns.x = {'a': ns.x} %}{% endfor %}",
      "{% set ns = namespace(x=1) %}{% for i in range(99999) %}{% set ns.x = cycler(ns.x) %}{% endfor %}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(99999) %}{% set ns.x = [ns.x]|map('list') %}{% endfor %}",
      "{% set ns = namespace(x=1) %}{% for i in range(99999) %}{% for y in [ns.x] %}{% set ns.x = loop %}{% endfor %}{% endfor %}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x|tojson }}",
      "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
      "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
      "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l = ns.l + ['a' * 100000 ~ i] %}{% endfor %}",
      "{% for i in range(99999) %}{{ 'a' * 10000 }}{% endfor %}",
      "{% for x in [1] recursive %}{{ loop([x]) }}{% endfor %}",
      "{{ '%1000000000d' % 1 }}",
      "{{ '{:1000000000}'.format(1) }}",
      "{{ 'a'.center(10**12) }}",
      "{{ 'a'|indent(10**12) }}",
      "{{ [1]|tojson(indent=10**12) }}",
      "{{ 'a'.zfill(10**12) }}",
      "{{ [1]|batch(10**9, 0)|list }}",
      "{{ [1]|slice(10**9)|list }}",
      "{% set s = 'a' * 1000000 %}{% for i in range(99999) %}{{ s.find('b') }}{% endfor %}",
      "{% set s = 'a' * 1000000 %}{% for i in range(99999) %}{{ s[i] }}{% endfor %}",
      "{{ ('a' * 1000000).find('a' * 500000 ~ 'b') }}{{ ('a' * 4000000)|list }}",
      "{{ 2 ** 10 ** 9 }}{{ range(100000)|map('string')|list|join('x' * 100000) }}",
  };
  for (const std::string& source : endless) {
    CAPTURE(source);
    const auto start = std::chrono::steady_clock::now();
    bool refused = false;
    try {
      render(source);
    } catch (const error&) {
      refused = true;
    }
    CHECK(refused);
    // A second on a quiet machine; sanitizers and busy ones get ten.
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
  }
}

TEST_CASE("jinja: nesting is bounded in the source, long flat templates are fine") {
  for (const std::string& source :
       {"{{ " + repeated("(", 5000) + "1" + repeated(")", 5000) + " }}", repeated("{% if 1 %}", 5000) + repeated("{% endif %}", 5000),
        "{{ " + repeated("[", 5000) + repeated("]", 5000) + " }}", "{{ " + repeated("{1:", 5000) + "1" + repeated("}", 5000) + " }}",
        "{{ " + repeated("not ", 5000) + "1 }}", "{{ " + repeated("-", 5000) + "1 }}", "{{ " + repeated("1 if 1 else ", 5000) + "1 }}",
        "{{ " + repeated("1 if ", 5000) + "1 }}", "{{ " + repeated("f(", 5000) + repeated(")", 5000) + " }}",
        "{{ " + repeated("a[", 5000) + "1" + repeated("]", 5000) + " }}", "{% for " + repeated("(", 5000) + "x" + repeated(")", 5000) + " in y %}{% endfor %}",
        "{{ x is " + repeated("eq (", 5000) + "1" + repeated(")", 5000) + " }}", repeated("{% macro f() %}", 5000)}) {
    CAPTURE(source.substr(0, 40));
    CHECK_THROWS_AS(chat_template{source}, error);
  }
  CHECK(render("{{ " + repeated("1 + ", 5000) + "1 }}") == "5001");
  CHECK(render("{{ " + repeated("'a' ~ ", 5000) + "'a' }}") == std::string(5001, 'a'));
  CHECK(render("{{ 1" + repeated("|int", 5000) + " }}") == "1");
  CHECK(render("{{ " + repeated("1 < ", 5000) + "1 }}") == "False");
  CHECK(render("{{ " + repeated("1 and ", 5000) + "1 }}") == "1");
  CHECK(render("{% if 0 %}" + repeated("{% elif 0 %}", 5000) + "{% else %}x{% endif %}") == "x");
  CHECK(render("{{ " + repeated("(", 60) + "1" + repeated(")", 60) + " }}") == "1");
  CHECK_THROWS_AS(chat_template(std::string(1 << 20, 'a')), error);
}

TEST_CASE("jinja: the budget grows with the input") {
  std::vector<value> messages;
  for (int i = 0; i < 20000; ++i) messages.push_back(value::dict({{"role", i % 2 ? "assistant" : "user"}, {"content", std::string(200, 'x')}}));
  const value variables = value::dict({{"messages", value::list(messages)}});
  const std::string text = render("{% for m in messages %}<{{ m.role }}>{{ m.content|trim }}{% if not loop.last %}\n{% endif %}{% endfor %}", variables);
  CHECK(text.size() > 20000 * 200);
  const value one = value::dict({{"x", std::string(30 << 20, 'x')}});
  CHECK(render("{{ '<' + x|trim + '>' }}", one).size() == (30 << 20) + 2);
}

TEST_CASE("jinja: objects can be used again after an error, and by several threads at once") {
  const chat_template t("{% for m in messages %}{{ m.content + '' }}{% endfor %}");
  const value good = value::dict({{"messages", value::list({value::dict({{"content", "a"}}), value::dict({{"content", "b"}})})}});
  const value bad = value::dict({{"messages", value::list({value::dict({{"content", 1}})})}});
  CHECK_THROWS_AS(static_cast<void>(t.render(bad)), error);
  CHECK(t.render(good).text() == "ab");
  std::vector<std::thread> threads;
  std::vector<int> right(4, 0);
  for (std::size_t i = 0; i < right.size(); ++i)
    threads.emplace_back([&, i] {
      for (int n = 0; n < 200; ++n) right[i] += t.render(good).text() == "ab";
    });
  for (std::thread& thread : threads) thread.join();
  for (const int n : right) CHECK(n == 200);
}

TEST_CASE("jinja: numbers and dates do not depend on the host's locale") {
  const std::string before = std::setlocale(LC_ALL, nullptr);
  const char* german = nullptr;
  for (const char* name : {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "de_DE"})
    if (!german) german = std::setlocale(LC_ALL, name);
  if (!german) MESSAGE("no German or French locale installed: only the C locale was tested");
  const std::string got = render("{{ 0.5 }} {{ '1.5'|float + 1 }} {{ 1234567 }} {{ '%.2f' % 2.5 }} {{ x|tojson }} {{ strftime_now('%d %b %B %a %A') }}",
                                 value::dict({{"x", jinja::value_from_json("[0.25, 1e5]", "test")}}));
  std::setlocale(LC_ALL, before.c_str());
  CHECK(got == "0.5 2.5 1234567 2.50 [0.25, 100000.0] 06 Jul July Sat Saturday");
}

TEST_CASE("jinja: JSON input keeps key order, long integers, and refuses what is not JSON") {
  const auto dump = [](std::string_view json) { return render("{{ x|tojson }}", value::dict({{"x", jinja::value_from_json(json, "test")}})); };
  CHECK(dump(R"({"z":1,"a":{"y":[],"b":null}})") == R"({"z": 1, "a": {"y": [], "b": null}})");
  CHECK(dump("[9223372036854775807,-9223372036854775808,18446744073709551615,100000000000000000000000]") ==
        "[9223372036854775807, -9223372036854775808, 18446744073709551615, 100000000000000000000000]");
  CHECK(dump("[-0, 1.0, 1e2, 1E-7]") == "[0, 1.0, 100.0, 1e-07]");
  CHECK(dump(R"("\ud83d\ude00\u0000\u007f")") == "\"\xf0\x9f\x98\x80\\u0000\x7f\"");
  for (const char* bad : {"1e999", "[1,]", "{\"a\":1,\"a\":2}", "\"\\ud83d\"", "\xef\xbb\xbf[", "", "[1] 2", "nul", "\"\xff\""}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(jinja::value_from_json(bad, "test"), error);
  }
  CHECK_THROWS_AS(jinja::value_from_json(std::string(10000, '['), "test"), error);
  std::string wide = "{";
  for (int i = 0; i < 50000; ++i) wide += (i ? ",\"k" : "\"k") + std::to_string(i) + "\":" + std::to_string(i);
  const value v = jinja::value_from_json(wide + "}", "test");
  CHECK(v.as_dict().entries.size() == 50000);
  CHECK(render("{{ x.k0 }} {{ x['k49999'] }} {{ 'k5' in x }} {{ x.q is defined }} {{ (x|list)[49998] }}", value::dict({{"x", v}})) == "0 49999 True False k49998");
}

TEST_CASE("jinja: break and continue leave a loop through the blocks inside it") {
  CHECK(render("{% for x in [1, 2] %}{% with y = x %}{{ y }}{% break %}{% endwith %}!{% endfor %}") == "1");
  CHECK(render("{% for x in [3, 1, 2] %}{% with %}{{ x }}{% continue %}{% endwith %}5{% endfor %}") == "312");
}

TEST_CASE("jinja: where Python has no limits, this engine says so") {
  CHECK(error_of("{{ 9223372036854775807 + 1 }}", errc::invalid_argument).find("64 bits") != std::string::npos);
  CHECK(error_of("{{ 2 ** 64 }}", errc::invalid_argument).find("64 bits") != std::string::npos);
  CHECK(error_of("{{ -9223372036854775807 - 2 }}", errc::invalid_argument).find("64 bits") != std::string::npos);
  CHECK(error_of("{{ '99999999999999999999'|int }}", errc::invalid_argument).find("64 bits") != std::string::npos);
  CHECK(error_of("{{ 99999999999999999999 }}", errc::malformed).find("64 bits") != std::string::npos);
  CHECK(render("{{ (-9223372036854775807 - 1) // 1 }} {{ (-9223372036854775807 - 1) % -1 }}") == "-9223372036854775808 0");
  CHECK(error_of("{{ (-9223372036854775807 - 1) // -1 }}", errc::invalid_argument).find("64 bits") != std::string::npos);
}

}  // namespace
