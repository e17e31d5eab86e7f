// SPDX-License-Identifier: MIT
// The paged cache against a simple idea of it: each sequence is a list of numbers.
#include <quena/backend/reference.hpp>
#include <quena/model/kv_cache.hpp>

#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include <doctest/doctest.h>

#include "../support.hpp"

using namespace quena;

namespace {

using cache_type = kv_cache<reference>;

cache_type make(std::size_t n_pages, std::size_t max_positions, std::size_t max_sequences, std::size_t page_size = 16, dtype cell = dtype::f32) {
  return cache_type(std::make_shared<const reference>(), {2, 1, 2, page_size, n_pages, cell}, max_positions, max_sequences);
}

float* cell(cache_type& c, sequence_id id, std::size_t position, std::size_t layer) {
  const std::size_t page_size = c.shape().page_size;
  return c.pool().at(c.pages(id)[position / page_size], layer, 1, 0, position % page_size);
}

/// Appends a value as a forward pass does: reserve, write, lengthen.
void append(cache_type& c, sequence_id id, const std::vector<float>& values) {
  const std::size_t start = c.length(id);
  c.reserve(id, start + values.size());
  for (std::size_t i = 0; i < values.size(); ++i)
    for (std::size_t layer = 0; layer < 2; ++layer) cell(c, id, start + i, layer)[1] = values[i] + static_cast<float>(layer);
  c.set_length(id, start + values.size());
}

std::vector<float> content(cache_type& c, sequence_id id) {
  std::vector<float> values(c.length(id));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = cell(c, id, i, 0)[1];
    if (cell(c, id, i, 1)[1] != values[i] + 1) values[i] = -1;  // the layers belong together
  }
  return values;
}

}  // namespace

TEST_CASE("kv_cache: pages come and go with the length") {
  cache_type c = make(4, 64, 2);
  CHECK(c.free_pages() == 4);
  CHECK(c.n_bytes() == 4 * c.shape().page_bytes());
  const sequence_id a = c.add();
  CHECK(c.length(a) == 0);
  append(c, a, {1});
  CHECK(c.free_pages() == 3);
  append(c, a, std::vector<float>(15, 2));
  CHECK(c.free_pages() == 3);
  append(c, a, {3});
  CHECK(c.free_pages() == 2);
  c.rewind(a, 16);
  CHECK(c.free_pages() == 3);
  c.rewind(a, 0);
  CHECK(c.free_pages() == 4);
  append(c, a, std::vector<float>(64, 1));
  CHECK(c.free_pages() == 0);
  c.remove(a);
  CHECK(c.free_pages() == 4);
  CHECK(quena_test::code_of([&] { static_cast<void>(c.length(a)); }) == errc::invalid_argument);
}

TEST_CASE("kv_cache: a fork shares pages until one of the two writes") {
  cache_type c = make(6, 64, 3);
  const sequence_id a = c.add();
  append(c, a, std::vector<float>(20, 5));
  const sequence_id b = c.fork(a);
  CHECK(c.free_pages() == 4);
  CHECK(content(c, b) == content(c, a));
  append(c, b, {7});
  CHECK(c.free_pages() == 3);  // the second page was copied
  CHECK(c.pages(a)[0] == c.pages(b)[0]);
  CHECK(c.pages(a)[1] != c.pages(b)[1]);
  append(c, a, {9});
  CHECK(c.free_pages() == 3);  // nobody else has it any more
  CHECK(content(c, a).back() == 9);
  CHECK(content(c, b).back() == 7);
  c.remove(a);
  CHECK(content(c, b).front() == 5);
  CHECK(content(c, b).size() == 21);
  c.remove(b);
  CHECK(c.free_pages() == 6);
}

TEST_CASE("kv_cache: pages reserved by a pass that failed are not shared, and asking for nothing copies nothing") {
  cache_type c = make(6, 64, 2);
  const sequence_id a = c.add();
  append(c, a, std::vector<float>(20, 5));
  c.reserve(a, 60);
  CHECK(c.free_pages() == 2);
  const sequence_id b = c.fork(a);
  CHECK(c.free_pages() == 4);
  CHECK(c.pages(b).size() == 2);
  c.reserve(b, 20);
  CHECK(c.free_pages() == 4);
  append(c, a, std::vector<float>(30, 6));
  append(c, b, std::vector<float>(10, 7));
  CHECK(content(c, a).back() == 6);
  CHECK(content(c, b).back() == 7);
  CHECK(content(c, a)[20] == 6);
}

