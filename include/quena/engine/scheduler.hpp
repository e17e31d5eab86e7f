// SPDX-License-Identifier: MIT
// Which sequences have pages, and which rows the next forward pass computes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "../model/llama.hpp"
#include "answer.hpp"
#include "prefix_cache.hpp"

namespace quena::inline QUENA_ABI::detail {

struct scheduler_options {
  std::size_t token_budget = 512;  ///< rows of a pass
  std::size_t swap_bytes = 0;      ///< for preempted sequences in host memory
  bool share_prefixes = true;
};

/// An answer's place in the schedule. It waits (no pages) or runs (a sequence of the cache).
template <backend B>
struct task {
  answer* text = nullptr;
  rank turn = {};
  std::uint64_t adapter = 0;                       ///< what keys and values depend on beside the tokens
  const lora_weights<B>* weights = nullptr;        ///< of the adapter, if there is one
  std::size_t n_siblings = 0;  ///< answers that will begin with this one's prompt once it is computed

  // The scheduler's own.
  std::optional<sequence_id> sequence = {};
  std::optional<kv_snapshot> swapped = {};
  typename prefix_cache<B>::place place = {};  // of its first n_registered pages
  std::size_t n_registered = 0;
};

/// Tasks in order of rank. In every pass, each running sequence that lacks one token only (decode) gets its row; the rest of the budget goes
/// to those that lack more (prefill), first come, first served.
///
/// Pages are taken in order of rank. Where none is free, the prefix cache gives back those that only it holds, then the last of the
/// running tasks loses its pages and waits again. So the first task always goes on, and each one is the first at some time. A waiting
/// task is begun when a sequence and pages for all of its tokens are free; only the first of them is looked at, so none is overtaken.
///   plan() -> rows() through the model -> passed() -> for each part with `complete`: its logits are there, in order
template <backend B>
class scheduler {
 public:
  struct part {
    task<B>* who;
    bool complete;  ///< its last row is the task's last token: it wants logits
  };

  scheduler(kv_cache<B> cache, const scheduler_options& o) : options_(o), cache_(std::move(cache)), prefixes_(cache_) {
    rows_.reserve(o.token_budget);
    running_.reserve(cache_.max_sequences());
  }
  scheduler(const scheduler&) = delete;
  scheduler& operator=(const scheduler&) = delete;

  [[nodiscard]] kv_cache<B>& cache() noexcept { return cache_; }
  /// The longest sequence that can be computed: alone, it always finds its pages.
  [[nodiscard]] std::size_t max_length() const noexcept { return (std::min)(cache_.max_positions(), cache_.shape().n_pages * cache_.shape().page_size); }

  /// A new task; it must stay where it is until remove().
  void add(task<B>& t) { insert(waiting_, t); }

  /// A new task with what `from` has computed, for nothing; it waits where no sequence is free.
  void fork(task<B>& from, task<B>& t) {
    if (running_.size() == cache_.max_sequences()) return add(t);
    t.sequence = cache_.fork(*from.sequence);
    t.place = from.place, t.n_registered = from.n_registered;
    insert(running_, t);
  }

  /// Forgets a task, wherever it is.
  void remove(task<B>& t) {
    if (!std::erase(running_, &t)) std::erase(waiting_, &t);
    release(t);
    drop_swapped(t);
  }

  /// Chooses the rows of the next pass and makes room for them; rows() is empty if there is nothing to do.
  void plan() {
    rows_.clear(), parts_.clear(), adapters_.clear();
    admit();
    const auto decoding = static_cast<std::size_t>(std::count_if(running_.begin(), running_.end(), [&](const task<B>* t) { return missing(*t) == 1; }));
    std::size_t prefill = options_.token_budget - decoding;
    for (std::size_t i = 0; i < running_.size(); ++i) {  // running_ loses tasks at its end while pages are missing
      task<B>& t = *running_[i];
      const std::size_t lacks = missing(t), n = lacks == 1 ? 1 : (std::min)(lacks, prefill);
      if (n == 0 || !make_room(t, n)) continue;
      if (lacks != 1) prefill -= n;
      const std::size_t start = cache_.length(*t.sequence);
      const std::uint32_t adapter = adapter_index(t);
      for (std::size_t p = start; p < start + n; ++p) rows_.push_back({t.text->tokens()[p], static_cast<std::uint32_t>(p), *t.sequence, p + 1 == t.text->tokens().size(), adapter});
      parts_.push_back({&t, n == lacks});
    }
  }
  [[nodiscard]] std::span<const row> rows() const noexcept { return rows_; }
  /// What row::adapter counts.
  [[nodiscard]] std::span<const lora_weights<B>* const> adapters() const noexcept { return adapters_; }
  [[nodiscard]] std::span<const part> parts() const noexcept { return parts_; }

