// SPDX-License-Identifier: MIT
// A string that remembers which of its bytes the template wrote and which came from variables.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../../core/config.hpp"

namespace quena::inline QUENA_ABI {
namespace jinja {

/// UTF-8 text with the provenance of every byte, kept through slicing, joining and every filter. Only bytes that the
/// template itself wrote may become special tokens; what a message, a tool or a name contributed stays plain text.
/// Stored as runs: `edges_` are the offsets where provenance flips, so text of one origin costs nothing extra.
class text {
 public:
  text() = default;
  text(std::string bytes, bool from_template) : bytes_(std::move(bytes)), first_(from_template) {}

  [[nodiscard]] std::string_view view() const noexcept { return bytes_; }
  [[nodiscard]] const std::string& bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::size_t size() const noexcept { return bytes_.size(); }
  [[nodiscard]] bool empty() const noexcept { return bytes_.empty(); }
  [[nodiscard]] std::size_t n_runs() const noexcept { return bytes_.empty() ? 0 : edges_.size() + 1; }

  [[nodiscard]] bool from_template(std::size_t at) const { return first_ != (edges_before(at) % 2 == 1); }

  void reserve(std::size_t n) { bytes_.reserve(n); }

  [[gnu::noinline]] void append(std::string_view bytes, bool from_template) {
    if (bytes.empty()) return;
    if (bytes_.empty()) {
      first_ = from_template;
      edges_.clear();
    } else if (from_template != last()) {
      edges_.push_back(bytes_.size());
    }
    bytes_.append(bytes);
  }
  void append(const text& o) { append(o, 0, o.size()); }

  /// Bytes [begin, end) of `o`, which is another object.
  [[gnu::noinline]] void append(const text& o, std::size_t begin, std::size_t end) {
    if (begin >= end) return;
    if (o.edges_.empty()) return append(o.view().substr(begin, end - begin), o.first_);
    std::size_t run = o.edges_before(begin);
    for (std::size_t at = begin; at < end; ++run) {
      const std::size_t stop = run < o.edges_.size() ? (std::min)(o.edges_[run], end) : end;
      append(o.view().substr(at, stop - at), o.first_ != (run % 2 == 1));
      at = stop;
    }
  }

  [[nodiscard, gnu::noinline]] text slice(std::size_t begin, std::size_t end) const {
    text t;
    t.append(*this, begin, end);
    return t;
  }

  /// Calls f(bytes, from_template) for each run in order.
  template <class F>
  void for_each_run(F&& f) const {
    std::size_t at = 0;
    for (std::size_t run = 0; at < bytes_.size(); ++run) {
      const std::size_t stop = run < edges_.size() ? edges_[run] : bytes_.size();
      f(view().substr(at, stop - at), first_ != (run % 2 == 1));
      at = stop;
    }
  }

 private:
  [[nodiscard]] bool last() const noexcept { return first_ != (edges_.size() % 2 == 1); }
  [[nodiscard]] std::size_t edges_before(std::size_t at) const {  // edges at or before `at`
    return static_cast<std::size_t>(std::upper_bound(edges_.begin(), edges_.end(), at) - edges_.begin());
  }

  std::string bytes_;
  std::vector<std::size_t> edges_;
  bool first_ = false;
};

}  // namespace jinja
}  // namespace quena::inline QUENA_ABI
