// SPDX-License-Identifier: MIT
// Byte-pair encoding of one word: a table of merges, and the loop that applies them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "../core/error.hpp"
#include "vocabulary.hpp"

namespace quena::inline QUENA_ABI {
namespace detail {

/// (left, right) -> the token they make and its rank; the lowest rank is merged first.
class merge_table {
 public:
  static constexpr std::uint32_t no_rank = (std::numeric_limits<std::uint32_t>::max)();

  struct merge {
    std::uint32_t rank = no_rank;
    token_id id = no_token;
  };

  merge_table() = default;
  explicit merge_table(std::size_t n_merges) : slots_(hash_capacity(n_merges)) {}

  /// Adds a merge; of one pair given twice the first counts. At most the constructor's number of them.
  void add(token_id left, token_id right, merge m, std::string_view where, std::string_view file) {
    const std::uint64_t key = pack(left, right);
    std::size_t i = start(key);
    for (std::size_t probes = 0; slots_[i].key != empty; ++probes, i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].key == key) return;
      if (probes > max_probes) fail(errc::malformed, where, "expected merges that differ at random, got far too many alike", file);
    }
    slots_[i] = {key, m};
    if (left < n_dense && right < n_dense) dense_[dense_index(left, right)] = m;
  }

  [[nodiscard]] merge find(token_id left, token_id right) const noexcept {
    if ((left | right) < n_dense) return dense_[dense_index(left, right)];
    const std::uint64_t key = pack(left, right);
    for (std::size_t i = start(key);; i = (i + 1) & (slots_.size() - 1)) {
      const slot& s = slots_[i];
      if (s.key == key) return s.value;
      if (s.key == empty) return {};
    }
  }

 private:
  static constexpr std::uint64_t empty = (std::numeric_limits<std::uint64_t>::max)();  // no pair: ids are not negative

  struct slot {
    std::uint64_t key = empty;
    merge value;
  };

  // Half of all look-ups are of two bytes, and in byte-level vocabularies those are the first ids: a plain square for them.
  static constexpr token_id n_dense = 256;
  static std::size_t dense_index(token_id left, token_id right) noexcept { return static_cast<std::size_t>(left * n_dense + right); }

  static std::uint64_t pack(token_id left, token_id right) noexcept {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
  }
  [[nodiscard]] std::size_t start(std::uint64_t key) const noexcept {
    key *= hash_factor;
    return (key ^ key >> 32) & (slots_.size() - 1);
  }

  std::vector<slot> slots_ = std::vector<slot>(16);
  std::vector<merge> dense_ = std::vector<merge>(n_dense * n_dense);
};

/// Applies merges to the symbols of one word: again and again the pair with the lowest rank, the leftmost of equals, becomes one
/// symbol, until no neighbours have a merge. Holds the scratch memory, so one object serves all words of a call.
/// Cost     short words: a scan per merge over an array; long ones: n log n with a heap. No recursion.
/// Source   Sennrich et al. 2016, arXiv:1508.07909.
class bpe_merger {
 public:
  explicit bpe_merger(const merge_table& merges) : merges_(merges) {}

  /// `symbols` is used up; the result is appended to `out`.
  void run(std::span<token_id> symbols, std::vector<token_id>& out) {
    if (symbols.size() <= scan_limit)
      scan(symbols, out);
    else
      heap(symbols, out);
  }

 private:
  static constexpr std::size_t scan_limit = 64;

  void scan(std::span<token_id> ids, std::vector<token_id>& out) const {
    std::uint32_t rank[scan_limit];  // of the pair (ids[i], ids[i+1]), and what it makes; two arrays, as only ranks are scanned
    token_id made[scan_limit];
    const auto look = [&](std::size_t i) {
      const merge_table::merge m = merges_.find(ids[i], ids[i + 1]);
      rank[i] = m.rank;
      made[i] = m.id;
    };
    std::size_t n = ids.size();
    for (std::size_t i = 0; i + 1 < n; ++i) look(i);
    while (n > 1) {
      std::size_t best = 0;
      for (std::size_t i = 1; i + 1 < n; ++i)
        if (rank[i] < rank[best]) best = i;
      if (rank[best] == merge_table::no_rank) break;
      ids[best] = made[best];
      --n;
      for (std::size_t i = best + 1; i < n; ++i) ids[i] = ids[i + 1];
      for (std::size_t i = best + 1; i + 1 < n; ++i) {
        rank[i] = rank[i + 1];
        made[i] = made[i + 1];
      }
      if (best > 0) look(best - 1);
      if (best + 1 < n) look(best);
    }
    out.insert(out.end(), ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(n));
  }

  struct node {
    std::uint32_t previous, next;  // indices of the living neighbours; `none` at the ends
    merge_table::merge pair;       // what this symbol and the next make
  };
  static constexpr std::uint32_t none = (std::numeric_limits<std::uint32_t>::max)();

  void heap(std::span<token_id> ids, std::vector<token_id>& out) {
    const auto n = static_cast<std::uint32_t>(ids.size());
    nodes_.resize(n);
    queue_.clear();
    const auto push = [this](std::uint32_t i) {  // smallest (rank, place) on top
      if (nodes_[i].pair.rank != merge_table::no_rank) queue_.push_back(~(static_cast<std::uint64_t>(nodes_[i].pair.rank) << 32 | i));
    };
    for (std::uint32_t i = 0; i < n; ++i) {
      nodes_[i] = {i == 0 ? none : i - 1, i + 1 == n ? none : i + 1, {}};
      if (i + 1 < n) nodes_[i].pair = merges_.find(ids[i], ids[i + 1]);
      push(i);
    }
    std::make_heap(queue_.begin(), queue_.end());
    const auto renew = [&](std::uint32_t i) {
      node& a = nodes_[i];
      a.pair = a.next == none ? merge_table::merge{} : merges_.find(ids[i], ids[a.next]);
      const std::size_t before = queue_.size();
      push(i);
      if (queue_.size() > before) std::push_heap(queue_.begin(), queue_.end());
    };
    while (!queue_.empty()) {
      std::pop_heap(queue_.begin(), queue_.end());
      const std::uint64_t top = ~queue_.back();
      queue_.pop_back();
      const auto i = static_cast<std::uint32_t>(top);
      node& a = nodes_[i];
      if (a.pair.rank != static_cast<std::uint32_t>(top >> 32)) continue;  // its neighbours have changed since
      const std::uint32_t gone = a.next;
      ids[i] = a.pair.id;
      a.next = nodes_[gone].next;
      nodes_[gone].pair = {};
      if (a.next != none) nodes_[a.next].previous = i;
      renew(i);
      if (a.previous != none) renew(a.previous);
    }
    for (std::uint32_t i = 0; i != none; i = nodes_[i].next) out.push_back(ids[i]);
  }

  const merge_table& merges_;
  std::vector<node> nodes_;
  std::vector<std::uint64_t> queue_;
};

}  // namespace detail
}  // namespace quena::inline QUENA_ABI
