// SPDX-License-Identifier: MIT
#include <quena/backend/reference.hpp>
#include <quena/model/session.hpp>

#include <algorithm>
#include <random>
#include <stop_token>
#include <vector>

#include <doctest/doctest.h>

#include "../support.hpp"

#include "../synthetic_model.hpp"

using namespace quena;
using quena_test::synthetic_model;

namespace {

struct tiny {
  synthetic_model files{{.hidden_size = 24, .intermediate_size = 40, .n_heads = 4, .n_kv_heads = 2, .head_dim = 8, .vocab_size = 53}};
  llama<reference> model{files.open(), reference()};
};

std::vector<token_id> some_tokens(std::size_t n, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<token_id> ids(n);
  for (token_id& id : ids) id = static_cast<token_id>(random() % 53);
  return ids;
}

std::vector<float> copied(std::span<const float> x) { return {x.begin(), x.end()}; }

}  // namespace

TEST_CASE("session: feed, feed_all and single tokens agree, bit for bit") {
  const tiny t;
  const std::vector<token_id> ids = some_tokens(70, 1);
  session<reference> all(t.model, {}, {.max_rows = 64, .max_logits = 9});
  std::vector<std::vector<float>> logits(ids.size());
  std::size_t next = 0;
  all.feed_all(ids, [&](std::size_t i, std::span<const float> row) {
    REQUIRE(i == next++);
    logits[i] = copied(row);
  });
  CHECK(next == ids.size());
  CHECK(all.length() == ids.size());
  CHECK(std::equal(ids.begin(), ids.end(), all.tokens().begin(), all.tokens().end()));

  session<reference> once(t.model), small(t.model, {}, {.max_rows = 7}), single(t.model, {}, {.max_rows = 1});
  CHECK(copied(once.feed(ids)) == logits.back());
  CHECK(copied(small.feed(ids)) == logits.back());
  for (std::size_t i = 0; i < ids.size(); ++i) REQUIRE(copied(single.feed(std::span(ids).subspan(i, 1))) == logits[i]);
}

TEST_CASE("session: rewinding forgets exactly the rest") {
  const tiny t;
  const std::vector<token_id> ids = some_tokens(40, 2), wrong = some_tokens(40, 3);
  session<reference> s(t.model);
  const std::vector<float> want = copied(s.feed(ids));
  for (const std::size_t keep : {0u, 1u, 15u, 16u, 17u, 39u}) {
    CAPTURE(keep);
    s.rewind(keep);
    CHECK(s.length() == keep);
    s.feed(std::span(wrong).first(12));
    s.rewind(keep);
    CHECK(copied(s.feed(std::span(ids).subspan(keep))) == want);
  }
  CHECK(quena_test::code_of([&] { s.rewind(41); }) == errc::invalid_argument);
  CHECK(s.length() == 40);
}

TEST_CASE("session: a state comes back, also into another session and after the first is gone") {
  const tiny t;
  const std::vector<token_id> ids = some_tokens(50, 4);
  session<reference>::state saved;
  std::vector<float> want;
  {
    session<reference> s(t.model);
    s.feed(std::span(ids).first(33));
    saved = s.snapshot();
    want = copied(s.feed(std::span(ids).subspan(33)));
    s.restore(saved);
    CHECK(s.length() == 33);
    CHECK(copied(s.feed(std::span(ids).subspan(33))) == want);
  }
  session<reference> other(t.model, {.max_positions = 64});
  other.feed(some_tokens(60, 5));
  other.restore(saved);
  CHECK(std::equal(other.tokens().begin(), other.tokens().end(), ids.begin(), ids.begin() + 33));
  CHECK(copied(other.feed(std::span(ids).subspan(33))) == want);

  other.restore(saved);
  session<reference>::state bad = saved;
  bad.tokens.pop_back();
  CHECK(quena_test::code_of([&] { other.restore(bad); }) == errc::invalid_argument);
  session<reference> short_one(t.model, {.max_positions = 32}), wide(t.model, {.page_size = 32});
  CHECK(quena_test::code_of([&] { short_one.restore(saved); }) == errc::invalid_argument);
  CHECK(quena_test::code_of([&] { wide.restore(saved); }) == errc::invalid_argument);
  CHECK(wide.length() == 0);
  CHECK(copied(other.feed(std::span(ids).subspan(33))) == want);
}

TEST_CASE("session: a prompt longer than the context is refused with both numbers (A09)") {
  const tiny t;
  session<reference> s(t.model, {.max_positions = 32}, {.max_rows = 8});
  const std::vector<token_id> ids = some_tokens(40, 6);
  CHECK_THROWS_WITH_AS(s.feed(ids), "[session] expected at most 32 tokens of context, got 40", error);
  CHECK(quena_test::code_of([&] { s.feed(ids); }) == errc::context_overflow);
  CHECK(s.length() == 0);  // nothing was computed
  s.feed(std::span(ids).first(31));
  CHECK(quena_test::code_of([&] { s.feed(std::span(ids).first(2)); }) == errc::context_overflow);
  CHECK(quena_test::code_of([&] { s.feed_all(std::span(ids).first(2), [](std::size_t, std::span<const float>) { FAIL("nothing may be computed"); }); }) == errc::context_overflow);
  CHECK(s.length() == 31);
  s.feed(std::span(ids).subspan(31, 1));
  CHECK(s.length() == s.max_length());
}

TEST_CASE("session: bad tokens are refused before anything is computed (A32)") {
  const tiny t;
  session<reference> s(t.model, {}, {.max_rows = 2});
  CHECK(quena_test::code_of([&] { s.feed({}); }) == errc::invalid_argument);
  for (const token_id bad : {53, -1, 2147483647}) {
    const std::vector<token_id> ids = {1, 2, 3, bad};
    CHECK(quena_test::code_of([&] { s.feed(ids); }) == errc::invalid_argument);
    CHECK(s.length() == 0);
  }
  CHECK_THROWS_WITH_AS(s.feed(std::vector<token_id>{53}), "[session] expected tokens in [0, 53), got 53", error);
  CHECK(quena_test::code_of([&] { session<reference>(t.model, {.max_positions = std::size_t{1} << 40}); }) == errc::invalid_argument);
  CHECK(quena_test::code_of([&] { session<reference>(t.model, {.page_size = 8}); }) == errc::invalid_argument);
  CHECK(quena_test::code_of([&] { session<reference>(t.model, {}, {.max_rows = 0}); }) == errc::invalid_argument);
  session<reference> one(t.model, {.max_positions = 1});
  CHECK(one.feed(std::vector<token_id>{5}).size() == 53);
}

TEST_CASE("session: cancelling leaves it as it was before the call") {
  const tiny t;
  const std::vector<token_id> ids = some_tokens(60, 7);
  session<reference> s(t.model, {}, {.max_rows = 8});
  const std::vector<float> want = copied(s.feed(ids));
  s.rewind(10);
  for (const std::size_t after : {0u, 1u, 5u, 9u}) {  // layers of which chunk
    std::stop_source stop;
    std::size_t n = 0;
    if (after == 0) stop.request_stop();
    const forward_options options{.stop = stop.get_token(), .on_layer = [&](std::size_t, tensor_view<const float, 2>) {
      if (++n == after) stop.request_stop();
    }};
    CHECK(quena_test::code_of([&] { s.feed(std::span(ids).subspan(10), options); }) == errc::cancelled);
    CHECK(s.length() == 10);
    CHECK(s.cache().length(0) == 10);
  }
  CHECK(copied(s.feed(std::span(ids).subspan(10))) == want);
}