TEST_CASE("kv_cache: what does not fit is refused and changes nothing") {
  cache_type c = make(3, 64, 2);
  const sequence_id a = c.add(), b = c.add();
  CHECK(quena_test::code_of([&] { static_cast<void>(c.add()); }) == errc::out_of_memory);
  append(c, a, std::vector<float>(30, 1));
  CHECK(quena_test::code_of([&] { append(c, b, std::vector<float>(17, 2)); }) == errc::out_of_memory);
  CHECK(c.free_pages() == 1);
  CHECK(c.length(b) == 0);
  CHECK(quena_test::code_of([&] { append(c, b, std::vector<float>(65, 2)); }) == errc::context_overflow);
  CHECK_THROWS_WITH_AS(c.reserve(b, 65), "[kv_cache] expected at most 64 positions, got 65", error);
  CHECK(quena_test::code_of([&] { static_cast<void>(c.fork(a)); }) == errc::out_of_memory);  // no third sequence
  CHECK(quena_test::code_of([&] { c.rewind(a, 31); }) == errc::invalid_argument);
  CHECK(quena_test::code_of([&] { c.remove(2); }) == errc::invalid_argument);
  CHECK(quena_test::code_of([&] { c.reserve(77, 1); }) == errc::invalid_argument);
  CHECK(quena_test::code_of([&] { static_cast<void>(c.snapshot(77)); }) == errc::invalid_argument);
  append(c, b, std::vector<float>(16, 2));
  CHECK(content(c, a) == std::vector<float>(30, 1));
  CHECK(content(c, b) == std::vector<float>(16, 2));

  c.remove(b);
  const sequence_id fork = c.fork(a);
  append(c, fork, {3});  // the last free page, for the copy
  CHECK(quena_test::code_of([&] { append(c, fork, {1, 1}); }) == errc::out_of_memory);
  CHECK(content(c, fork).size() == 31);
}

TEST_CASE("kv_cache: a copy that finds no page leaves the fork as it was") {
  cache_type c = make(2, 64, 2);
  const sequence_id a = c.add();
  append(c, a, std::vector<float>(20, 1));
  const sequence_id b = c.fork(a);
  CHECK(quena_test::code_of([&] { append(c, b, {2}); }) == errc::out_of_memory);
  CHECK(content(c, b) == std::vector<float>(20, 1));
  c.remove(a);
  append(c, b, {2});  // now the pages are its own
  CHECK(content(c, b).size() == 21);
}

TEST_CASE("kv_cache: sizes that make no sense") {
  CHECK(quena_test::code_of([] { make(4, 64, 1, 0); }) == errc::invalid_argument);
  CHECK(quena_test::code_of([] { make(4, 64, 1, 17); }) == errc::invalid_argument);
  CHECK(quena_test::code_of([] { make(4, 64, 1, 16, dtype::q8_0); }) == errc::invalid_argument);
  CHECK(quena_test::code_of([] { make(0, 64, 1); }) == errc::invalid_argument);
  CHECK(quena_test::code_of([] { make(4, 0, 1); }) == errc::invalid_argument);
  CHECK(quena_test::code_of([] { make(4, 64, 0); }) == errc::invalid_argument);
  CHECK(quena_test::code_of([] { make(4, std::size_t{1} << 32, 1); }) == errc::invalid_argument);
  CHECK(quena_test::code_of([] { make(std::size_t{1} << 60, 64, 1); }) == errc::out_of_memory);
  CHECK(quena_test::code_of([] { make(4, 64, 1, std::size_t{1} << 62); }) == errc::out_of_memory);
}

