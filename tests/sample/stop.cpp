// SPDX-License-Identifier: MIT
#include <quena/sample/stop.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace {

using strings = std::vector<std::string>;

struct outcome {
  strings deltas;
  std::string text;
  bool stopped = false;
  std::size_t which = quena::stop_matcher::none;
};

outcome stream(quena::stop_matcher& matcher, const strings& pieces) {
  outcome result;
  for (const std::string& piece : pieces) {
    result.deltas.emplace_back(matcher.push(piece));
    result.text += result.deltas.back();
    if (matcher.stopped()) break;
  }
  result.text += matcher.flush();
  result.stopped = matcher.stopped();
  result.which = matcher.which();
  return result;
}

outcome stream(const strings& stops, const strings& pieces, bool include = false) {
  quena::stop_matcher matcher(stops, include);
  return stream(matcher, pieces);
}

TEST_CASE("stop: a stop string that spans pieces") {
  const strings pieces{"The quick", " bro", "wn f", "ox jumps"};
  outcome r = stream({"own fox"}, pieces);
  CHECK(r.text == "The quick br");
  CHECK(r.stopped);
  CHECK(r.deltas == strings{"The quick", " br", "", ""});  // only "o", then "own f" is held back

  r = stream({"own fox", "quick b"}, pieces);
  CHECK(r.text == "The ");
  CHECK(r.which == 1);
  CHECK(r.deltas == strings{"The ", ""});

  r = stream({"brown fox"}, {" brown", " bear"});
  CHECK(r.text == " brown bear");
  CHECK_FALSE(r.stopped);
  CHECK(r.which == quena::stop_matcher::none);
  CHECK(r.deltas == strings{" ", "brown bear"});
}

TEST_CASE("stop: the stop string itself is delivered only when asked for") {
  CHECK(stream({"END"}, {"a E", "ND b"}).text == "a ");
  CHECK(stream({"END"}, {"a E", "ND b"}, true).text == "a END");
}

TEST_CASE("stop: the earliest start wins, of equal starts the shortest") {
  CHECK(stream({"bcd", "abcde"}, {"xabcdef"}).text == "x");  // the longer one, begun before, is completed later
  CHECK(stream({"bcd", "abcde"}, {"xab", "cd", "ef"}).text == "x");
  CHECK(stream({"bcd", "abcde"}, {"xabcdf"}).text == "xa");     // and here it is not
  CHECK(stream({"bcd", "abcde"}, {"xab", "cd"}).text == "xa");  // nor here, where the text ends
  CHECK(stream({"abcd", "ab"}, {"xabcd"}, true).text == "xab");
  CHECK(stream({"abcd", "ab"}, {"xabcd"}).which == 1);
  CHECK(stream({"ab", "ab"}, {"xab"}).which == 0);
}

TEST_CASE("stop: a match that nothing earlier can overtake stops at once") {
  for (const strings& stops : {strings{"ab", "abc"}, strings{"ab", "bcd"}, strings{"ab"}}) {
    quena::stop_matcher matcher(stops);
    CHECK(matcher.push("xab") == "x");
    CHECK(matcher.stopped());
  }
  quena::stop_matcher matcher(strings{"b", "abc"});
  CHECK(matcher.push("xab") == "x");
  CHECK_FALSE(matcher.stopped());  // "abc" started before "b" and may still come
  CHECK(matcher.push("d") == "a");
  CHECK(matcher.stopped());
}

TEST_CASE("stop: borders of a stop string") {
  CHECK(stream({"aab"}, {"a", "a", "a", "b"}).text == "a");
  CHECK(stream({"abab"}, {"abaabab"}).text == "aba");
  CHECK(stream({"ababac"}, {"abab", "abac!"}).text == "ab");
  CHECK(stream({"\n\n"}, {"a\n", "b\n", "\nc"}).text == "a\nb");
}

TEST_CASE("stop: nothing comes after the stop, not even from flush") {
  quena::stop_matcher matcher(strings{"."});
  CHECK(matcher.push("one. two") == "one");
  CHECK(matcher.stopped());
  CHECK(matcher.push("three") == "");
  CHECK(matcher.flush() == "");
  CHECK(matcher.which() == 0);
}

TEST_CASE("stop: flush gives back what was held, reset starts anew") {
  quena::stop_matcher matcher(strings{"<|end|>"});
  CHECK(matcher.push("a <|en") == "a ");
  CHECK(matcher.flush() == "<|en");
  CHECK(matcher.push("d|>") == "d|>");  // after flush: a new text
  matcher.reset();
  CHECK(matcher.push("<|e") == "");
  matcher.reset();
  CHECK(matcher.push("nd|>") == "nd|>");
  CHECK(matcher.push("<|end|>") == "");
  CHECK(matcher.stopped());
  matcher.reset();
  CHECK_FALSE(matcher.stopped());
  CHECK(matcher.push("b") == "b");
}

