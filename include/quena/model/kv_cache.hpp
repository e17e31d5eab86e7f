// SPDX-License-Identifier: MIT
// The paged cache: keys and values of many sequences in pages that they may share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../backend/backend.hpp"
#include "../core/error.hpp"

namespace quena::inline QUENA_ABI {

using sequence_id = std::uint32_t;

/// How much a cache holds.
struct kv_options {
  std::size_t max_positions = 0;    ///< longest sequence; 0: the model's max_position_embeddings, 4096 at most
  std::size_t max_sequences = 1;    ///< sequences at the same time
  std::size_t page_size = 16;       ///< positions per page, a multiple of 16
  std::size_t n_pages = 0;          ///< pages in all; 0: as many as n_bytes allows
  std::size_t n_bytes = 0;          ///< a budget for the pages together; 0: enough for max_sequences of max_positions
  std::optional<dtype> cell = {};   ///< f32, f16, bf16 or i8; none: f32 for a model in f32, f16 otherwise
};

/// A sequence's cache as bytes of the host's, to be restored into any cache of the same shape on the same backend.
struct kv_snapshot {
  kv_shape shape;  ///< n_pages does not matter
  std::size_t length = 0;
  std::vector<std::byte> bytes;
};

/// Pages are reference counted: fork() shares them all and a page is copied when one of its owners is about to write to it.
/// A sequence holds positions 0 … length-1; forward() appends. Not for use by two threads at once.
/// Errors   out_of_memory: no free page (the sequences are as they were); context_overflow: past max_positions;
///          invalid_argument: no such sequence. All leave the cache usable.
template <backend B>
class kv_cache {
 public:
  /// Errors   invalid_argument: page_size not a positive multiple of 16, a cell type other than f32, f16, bf16, i8, zero sizes.
  kv_cache(std::shared_ptr<const B> backend, kv_shape shape, std::size_t max_positions, std::size_t max_sequences)
      : backend_(std::move(backend)), max_positions_(checked(shape, max_positions, max_sequences)), pool_(backend_->make_kv_pool(shape)),
        stream_(backend_->make_stream({})), references_(shape.n_pages, 0), sequences_(max_sequences) {
    free_.reserve(shape.n_pages);
    for (std::size_t p = shape.n_pages; p-- > 0;) free_.push_back(static_cast<page_id>(p));
    for (sequence& s : sequences_) s.pages.reserve((std::min)(pages_for(max_positions), shape.n_pages));
  }

  [[nodiscard]] const kv_shape& shape() const noexcept { return pool_.shape(); }
  [[nodiscard]] std::size_t max_positions() const noexcept { return max_positions_; }
  [[nodiscard]] std::size_t max_sequences() const noexcept { return sequences_.size(); }
  [[nodiscard]] std::size_t free_pages() const noexcept { return free_.size(); }
  /// Bytes of the keys and values when every page is in use.
  [[nodiscard]] std::size_t n_bytes() const noexcept { return shape().n_pages * shape().page_bytes(); }

  /// A new, empty sequence.  Errors   out_of_memory when max_sequences exist.
  [[nodiscard]] sequence_id add() {
    for (std::size_t i = 0; i < sequences_.size(); ++i)
      if (!sequences_[i].live) {
        sequences_[i].live = true;
        return static_cast<sequence_id>(i);
      }
    fail(errc::out_of_memory, "kv_cache", {"expected at most ", sequences_.size(), " sequences, got one more"});
  }
  void remove(sequence_id id) {
    rewind(id, 0);
    sequences_[id].live = false;
  }
  [[nodiscard]] std::size_t length(sequence_id id) const { return at(id).length; }

  /// Forgets all positions from `length` on.
  void rewind(sequence_id id, std::size_t length) {
    sequence& s = at(id);
    if (length > s.length)
      fail(errc::invalid_argument, "kv_cache", {"expected a length of at most ", s.length, ", got ", length});
    s.length = length;
    while (s.pages.size() > pages_for(length)) {
      release(s.pages.back());
      s.pages.pop_back();
    }
  }

