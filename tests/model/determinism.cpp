// SPDX-License-Identifier: MIT
// The contract: a sequence's logits are the same, bit for bit, whatever shares the pass with it.
#include <quena/backend/cpu/cpu.hpp>
#include <quena/model/session.hpp>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include "../synthetic_model.hpp"

using namespace quena;
using quena_test::synthetic_model;

namespace {

using logits = std::vector<float>;

std::vector<token_id> random_tokens(std::size_t n, std::size_t vocab_size, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<token_id> ids(n);
  for (token_id& id : ids) id = static_cast<token_id>(random() % vocab_size);
  return ids;
}

bool same(const logits& a, const logits& b) { return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0; }

/// Logits of every position of `ids`, cut into chunks.
logits run(const llama<cpu>& model, std::span<const token_id> ids, std::size_t chunk, const kv_options& cache = {}) {
  session<cpu> s(model, cache, {.max_rows = chunk, .max_logits = chunk});
  logits all;
  s.feed_all(ids, [&](std::size_t, std::span<const float> row) { all.insert(all.end(), row.begin(), row.end()); });
  return all;
}

}  // namespace

TEST_CASE("determinism: threads, chunks and page sizes change no bit") {
  for (const format f : {format::f32, format::f16, format::bf16}) {
    const synthetic_model model_files({.hidden_size = 72, .intermediate_size = 200, .n_heads = 6, .n_kv_heads = 2, .head_dim = 12, .biases = true});
    const checkpoint files = model_files.open();
    const auto ids = random_tokens(130, model_files.options.vocab_size, 7);
    CAPTURE(format_name(f));
    const llama<cpu> one(files, cpu({.threads = 1}), {.format = f});
    const logits want = run(one, ids, ids.size());
    REQUIRE(want.size() == ids.size() * model_files.options.vocab_size);
    CHECK(std::all_of(want.begin(), want.end(), [](float x) { return std::isfinite(x); }));
    for (const int threads : {1, 2, 3, 7}) {
      if (f != format::f32 && threads > 2) continue;  // the split does not know the format
      CAPTURE(threads);
      const llama<cpu> model(files, cpu({.threads = threads}), {.format = f});
      for (const std::size_t chunk : {1u, 7u, 16u, 100u, 130u}) {
        CAPTURE(chunk);
        CHECK(same(run(model, ids, chunk), want));
      }
    }
    for (const std::size_t page_size : {16u, 32u, 48u, 64u, 256u, 512u}) {
      CAPTURE(page_size);
      CHECK(same(run(one, ids, 33, {.page_size = page_size}), want));
    }
  }
}

TEST_CASE("determinism: alone, among other sequences, and in any order of rows") {
  const synthetic_model model_files({.tied = false});
  const checkpoint files = model_files.open();
  const llama<cpu> model(files, cpu({.threads = 2}), {.format = format::bf16});
  const std::size_t vocab_size = model.config().vocab_size;
  const std::size_t n_sequences = 5;
  std::vector<std::vector<token_id>> ids;
  std::vector<logits> alone;
  for (std::uint32_t i = 0; i < n_sequences; ++i) {
    ids.push_back(random_tokens(40 + 31 * i, vocab_size, i));
    alone.push_back(run(model, ids.back(), 64));
  }

  for (std::uint32_t seed = 0; seed < 4; ++seed) {
    kv_cache<cpu> cache = model.make_cache({.max_sequences = n_sequences, .page_size = 16});
    workspace<cpu> ws = model.make_workspace(cache, {.max_rows = 64, .max_logits = 64});
    std::vector<sequence_id> names;
    for (std::size_t i = 0; i < n_sequences; ++i) names.push_back(cache.add());
    std::vector<logits> together(n_sequences);
    std::mt19937 random(seed);
    for (;;) {  // each pass takes a random number of rows of each sequence, shuffled between sequences
      std::vector<std::size_t> turns;
      for (std::size_t i = 0; i < n_sequences; ++i) {
        const std::size_t left = ids[i].size() - cache.length(names[i]);
        turns.insert(turns.end(), (std::min)(left, std::size_t{random() % 13}), i);
      }
      std::shuffle(turns.begin(), turns.end(), random);
      std::vector<row> rows;
      std::vector<std::size_t> taken(n_sequences);
      for (const std::size_t i : turns) {
        const std::size_t at = cache.length(names[i]) + taken[i]++;
        rows.push_back({ids[i][at], static_cast<std::uint32_t>(at), names[i], true});
      }
      if (rows.empty()) {
        bool done = true;
        for (std::size_t i = 0; i < n_sequences; ++i) done &= cache.length(names[i]) == ids[i].size();
        if (done) break;
        continue;
      }
      const forward_output out = model.forward(rows, cache, ws);
      for (std::size_t i = 0; i < rows.size(); ++i) together[turns[i]].insert(together[turns[i]].end(), out.logits[i].data(), out.logits[i].data() + vocab_size);
    }
    for (std::size_t i = 0; i < n_sequences; ++i) CHECK(same(together[i], alone[i]));
  }
}

