// SPDX-License-Identifier: MIT
// Aligned memory for tensors, packed weights and caches.
#pragma once

#include <cstddef>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "error.hpp"

namespace quena::inline QUENA_ABI {

/// Owns bytes aligned to a cache line; large blocks are aligned to and advised for huge pages, and are not touched, so an
/// untouched part costs address space only. The contents are uninitialised.
class aligned_buffer {
 public:
  static constexpr std::size_t alignment = 64;

  aligned_buffer() = default;
  explicit aligned_buffer(std::size_t n_bytes) : n_bytes_(n_bytes) {
    if (n_bytes == 0) return;
    const std::size_t align = n_bytes >= huge_page ? huge_page : alignment;
    if (n_bytes <= (std::numeric_limits<std::size_t>::max)() - align)
      data_ = static_cast<std::byte*>(::operator new((n_bytes + align - 1) / align * align, std::align_val_t{align}, std::nothrow));
    if (data_ == nullptr) fail(errc::out_of_memory, "memory", {"expected to allocate ", n_bytes, " bytes, got none"});
#if defined(__linux__)
    if (align == huge_page) ::madvise(data_, n_bytes, MADV_HUGEPAGE);  // best effort: a refusal changes speed only
#endif
  }
  aligned_buffer(aligned_buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), n_bytes_(std::exchange(other.n_bytes_, 0)) {}
  aligned_buffer& operator=(aligned_buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(n_bytes_, other.n_bytes_);
    return *this;
  }
  ~aligned_buffer() {
    if (data_ != nullptr) ::operator delete(data_, std::align_val_t{n_bytes_ >= huge_page ? huge_page : alignment});
  }

  [[nodiscard]] std::byte* data() noexcept { return data_; }
  [[nodiscard]] const std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return n_bytes_; }

 private:
  static constexpr std::size_t huge_page = std::size_t{2} << 20;

  std::byte* data_ = nullptr;
  std::size_t n_bytes_ = 0;
};

/// Bytes that are only read once they are complete: its own, or a part of something that is kept alive (a mapped file).
class kept_bytes {
 public:
  kept_bytes() = default;
  explicit kept_bytes(aligned_buffer own) noexcept : own_(std::move(own)), bytes_(own_.data(), own_.size()) {}
  /// keeper: null if the caller keeps the bytes alive.
  kept_bytes(std::span<const std::byte> bytes, std::shared_ptr<const void> keeper) noexcept : keeper_(std::move(keeper)), bytes_(bytes) {}
  kept_bytes(kept_bytes&& other) noexcept : own_(std::move(other.own_)), keeper_(std::move(other.keeper_)), bytes_(std::exchange(other.bytes_, {})) {}
  kept_bytes& operator=(kept_bytes&& other) noexcept {
    std::swap(own_, other.own_);
    std::swap(keeper_, other.keeper_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~kept_bytes() = default;

  [[nodiscard]] const std::byte* data() const noexcept { return bytes_.data(); }
  [[nodiscard]] std::size_t size() const noexcept { return bytes_.size(); }
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }
  /// Where to write its own bytes; null if they are another's.
  [[nodiscard]] std::byte* own() noexcept { return own_.data(); }

 private:
  aligned_buffer own_;
  std::shared_ptr<const void> keeper_;
  std::span<const std::byte> bytes_;
};

}  // namespace quena::inline QUENA_ABI