  /// A new sequence with the same content, sharing all pages.
  [[nodiscard]] sequence_id fork(sequence_id id) {
    static_cast<void>(at(id));
    const sequence_id copy = add();
    rewind_reserved(id);
    for (const page_id page : sequences_[id].pages) {
      sequences_[copy].pages.push_back(page);
      ++references_[page];
    }
    sequences_[copy].length = sequences_[id].length;
    return copy;
  }

  /// Lets an empty sequence begin with full pages that others hold: positions 0 … pages.size() * page_size - 1.
  void share(sequence_id id, std::span<const page_id> pages) {
    sequence& s = at(id);
    if (s.length != 0) fail(errc::invalid_argument, "kv_cache", {"expected an empty sequence to share pages with, got one of ", s.length});
    if (pages.size() * shape().page_size > max_positions_)
      fail(errc::context_overflow, "kv_cache", {"expected at most ", max_positions_, " positions, got ", pages.size() * shape().page_size});
    for (const page_id page : pages) check_held(page);
    rewind(id, 0);  // reserved pages
    for (const page_id page : pages) {
      s.pages.push_back(page);
      ++references_[page];
    }
    s.length = pages.size() * shape().page_size;
  }
  /// Puts `page`, which others hold and whose content is the same, in the place of the sequence's page at `index`.
  void replace_page(sequence_id id, std::size_t index, page_id page) {
    sequence& s = at(id);
    check_held(page);
    if (index >= s.length / shape().page_size)
      fail(errc::invalid_argument, "kv_cache", {"expected one of ", s.length / shape().page_size, " full pages, got ", index});
    ++references_[page];
    release(s.pages[index]);
    s.pages[index] = page;
  }
  /// Keeps a page that is in use, without a sequence, until drop().
  void retain(page_id page) {
    check_held(page);
    ++references_[page];
  }
  void drop(page_id page) {
    check_held(page);
    release(page);
  }
  /// How many hold the page: sequences, and calls of retain(). 0: it is free.
  [[nodiscard]] std::uint32_t references(page_id page) const noexcept { return page < references_.size() ? references_[page] : 0; }

  [[nodiscard]] kv_snapshot snapshot(sequence_id id) {
    const sequence& s = at(id);
    kv_snapshot shot{shape(), s.length, std::vector<std::byte>(pages_for(s.length) * shape().page_bytes())};
    for (std::size_t p = 0; p < pages_for(s.length); ++p)
      backend_->read_page(stream_, pool_, s.pages[p], std::span(shot.bytes).subspan(p * shape().page_bytes(), shape().page_bytes()));
    return shot;
  }
  /// Replaces the sequence's content.
  /// Errors   invalid_argument: a snapshot of another shape, or with the wrong number of bytes; out_of_memory: not enough pages.
  void restore(sequence_id id, const kv_snapshot& shot) {
    const kv_shape &a = shape(), &b = shot.shape;
    if (a.n_layers != b.n_layers || a.n_kv_heads != b.n_kv_heads || a.head_dim != b.head_dim || a.page_size != b.page_size || a.cell != b.cell ||
        shot.length > max_positions_ || shot.bytes.size() != pages_for(shot.length) * a.page_bytes())
      fail(errc::invalid_argument, "kv_cache", "expected a snapshot of a cache of the same shape, got another one");
    std::size_t available = free_.size();
    for (const page_id page : at(id).pages) available += references_[page] == 1 ? 1 : 0;
    if (pages_for(shot.length) > available)
      fail(errc::out_of_memory, "kv_cache", {"expected ", pages_for(shot.length), " free pages, got ", available});
    rewind(id, 0);
    reserve(id, shot.length);
    for (std::size_t p = 0; p < pages_for(shot.length); ++p)
      backend_->write_page(stream_, pool_, at(id).pages[p], std::span(shot.bytes).subspan(p * a.page_bytes(), a.page_bytes()));
    at(id).length = shot.length;
  }