TEST_CASE("determinism: resumed, forked and rewound sequences") {
  const synthetic_model model_files;
  const checkpoint files = model_files.open();
  const llama<cpu> model(files, cpu({.threads = 2}), {.format = format::f16});
  const auto ids = random_tokens(120, model.config().vocab_size, 3);
  const logits want = run(model, ids, 120);
  const std::span<const float> last = std::span(want).last(model.config().vocab_size);
  const auto same_as_last = [&](std::span<const float> got) { return std::equal(got.begin(), got.end(), last.begin(), last.end()); };

  for (const std::size_t cut : {1u, 15u, 16u, 17u, 64u, 119u}) {
    CAPTURE(cut);
    session<cpu> first(model);
    first.feed(std::span(ids).first(cut));
    const session<cpu>::state saved = first.snapshot();
    CHECK(same_as_last(first.feed(std::span(ids).subspan(cut))));

    session<cpu> second(model);
    second.feed(random_tokens(50, model.config().vocab_size, 9));  // restore replaces what was there
    second.restore(saved);
    CHECK(second.length() == cut);
    CHECK(same_as_last(second.feed(std::span(ids).subspan(cut))));

    second.rewind(cut);
    second.feed(random_tokens(30, model.config().vocab_size, 10));
    second.rewind(cut);
    CHECK(same_as_last(second.feed(std::span(ids).subspan(cut))));

    kv_cache<cpu> cache = model.make_cache({.max_sequences = 2});
    workspace<cpu> ws = model.make_workspace(cache);
    const sequence_id a = cache.add();
    std::vector<row> rows;
    for (std::size_t i = 0; i < cut; ++i) rows.push_back({ids[i], static_cast<std::uint32_t>(i), a});
    model.forward(rows, cache, ws);
    const sequence_id b = cache.fork(a);
    for (const sequence_id s : {a, b}) {  // each writes into what they shared
      rows.clear();
      for (std::size_t i = cut; i < ids.size(); ++i) rows.push_back({ids[i], static_cast<std::uint32_t>(i), s, i + 1 == ids.size()});
      const forward_output out = model.forward(rows, cache, ws);
      CHECK(same_as_last(out.logits[0].span()));
    }
  }
}

TEST_CASE("determinism: every executor") {
  const synthetic_model model_files;
  const checkpoint files = model_files.open();
  const auto ids = random_tokens(90, model_files.options.vocab_size, 5);
  const logits want = run(llama<cpu>(files, cpu({.threads = 1})), ids, 90);
  serial_executor serial;
  thread_pool pool(3);
  host_executor host(4, [](std::size_t n, auto task) {
    for (std::size_t i = n; i-- > 0;) task(i);  // backwards: an order is nowhere promised
  });
  CHECK(same(run(llama<cpu>(files, cpu(serial)), ids, 13), want));
  CHECK(same(run(llama<cpu>(files, cpu(pool)), ids, 13), want));
  CHECK(same(run(llama<cpu>(files, cpu(host)), ids, 13), want));
}