TEST_CASE("kv_cache: snapshots") {
  for (const dtype type : {dtype::f32, dtype::f16, dtype::bf16}) {
    cache_type c = make(4, 48, 2, 16, type), other = make(8, 64, 1, 16, type);
    const sequence_id a = c.add();
    append(c, a, {1, 2, 3});
    append(c, a, std::vector<float>(20, 4));
    const kv_snapshot shot = c.snapshot(a);
    CHECK(shot.length == 23);
    CHECK(shot.bytes.size() == 2 * c.shape().page_bytes());
    const std::vector<float> before = content(c, a);
    append(c, a, std::vector<float>(20, 5));
    c.restore(a, shot);
    CHECK(content(c, a) == before);
    CHECK(c.free_pages() == 2);
    const sequence_id b = other.add();  // another cache with the same shape of cells
    other.restore(b, shot);
    CHECK(content(other, b) == before);

    const sequence_id full = c.add();
    append(c, full, std::vector<float>(17, 6));
    const kv_snapshot large = [&] {
      append(other, b, std::vector<float>(20, 7));
      return other.snapshot(b);
    }();
    CHECK(large.length == 43);
    CHECK(quena_test::code_of([&] { c.restore(full, large); }) == errc::out_of_memory);  // three pages: two of its own, none free
    CHECK(content(c, full) == std::vector<float>(17, 6));
    kv_snapshot bad = shot;
    bad.bytes.pop_back();
    CHECK(quena_test::code_of([&] { c.restore(a, bad); }) == errc::invalid_argument);
    bad = shot, bad.length = 10;
    CHECK(quena_test::code_of([&] { c.restore(a, bad); }) == errc::invalid_argument);
    bad = shot, bad.length = std::size_t(-1);
    CHECK(quena_test::code_of([&] { c.restore(a, bad); }) == errc::invalid_argument);
    bad = shot, bad.shape.head_dim = 4;
    CHECK(quena_test::code_of([&] { c.restore(a, bad); }) == errc::invalid_argument);
    CHECK(content(c, a) == before);
  }
}

TEST_CASE("kv_cache: random operations against lists of numbers") {
  for (std::uint32_t seed = 1; seed <= 30; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
    const std::size_t n_pages = 3 + below(12), page_size = below(2) == 0 ? 16 : 32, max_positions = 100, max_sequences = 1 + below(5);
    cache_type c = make(n_pages, max_positions, max_sequences, page_size);
    std::map<sequence_id, std::vector<float>> want;
    std::vector<std::pair<kv_snapshot, std::vector<float>>> shots;
    float next = 1;
    std::size_t n_refused = 0;
    const auto any = [&] { return std::next(want.begin(), static_cast<std::ptrdiff_t>(below(want.size())))->first; };

    for (int step = 0; step < 400; ++step) {
      const std::size_t free_before = c.free_pages();
      try {
        switch (const std::size_t what = want.empty() ? 0 : below(10); what) {
          case 0: {
            const sequence_id id = c.add();
            REQUIRE(want.count(id) == 0);
            want[id] = {};
            break;
          }
          case 1: {
            const sequence_id id = any();
            if (below(3) != 0) break;
            c.remove(id);
            want.erase(id);
            break;
          }
          case 2: {
            const sequence_id id = any();
            const std::size_t length = below(want[id].size() + 1);
            c.rewind(id, length);
            want[id].resize(length);
            break;
          }
          case 3: {
            const sequence_id from = any(), id = c.fork(from);
            REQUIRE(want.count(id) == 0);
            want[id] = want[from];
            break;
          }
          case 4: {
            const sequence_id id = any();
            shots.emplace_back(c.snapshot(id), want[id]);
            if (shots.size() > 4) shots.erase(shots.begin());
            break;
          }
          case 5: {
            if (shots.empty()) break;
            const sequence_id id = any();
            const auto& [shot, values] = shots[below(shots.size())];
            c.restore(id, shot);
            want[id] = values;
            break;
          }
          case 6: {  // a pass that fails after its pages were reserved
            const sequence_id id = any();
            c.reserve(id, want[id].size() + below(30));
            c.rewind(id, want[id].size());
            break;
          }
          default: {
            const sequence_id id = any();
            std::vector<float> values(1 + below(below(4) == 0 ? 40 : 5));
            for (float& v : values) v = next++;
            append(c, id, values);
            want[id].insert(want[id].end(), values.begin(), values.end());
          }
        }
      } catch (const error& e) {
        ++n_refused;
        REQUIRE((e.code() == errc::out_of_memory || e.code() == errc::context_overflow));
        REQUIRE(c.free_pages() == free_before);
      }
      std::set<page_id> used;
      for (const auto& [id, values] : want) {
        REQUIRE(c.length(id) == values.size());
        REQUIRE(content(c, id) == values);
        REQUIRE(c.pages(id).size() == (values.size() + page_size - 1) / page_size);
        used.insert(c.pages(id).begin(), c.pages(id).end());
      }
      REQUIRE(used.size() + c.free_pages() == n_pages);  // no page is lost, none is given out twice
    }
    CHECK(n_refused > 0);
    for (const auto& [id, values] : want) c.remove(id);
    CHECK(c.free_pages() == n_pages);
  }
}

