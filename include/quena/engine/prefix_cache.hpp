// SPDX-License-Identifier: MIT
// Which full pages hold the keys and values of which tokens: beginnings of texts that need not be computed again.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "../core/hash.hpp"
#include "../core/token.hpp"
#include "../model/kv_cache.hpp"

namespace quena::inline QUENA_ABI {

/// The hash of a page: of the hash of all before it, and its tokens.
struct chained_hash {
  [[nodiscard]] std::uint64_t operator()(std::uint64_t before, std::span<const token_id> tokens) const noexcept {
    const std::uint64_t parts[] = {before, content_hash(std::as_bytes(tokens))};
    return content_hash(std::as_bytes(std::span(parts)));
  }
};

/// A tree of full pages. A page's key is everything that its keys and values depend on: the adapter, all tokens before it and its own.
/// It is looked up by the chained hash, and taken only if its tokens and its parent are the ones asked for, so that equal hashes of
/// different texts do no harm. The cache is one more holder of each of its pages (kv_cache::retain).
///
/// Whoever holds a page of the tree holds the pages above it, too: sequences begin with a matched path, and insert() tells a sequence
/// that computed the same content once more to hold the tree's page instead. So evict() finds a leaf as long as the tree holds a page
/// that no sequence holds, and those are all that evictable() counts.
/// Cost     match, insert: one hash and one comparison for a page. evict, evictable: a look at every page of the pool.
template <backend B, class Hash = chained_hash>
class prefix_cache {
 public:
  /// A place in the tree: the end of a path. Good as long as a sequence holds the pages on the path.
  struct place {
    std::uint64_t hash = 0;
    std::uint64_t node = 0;                ///< 0: above the first page
    std::optional<page_id> page = {};      ///< of that node
    std::uint64_t adapter = 0;
    bool outside = false;                  ///< a page could not be taken into the tree: nothing below can
  };

  explicit prefix_cache(kv_cache<B>& cache) : cache_(&cache), page_size_(cache.shape().page_size), nodes_(cache.shape().n_pages), tokens_(checked_product(nodes_.size(), page_size_, "prefix_cache")) {}
  prefix_cache(const prefix_cache&) = delete;
  prefix_cache& operator=(const prefix_cache&) = delete;

  [[nodiscard]] place start(std::uint64_t adapter) const noexcept { return {.hash = adapter, .node = 0, .page = {}, .adapter = adapter}; }

  /// Follows the tokens from the start, at most `max_pages` pages, and appends what it finds to `found`; returns where that ends.
  place match(std::uint64_t adapter, std::span<const token_id> tokens, std::size_t max_pages, std::vector<page_id>& found) const {
    place at = start(adapter);
    for (std::size_t i = 0; i < max_pages && (i + 1) * page_size_ <= tokens.size(); ++i) {
      const auto part = tokens.subspan(i * page_size_, page_size_);
      const std::uint64_t hash = hash_(at.hash, part);
      const auto page = find(at, hash, part);
      if (!page) break;
      found.push_back(*page);
      at = {.hash = hash, .node = nodes_[*page].id, .page = *page, .adapter = adapter};
    }
    return at;
  }

  /// Marks a path as used now.
  void touch(std::span<const page_id> path) noexcept {
    ++clock_;
    for (const page_id page : path) nodes_[page].last_used = clock_;
  }

  /// Takes a full page of a sequence into the tree, below `at`, which moves on to it. Returns the page that the sequence should hold
  /// from now on: its own, or the one with the same content that is there already.
  page_id insert(place& at, std::span<const token_id> tokens, page_id page) {
    if (at.outside) return page;
    const std::uint64_t hash = hash_(at.hash, tokens);
    if (const auto known = find(at, hash, tokens)) {
      page = *known;
    } else if (by_hash_.contains(hash)) {  // another text with this hash
      at.outside = true;
      return page;
    } else {
      by_hash_.emplace(hash, page);
      cache_->retain(page);
      nodes_[page] = {.id = ++last_id_, .parent = at.node, .parent_page = at.page, .adapter = at.adapter, .hash = hash, .n_children = 0, .last_used = 0};
      std::copy(tokens.begin(), tokens.end(), tokens_of(page).begin());
      if (at.page) ++nodes_[*at.page].n_children;
    }
    nodes_[page].last_used = ++clock_;
    at = {.hash = hash, .node = nodes_[page].id, .page = page, .adapter = at.adapter};
    return page;
  }

  /// Gives back the page that was not used for longest, of those that nobody else holds and that have none below; false if there is none.
  bool evict() {
    std::optional<page_id> oldest;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      const auto page = static_cast<page_id>(i);
      if (nodes_[i].id != 0 && nodes_[i].n_children == 0 && cache_->references(page) == 1 && (!oldest || nodes_[i].last_used < nodes_[*oldest].last_used)) oldest = page;
    }
    if (!oldest) return false;
    node& gone = nodes_[*oldest];
    by_hash_.erase(gone.hash);
    if (gone.parent_page) --nodes_[*gone.parent_page].n_children;
    gone = {};
    cache_->drop(*oldest);
    return true;
  }

  /// Pages that evict() can give back, one after the other.
  [[nodiscard]] std::size_t evictable() const noexcept {
    std::size_t n = 0;
    for (std::size_t i = 0; i < nodes_.size(); ++i) n += nodes_[i].id != 0 && cache_->references(static_cast<page_id>(i)) == 1 ? 1 : 0;
    return n;
  }
  /// Pages in the tree.
  [[nodiscard]] std::size_t size() const noexcept { return by_hash_.size(); }

 private:
  struct node {
    std::uint64_t id = 0;  // of this node alone, for ever; 0: the page is not in the tree
    std::uint64_t parent = 0;
    std::optional<page_id> parent_page = {};
    std::uint64_t adapter = 0, hash = 0;
    std::size_t n_children = 0;
    std::uint64_t last_used = 0;
  };

  [[nodiscard]] std::span<token_id> tokens_of(page_id page) noexcept { return std::span(tokens_).subspan(page * page_size_, page_size_); }
  [[nodiscard]] std::span<const token_id> tokens_of(page_id page) const noexcept { return std::span(tokens_).subspan(page * page_size_, page_size_); }

  [[nodiscard]] std::optional<page_id> find(const place& below, std::uint64_t hash, std::span<const token_id> tokens) const {
    const auto entry = by_hash_.find(hash);
    if (entry == by_hash_.end()) return {};
    const node& n = nodes_[entry->second];
    const auto held = tokens_of(entry->second);
    if (n.parent != below.node || n.adapter != below.adapter || !std::equal(held.begin(), held.end(), tokens.begin(), tokens.end())) return {};
    return entry->second;
  }

  kv_cache<B>* cache_;
  std::size_t page_size_;
  std::vector<node> nodes_;       // [n_pages]
  std::vector<token_id> tokens_;  // [n_pages, page_size]
  std::unordered_map<std::uint64_t, page_id> by_hash_;
  std::uint64_t last_id_ = 0, clock_ = 0;
  [[no_unique_address]] Hash hash_;
};

}  // namespace quena::inline QUENA_ABI