TEST_CASE("stop: no stop strings, empty pieces, bytes of any kind") {
  quena::stop_matcher none;
  CHECK(none.push("abc") == "abc");
  CHECK(none.flush() == "");
  CHECK_FALSE(none.stopped());
  CHECK(stream({"b"}, {"", "a", "", "b"}).text == "a");
  const std::string zero(1, '\0');
  CHECK(stream({zero + zero}, {"a" + zero, zero + "b"}).text == "a");
  CHECK(stream({"\xff"}, {"\xfe\xff"}).text == "\xfe");
  CHECK(stream({"é"}, {"caf\xc3", "\xa9!"}).text == "caf");
}

TEST_CASE("stop: an empty stop string is an error that names it") {
  try {
    quena::stop_matcher matcher(strings{"a", ""});
    FAIL("expected an error");
  } catch (const quena::error& e) {
    CHECK(e.code() == quena::errc::invalid_argument);
    CHECK(std::string(e.what()) == "[stop] stop[1]: expected at least one byte, got an empty string");
  }
}

TEST_CASE("stop: a copy goes its own way") {
  quena::stop_matcher first(strings{"ab"});
  CHECK(first.push("xa") == "x");
  quena::stop_matcher second = first;
  CHECK(first.push("b") == "");
  CHECK(first.stopped());
  CHECK(second.push("c") == "ac");
}

/// The definition, over the whole text.
outcome whole(const strings& stops, const std::string& text, bool include) {
  outcome result;
  result.text = text;
  std::size_t best = std::string::npos, length = 0;
  for (std::size_t i = 0; i < stops.size(); ++i) {
    const std::size_t at = text.find(stops[i]);
    if (at == std::string::npos) continue;
    if (at < best || (at == best && stops[i].size() < length)) {
      best = at;
      length = stops[i].size();
      result.which = i;
      result.stopped = true;
    }
  }
  if (result.stopped) result.text.resize(best + (include ? length : 0));
  return result;
}

TEST_CASE("stop: streamed equals not streamed, and no byte is held without need") {
  std::mt19937 rng(5);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(rng() % n); };
  const auto random_text = [&](std::size_t length, std::size_t letters) {
    std::string text;
    for (std::size_t i = 0; i < length; ++i) text += static_cast<char>('a' + below(letters));
    return text;
  };
  for (int round = 0; round < 20000; ++round) {
    const std::size_t letters = 1 + below(3);
    strings stops;
    for (std::size_t i = 1 + below(4); i > 0; --i) stops.push_back(random_text(1 + below(7), letters));
    const std::string text = random_text(below(40), letters + (round % 2 == 0 ? 1 : 0));
    const bool include = round % 3 == 0;
    const outcome right = whole(stops, text, include);
    CAPTURE(round);

    quena::stop_matcher matcher(stops, include);
    std::string streamed;
    for (std::size_t at = 0; at < text.size() && !matcher.stopped();) {
      const std::size_t n = (std::min)(1 + below(6), text.size() - at);
      streamed += matcher.push(std::string_view(text).substr(at, n));
      at += n;
      if (matcher.stopped()) break;
      REQUIRE(right.text.compare(0, streamed.size(), streamed) == 0);  // never a byte that has to be taken back
      // What is held must be the beginning of some stop string, or contain one that is complete but may still be overtaken.
      const std::string held = text.substr(streamed.size(), at - streamed.size());
      bool needed = held.empty();
      for (const std::string& stop : stops)
        needed = needed || (held.size() < stop.size() && stop.compare(0, held.size(), held) == 0);
      REQUIRE(needed);
    }
    streamed += matcher.flush();
    REQUIRE(streamed == right.text);
    REQUIRE(matcher.stopped() == right.stopped);
    if (right.stopped) REQUIRE(stops[matcher.which()] == stops[right.which]);
  }
}

TEST_CASE("stop: time is linear on hostile text") {
  const strings stops{std::string(5000, 'a') + "b"};
  quena::stop_matcher matcher(stops);
  std::size_t delivered = 0;
  for (int i = 0; i < 200000; ++i) delivered += matcher.push("a").size();
  CHECK(delivered == 195000);
  CHECK(matcher.flush().size() == 5000);
}

}  // namespace