TEST_CASE("kv_cache: full pages are shared, kept and exchanged") {
  cache_type c = make(6, 64, 3);
  const sequence_id a = c.add();
  append(c, a, std::vector<float>(40, 5));
  const std::vector<page_id> full(c.pages(a).begin(), c.pages(a).begin() + 2);
  c.retain(full[0]);
  CHECK(c.references(full[0]) == 2);

  const sequence_id b = c.add();
  c.reserve(b, 3);  // a reserved page is given back
  c.share(b, full);
  CHECK(c.length(b) == 32);
  CHECK(c.free_pages() == 3);
  CHECK(c.pages_needed(b, 32) == 0);
  CHECK(c.pages_needed(b, 33) == 1);
  append(c, b, {7});
  CHECK(content(c, a) == std::vector<float>(40, 5));
  c.rewind(b, 20);
  CHECK(c.pages_needed(b, 21) == 1);  // a copy
  append(c, b, {8});
  CHECK(content(c, a) == std::vector<float>(40, 5));
  CHECK(content(c, b).back() == 8);

  c.remove(a), c.remove(b);
  CHECK(c.free_pages() == 5);
  const sequence_id again = c.add();
  c.share(again, std::span(full).first(1));
  CHECK(content(c, again) == std::vector<float>(16, 5));
  c.drop(full[0]);
  CHECK(c.references(full[0]) == 1);

  const sequence_id same = c.add();
  append(c, same, std::vector<float>(18, 5));
  c.replace_page(same, 0, full[0]);
  CHECK(c.pages(same)[0] == full[0]);
  CHECK(c.free_pages() == 4);
  CHECK(content(c, same) == std::vector<float>(18, 5));
  c.remove(again), c.remove(same);
  CHECK(c.free_pages() == 6);
}

TEST_CASE("kv_cache: pages that nobody holds, or that do not fit, are not shared") {
  cache_type c = make(6, 32, 3);
  const sequence_id a = c.add(), b = c.add();
  append(c, a, std::vector<float>(20, 5));
  const page_id held = c.pages(a)[0], unheld = c.pages(a)[1] == 5 ? 4 : 5;
  CHECK(c.references(unheld) == 0);
  CHECK(c.references(77) == 0);
  const std::vector<page_id> wrong = {held, unheld}, outside = {77}, many = {held, held, held};
  CHECK(quena_test::code_of([&] { c.share(b, wrong); }) == errc::invalid_argument);
  CHECK(quena_test::code_of([&] { c.share(b, outside); }) == errc::invalid_argument);
  CHECK(quena_test::code_of([&] { c.share(b, many); }) == errc::context_overflow);
  CHECK(quena_test::code_of([&] { c.share(a, std::span(&held, 1)); }) == errc::invalid_argument);
  CHECK(quena_test::code_of([&] { c.retain(unheld); }) == errc::invalid_argument);
  CHECK(quena_test::code_of([&] { c.drop(unheld); }) == errc::invalid_argument);
  CHECK(quena_test::code_of([&] { c.replace_page(a, 1, held); }) == errc::invalid_argument);  // half full
  CHECK(quena_test::code_of([&] { c.replace_page(a, 0, unheld); }) == errc::invalid_argument);
  CHECK(c.references(held) == 1);
  CHECK(c.length(b) == 0);
}
