// SPDX-License-Identifier: MIT
// The tree of shared pages, and the cache below it, against a model of lists: every page holds what its text says.
#include <quena/backend/reference.hpp>
#include <quena/engine/prefix_cache.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include <doctest/doctest.h>

using namespace quena;

namespace {

using cache_type = kv_cache<reference>;

cache_type make(std::size_t n_pages, std::size_t max_positions, std::size_t max_sequences) {
  return cache_type(std::make_shared<const reference>(), {1, 1, 2, 16, n_pages, dtype::f32}, max_positions, max_sequences);
}

/// What stands for a position's key: a number that depends on all that a key depends on.
float key_of(std::uint64_t adapter, std::span<const token_id> tokens) {
  std::uint64_t h = adapter;
  for (const token_id t : tokens) h = h * 31 + static_cast<std::uint64_t>(t) + 1;
  return static_cast<float>(h % 1000003);
}

float& cell(cache_type& c, sequence_id id, std::size_t position) { return c.pool().at(c.pages(id)[position / 16], 0, 0, 0, position % 16)[0]; }

std::vector<token_id> numbers(std::size_t n, token_id first = 0) {
  std::vector<token_id> t(n);
  for (std::size_t i = 0; i < n; ++i) t[i] = first + static_cast<token_id>(i);
  return t;
}

/// Every page has one hash: nothing but the comparison tells texts apart.
struct worst_hash {
  std::uint64_t operator()(std::uint64_t, std::span<const token_id>) const noexcept { return 7; }
};
/// Texts collide, but not always.
struct bad_hash {
  std::uint64_t operator()(std::uint64_t before, std::span<const token_id> tokens) const noexcept { return (before + static_cast<std::uint64_t>(tokens[0])) % 5; }
};

/// A sequence that computes its tokens as the engine does: begins with what is known, computes the rest, registers full pages.
template <class Hash>
struct writer {
  cache_type* c;
  prefix_cache<reference, Hash>* tree;
  std::uint64_t adapter;
  sequence_id id;
  std::vector<token_id> tokens = {};
  typename prefix_cache<reference, Hash>::place place = {};
  std::size_t n_registered = 0, n_found = 0;

  void compute(std::size_t length) {
    const std::size_t start = c->length(id);
    while (c->free_pages() < c->pages_needed(id, length) && tree->evict()) {}
    c->reserve(id, length);
    for (std::size_t p = start; p < length; ++p) {
      REQUIRE(c->references(c->pages(id)[p / 16]) == 1);  // a shared page is never written
      cell(*c, id, p) = key_of(adapter, std::span(tokens).first(p + 1));
    }
    c->set_length(id, length);
    for (; (n_registered + 1) * 16 <= length; ++n_registered) {
      const page_id own = c->pages(id)[n_registered];
      const page_id held = tree->insert(place, std::span<const token_id>(tokens).subspan(n_registered * 16, 16), own);
      if (held != own) c->replace_page(id, n_registered, held);
    }
  }
  void begin(std::vector<token_id> text) {
    tokens = std::move(text);
    std::vector<page_id> found;
    place = tree->match(adapter, tokens, (tokens.size() - 1) / 16, found);
    c->share(id, found);
    tree->touch(found);
    n_registered = n_found = found.size();
    for (std::size_t p = 0; p < 16 * found.size(); ++p) REQUIRE(cell(*c, id, p) == key_of(adapter, std::span(tokens).first(p + 1)));
  }
};

}  // namespace

TEST_CASE("prefix_cache: the same beginning is found, another adapter's or another text's is not") {
  cache_type c = make(20, 128, 8);
  prefix_cache<reference> tree(c);
  using text = writer<chained_hash>;
  text first{&c, &tree, 0, c.add()};
  first.begin(numbers(50));
  CHECK(first.n_found == 0);
  first.compute(50);
  CHECK(tree.size() == 3);
  for (const std::size_t n : {1u, 15u, 16u, 17u, 32u, 33u, 48u, 49u, 50u}) {  // the last position is always computed (A12)
    text same{&c, &tree, 0, c.add()};
    same.begin(numbers(n));
    CHECK(same.n_found == (n - 1) / 16);
    c.remove(same.id);
  }
  std::vector<token_id> other = numbers(50);
  other[20] = 99;
  text late{&c, &tree, 0, c.add()};
  late.begin(other);
  CHECK(late.n_found == 1);
  std::vector<token_id> shifted = numbers(50, 16);  // its first page is the other's second
  text moved{&c, &tree, 0, c.add()}, adapter{&c, &tree, 1, c.add()};
  moved.begin(shifted);
  CHECK(moved.n_found == 0);
  adapter.begin(numbers(50));
  CHECK(adapter.n_found == 0);
  adapter.compute(50);
  CHECK(tree.size() == 6);
}

TEST_CASE("prefix_cache: texts with the same hash are told apart by their tokens") {
  cache_type c = make(20, 128, 8);
  prefix_cache<reference, worst_hash> tree(c);
  using text = writer<worst_hash>;
  text first{&c, &tree, 0, c.add()}, second{&c, &tree, 0, c.add()}, third{&c, &tree, 1, c.add()};
  first.begin(numbers(40));
  first.compute(40);
  CHECK(tree.size() == 1);  // its second page has the same hash, too
  second.begin(numbers(40, 3));
  CHECK(second.n_found == 0);
  second.compute(40);
  third.begin(numbers(40));
  CHECK(third.n_found == 0);
  text same{&c, &tree, 0, c.add()};
  same.begin(numbers(40));
  CHECK(same.n_found == 1);
}