  /// Makes positions up to `new_length` writable: takes pages, and copies a shared one that would be written to.
  void reserve(sequence_id id, std::size_t new_length) {
    sequence& s = at(id);
    if (new_length > max_positions_)
      fail(errc::context_overflow, "kv_cache", {"expected at most ", max_positions_, " positions, got ", new_length});
    const std::size_t missing = pages_needed(id, new_length);
    if (missing > free_.size()) fail(errc::out_of_memory, "kv_cache", {"expected ", missing, " free pages, got ", free_.size()});
    if (writes_shared(s, new_length)) {
      page_id& shared = s.pages[s.length / shape().page_size];
      const page_id copy = take();
      backend_->copy_page(stream_, pool_, shared, copy);
      release(shared);
      shared = copy;
    }
    while (s.pages.size() < pages_for(new_length)) s.pages.push_back(take());
  }
  /// How many free pages reserve(id, new_length) takes.
  [[nodiscard]] std::size_t pages_needed(sequence_id id, std::size_t new_length) const {
    const sequence& s = at(id);
    const std::size_t wanted = pages_for(new_length);
    return (writes_shared(s, new_length) ? 1 : 0) + (wanted > s.pages.size() ? wanted - s.pages.size() : 0);
  }
  [[nodiscard]] std::size_t pages_for(std::size_t length) const noexcept { return (length + shape().page_size - 1) / shape().page_size; }

  // What a forward pass needs.
  [[nodiscard]] std::span<const page_id> pages(sequence_id id) const { return at(id).pages; }
  [[nodiscard]] typename B::kv_pool& pool() noexcept { return pool_; }
  void set_length(sequence_id id, std::size_t length) { at(id).length = length; }

 private:
  struct sequence {
    bool live = false;
    std::size_t length = 0;
    std::vector<page_id> pages;  // may hold reserved pages past the length
  };

  static std::size_t checked(const kv_shape& shape, std::size_t max_positions, std::size_t max_sequences) {
    if (shape.page_size == 0 || shape.page_size % 16 != 0)
      fail(errc::invalid_argument, "kv_cache", {"expected page_size to be a positive multiple of 16, got ", shape.page_size});
    if (shape.cell != dtype::f32 && shape.cell != dtype::f16 && shape.cell != dtype::bf16 && shape.cell != dtype::i8)
      fail(errc::invalid_argument, "kv_cache", {"expected cells of f32, f16, bf16 or i8, got ", dtype_name(shape.cell)});
    if (max_positions > (std::numeric_limits<std::uint32_t>::max)())
      fail(errc::invalid_argument, "kv_cache", {"expected fewer than 2^32 positions, got ", max_positions});
    if (max_positions == 0 || max_sequences == 0 || shape.n_pages == 0)
      fail(errc::invalid_argument, "kv_cache", {"expected positive sizes, got ", max_positions, " positions, ", max_sequences, " sequences, ", shape.n_pages, " pages"});
    return max_positions;
  }

  /// Whether the next position to be written lies in a page that others hold, too.
  [[nodiscard]] bool writes_shared(const sequence& s, std::size_t new_length) const noexcept {
    const std::size_t first_written = s.length / shape().page_size;
    return first_written < s.pages.size() && new_length > s.length && references_[s.pages[first_written]] > 1;
  }
  void check_held(page_id page) const {
    if (references(page) == 0) fail(errc::invalid_argument, "kv_cache", {"expected a page in use, got ", page});
  }
  [[nodiscard]] const sequence& at(sequence_id id) const {
    if (id >= sequences_.size() || !sequences_[id].live)
      fail(errc::invalid_argument, "kv_cache", {"expected a sequence of this cache, got ", id});
    return sequences_[id];
  }
  [[nodiscard]] sequence& at(sequence_id id) { return const_cast<sequence&>(std::as_const(*this).at(id)); }
  void rewind_reserved(sequence_id id) { rewind(id, sequences_[id].length); }
  [[nodiscard]] page_id take() noexcept {
    const page_id page = free_.back();
    free_.pop_back();
    references_[page] = 1;
    return page;
  }
  void release(page_id page) noexcept {
    if (--references_[page] == 0) free_.push_back(page);
  }

  std::shared_ptr<const B> backend_;
  std::size_t max_positions_;
  typename B::kv_pool pool_;
  typename B::stream stream_;
  std::vector<std::uint32_t> references_;
  std::vector<page_id> free_;
  std::vector<sequence> sequences_;
};

}  // namespace quena::inline QUENA_ABI
