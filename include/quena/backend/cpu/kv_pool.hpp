// SPDX-License-Identifier: MIT
// The pages of keys and values in the CPU backend's memory.
#pragma once

#include <cstddef>
#include <string>

#include "../../core/memory.hpp"
#include "../backend.hpp"
#include "../support.hpp"
#include "kernel_table.hpp"

namespace quena::inline QUENA_ABI {

/// Page after page; in it layer after layer, in it head after head: the keys as [page_size / 16][head_dim][16 positions], then the
/// values as [page_size][head_dim]; keys of 8 bits, and values, are each followed by their scales, f32 [page_size]. Untouched pages cost
/// address space only.
class cpu_kv_pool {
 public:
  explicit cpu_kv_pool(const kv_shape& shape) : shape_(shape) {
    static_cast<void>(checked_cells(shape));
    if (shape.page_size % detail::block_positions != 0)
      detail::expected("make_kv_pool", {"a page size that is a multiple of ", detail::block_positions}, std::to_string(shape.page_size));
    cells_ = aligned_buffer(shape.n_pages * shape.page_bytes() + slack * sizeof(float));
  }

  [[nodiscard]] const kv_shape& shape() const noexcept { return shape_; }
  [[nodiscard]] std::byte* page(page_id p) noexcept { return cells_.data() + p * shape_.page_bytes(); }
  [[nodiscard]] const std::byte* page(page_id p) const noexcept { return cells_.data() + p * shape_.page_bytes(); }

  /// Bytes of one head's keys (or values) in one layer of a page, and where a layer and head begin in a page.
  [[nodiscard]] std::size_t head_bytes() const noexcept { return shape_.page_size * shape_.row_bytes(); }
  [[nodiscard]] std::size_t head_offset(std::size_t layer, std::size_t head) const noexcept {
    return (layer * shape_.n_kv_heads + head) * 2 * head_bytes();
  }

 private:
  static constexpr std::size_t slack = 16;  // cells: a vector may read past the last value

  kv_shape shape_;
  aligned_buffer cells_;
};

}  // namespace quena::inline QUENA_ABI