TEST_CASE("prefix_cache: two that compute the same hold the same page; the oldest leaf goes first") {
  cache_type c = make(20, 128, 8);
  prefix_cache<reference> tree(c);
  using text = writer<chained_hash>;
  text a{&c, &tree, 0, c.add()}, b{&c, &tree, 0, c.add()};
  a.begin(numbers(40)), b.begin(numbers(40));
  a.compute(40);
  b.compute(40);
  CHECK(c.pages(a.id)[0] == c.pages(b.id)[0]);
  CHECK(c.pages(a.id)[1] == c.pages(b.id)[1]);
  CHECK(20 - c.free_pages() == 4);
  CHECK(tree.evictable() == 0);
  CHECK(!tree.evict());
  c.remove(b.id);
  CHECK(!tree.evict());
  c.remove(a.id);
  CHECK(tree.evictable() == 2);

  text other{&c, &tree, 0, c.add()};
  other.begin(numbers(20, 500));
  other.compute(20);
  c.remove(other.id);
  text again{&c, &tree, 0, c.add()};  // makes the first text the younger one
  again.begin(numbers(40));
  c.remove(again.id);
  CHECK(tree.evict());
  CHECK(tree.evict());
  text rest{&c, &tree, 0, c.add()};
  rest.begin(numbers(40));
  CHECK(rest.n_found == 1);  // its leaf went second
  c.remove(rest.id);
  CHECK(tree.evict());
  CHECK(!tree.evict());
  CHECK(c.free_pages() == 20);
}

TEST_CASE_TEMPLATE("prefix_cache: 100,000 random operations lose no page and write to no shared one [slow]", Hash, chained_hash, bad_hash) {
  std::mt19937 random(5);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  constexpr std::size_t n_pages = 24, max_positions = 112;
  cache_type c = make(n_pages, max_positions, 7);
  prefix_cache<reference, Hash> tree(c);
  std::vector<writer<Hash>> live;
  std::size_t n_found = 0, n_refused = 0, n_evicted = 0;
  const auto audit = [&](bool contents) {
    std::vector<std::uint32_t> want(n_pages, 0);
    std::size_t held = 0;
    for (const auto& w : live) {
      for (const page_id p : c.pages(w.id)) ++want[p];
      if (contents)
        for (std::size_t p = 0; p < c.length(w.id); ++p) REQUIRE(cell(c, w.id, p) == key_of(w.adapter, std::span(w.tokens).first(p + 1)));
    }
    std::size_t used = 0;
    for (page_id p = 0; p < n_pages; ++p) {
      const std::uint32_t references = c.references(p);
      REQUIRE((references == want[p] || references == want[p] + 1));  // one more: the tree
      held += references - want[p];
      used += references != 0 ? 1 : 0;
    }
    REQUIRE(held == tree.size());
    REQUIRE(used + c.free_pages() == n_pages);
  };
  for (int step = 0; step < 100'000; ++step) {
    const std::size_t what = below(16);
    if (live.empty() || (what == 0 && live.size() < 7)) {  // few texts, so that they meet
      writer<Hash> w{&c, &tree, below(2), c.add()};
      std::vector<token_id> text(1 + below(70));
      for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<token_id>(i % 16 == 0 ? below(2) : i);
      w.begin(std::move(text));
      n_found += w.n_found;
      live.push_back(std::move(w));
    } else if (what == 1 && live.size() < 7) {
      writer<Hash> w = live[below(live.size())];
      w.id = c.fork(w.id);
      live.push_back(std::move(w));
    } else if (what == 2) {
      const std::size_t i = below(live.size());
      c.remove(live[i].id);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(i));
    } else if (what == 3) {
      const std::size_t evictable = tree.evictable(), before = c.free_pages();
      const bool evicted = tree.evict();
      REQUIRE(evicted == (evictable != 0));
      REQUIRE(c.free_pages() == before + (evicted ? 1 : 0));
      n_evicted += evicted ? 1 : 0;
    } else {
      writer<Hash>& w = live[below(live.size())];
      const std::size_t start = c.length(w.id), length = (std::min)(max_positions, start + 1 + below(4));
      while (w.tokens.size() < length) w.tokens.push_back(static_cast<token_id>(w.tokens.size() % 16 == 0 ? below(2) : w.tokens.size()));
      if (length == start) continue;
      try {
        w.compute(length);
      } catch (const error& e) {
        REQUIRE(e.code() == errc::out_of_memory);
        REQUIRE(c.length(w.id) == start);
        REQUIRE(tree.evictable() == 0);
        ++n_refused;
      }
    }
    audit(step % 50 == 0);
  }
  for (const auto& w : live) c.remove(w.id);
  while (tree.evict()) {}
  CHECK(tree.size() == 0);
  CHECK(c.free_pages() == n_pages);
  CHECK(n_found > 1000);
  CHECK(n_refused > 100);
  CHECK(n_evicted > 100);
}