  /// After the pass: pages that it filled can be shared from now on.
  void passed() {
    if (!options_.share_prefixes) return;
    const std::size_t page_size = cache_.shape().page_size;
    for (const part& p : parts_) {
      task<B>& t = *p.who;
      for (; (t.n_registered + 1) * page_size <= cache_.length(*t.sequence); ++t.n_registered) {
        const page_id own = cache_.pages(*t.sequence)[t.n_registered];
        const page_id held = prefixes_.insert(t.place, t.text->tokens().subspan(t.n_registered * page_size, page_size), own);
        if (held != own) cache_.replace_page(*t.sequence, t.n_registered, held);
      }
    }
  }

  /// What the scheduler knows of the metrics.
  void report(engine_metrics& m) const {
    const std::size_t n_pages = cache_.shape().n_pages;
    m.waiting = waiting_.size(), m.running = running_.size();
    m.pages = n_pages, m.pages_used = n_pages - cache_.free_pages(), m.pages_cached = prefixes_.size();
    m.pages_shared = 0;
    for (std::size_t p = 0; p < n_pages; ++p) m.pages_shared += cache_.references(static_cast<page_id>(p)) > 1 ? 1 : 0;
    m.swapped_bytes = swapped_bytes_, m.prefix_tokens = prefix_tokens_, m.preemptions = preemptions_, m.swaps = swaps_;
  }

 private:
  std::uint32_t adapter_index(const task<B>& t) {
    if (t.weights == nullptr) return no_adapter;
    const auto known = std::find(adapters_.begin(), adapters_.end(), t.weights);
    const auto index = static_cast<std::uint32_t>(known - adapters_.begin());
    if (known == adapters_.end()) adapters_.push_back(t.weights);
    return index;
  }
  static void insert(auto& list, task<B>& t) {
    list.insert(std::upper_bound(list.begin(), list.end(), &t, [](const task<B>* a, const task<B>* b) { return a->turn < b->turn; }), &t);
  }
  /// Tokens whose keys and values are not there.
  [[nodiscard]] std::size_t missing(const task<B>& t) const { return t.text->tokens().size() - cache_.length(*t.sequence); }
  /// Pages for all tokens of the task and the one after them.
  [[nodiscard]] std::size_t wanted_pages(const task<B>& t) const { return cache_.pages_for((std::min)(t.text->tokens().size() + 1, max_length())); }

  /// Begins waiting tasks while rows are left for them. A task that ranks before running ones takes their place.
  void admit() {
    std::size_t backlog = 0;
    for (const task<B>* t : running_) backlog += missing(*t);
    while (!waiting_.empty() && backlog < options_.token_budget) {
      task<B>& t = *waiting_.front();
      found_.clear();
      const auto place = match(t);
      if (!fits(t)) {
        if (!room_behind(t)) return;
        preempt();
        continue;
      }
      waiting_.pop_front();
      begin(t, place);
      backlog += missing(t);
    }
  }

  /// What the prefix cache has of the task's tokens, into found_. The last one is always computed: its logits are wanted.
  typename prefix_cache<B>::place match(const task<B>& t) {
    if (t.swapped || !options_.share_prefixes) return prefixes_.start(t.adapter);
    return prefixes_.match(t.adapter, t.text->tokens(), (t.text->tokens().size() - 1) / cache_.shape().page_size, found_);
  }

  /// Whether there are a sequence and pages for the task (and its siblings), beside those that running tasks will still want.
  [[nodiscard]] bool fits(const task<B>& t) const {
    if (running_.empty()) return true;
    std::size_t sequences = running_.size() + 1 + t.n_siblings, pages = wanted_pages(t) - found_.size() + t.n_siblings;
    for (const task<B>* r : running_) {
      const std::size_t held = cache_.pages(*r->sequence).size(), wanted = wanted_pages(*r);
      sequences += r->n_siblings;
      pages += r->n_siblings + (wanted > held ? wanted - held : 0);
    }
    if (sequences > cache_.max_sequences()) return false;
    if (pages <= cache_.free_pages()) return true;
    for (const page_id page : found_) pages += cache_.references(page) == 1 ? 1 : 0;  // found, hence not to be evicted
    return pages <= cache_.free_pages() + prefixes_.evictable();
  }

  /// Whether the running tasks that rank behind hold enough for it.
  [[nodiscard]] bool room_behind(const task<B>& t) const {
    std::size_t pages = cache_.free_pages() + prefixes_.evictable();
    for (const task<B>* r : running_)
      if (t.turn < r->turn) pages += cache_.pages(*r->sequence).size();
    return !running_.empty() && t.turn < running_.back()->turn && wanted_pages(t) <= pages + found_.size();
  }

  void begin(task<B>& t, const typename prefix_cache<B>::place& place) {
    t.sequence = cache_.add();
    t.place = place, t.n_registered = found_.size();
    insert(running_, t);
    if (t.swapped) {
      free_pages(cache_.pages_for(t.swapped->length));
      cache_.restore(*t.sequence, *t.swapped);
      drop_swapped(t);
      return;
    }
    cache_.share(*t.sequence, found_);
    prefixes_.touch(found_);
    prefix_tokens_ += cache_.length(*t.sequence);
    if (t.text->n_generated() == 0) t.text->cached_tokens = cache_.length(*t.sequence);
  }

  /// Makes the task's next n positions writable; false: it lost its own pages, being the last.
  bool make_room(task<B>& t, std::size_t n) {
    const std::size_t length = cache_.length(*t.sequence) + n;
    while (!free_pages(cache_.pages_needed(*t.sequence, length))) {
      preempt();
      if (!t.sequence) return false;
    }
    cache_.reserve(*t.sequence, length);
    return true;
  }
  bool free_pages(std::size_t n) {
    while (cache_.free_pages() < n)
      if (!prefixes_.evict()) return false;
    return true;
  }

  /// The last running task waits again; its keys and values are kept in host memory, or computed anew later.
  void preempt() {
    task<B>& t = *running_.back();
    running_.pop_back();
    ++preemptions_;
    const std::size_t n_bytes = cache_.pages_for(cache_.length(*t.sequence)) * cache_.shape().page_bytes();
    if (n_bytes != 0 && n_bytes <= options_.swap_bytes - swapped_bytes_) {
      t.swapped = cache_.snapshot(*t.sequence);
      swapped_bytes_ += n_bytes;
      ++swaps_;
    }
    release(t);
    insert(waiting_, t);
  }
  void release(task<B>& t) {
    if (t.sequence) cache_.remove(*t.sequence);
    t.sequence.reset();
  }
  void drop_swapped(task<B>& t) {
    if (t.swapped) swapped_bytes_ -= t.swapped->bytes.size();
    t.swapped.reset();
  }

  scheduler_options options_;
  kv_cache<B> cache_;
  prefix_cache<B> prefixes_;
  std::vector<task<B>*> running_;   // by rank
  std::deque<task<B>*> waiting_;    // by rank
  std::vector<row> rows_;
  std::vector<const lora_weights<B>*> adapters_;  // of rows_
  std::vector<part> parts_;
  std::vector<page_id> found_;      // by match()
  std::size_t swapped_bytes_ = 0, prefix_tokens_ = 0, preemptions_ = 0, swaps_ = 0;
};

}  // namespace quena::inline QUENA_ABI::detail
