// SPDX-License-Identifier: MIT
// A file that is there once it is complete.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "../core/error.hpp"
#include "../core/process.hpp"
#include "file_system.hpp"

#ifdef _WIN32
extern "C" __declspec(dllimport) int __stdcall MoveFileExW(const wchar_t* from, const wchar_t* to, unsigned long flags);
#else
#include <cstdio>
#endif

namespace quena::inline QUENA_ABI {

/// Receives the bytes of a file in their order; throws what it likes.
using byte_sink = std::function<void(std::span<const std::byte>)>;

namespace detail {

#ifdef _WIN32
inline int open_for_writing(const std::string& path, bool fresh) { return _wopen(widen(path).c_str(), _O_WRONLY | _O_CREAT | (fresh ? _O_EXCL : 0) | _O_BINARY | _O_NOINHERIT, _S_IREAD | _S_IWRITE); }
inline long long write_some(int fd, const std::byte* from, std::size_t n) { return _write(fd, from, static_cast<unsigned>(n)); }
inline bool close_written(int fd) { return _close(fd) == 0; }
inline bool move_over(const std::string& from, const std::string& to) { return MoveFileExW(widen(from).c_str(), widen(to).c_str(), 1) != 0; }
inline void remove_file(const std::string& path) noexcept { _wunlink(widen(path).c_str()); }
#else
inline int open_for_writing(const std::string& path, bool fresh) { return ::open(path.c_str(), O_WRONLY | O_CREAT | (fresh ? O_EXCL : 0) | O_CLOEXEC, 0666); }
inline long long write_some(int fd, const std::byte* from, std::size_t n) { return ::write(fd, from, n); }
inline bool close_written(int fd) { return ::close(fd) == 0; }
inline bool move_over(const std::string& from, const std::string& to) { return std::rename(from.c_str(), to.c_str()) == 0; }
inline void remove_file(const std::string& path) noexcept { ::unlink(path.c_str()); }
#endif

}  // namespace detail

/// Written beside its place, under a name of its own, and moved there by finish(): others see the old file or the whole new one. Without
/// finish() nothing is left. A link's target is replaced, not the link. What is there and is not a plain file (a pipe, a device) is written to as it is.
class output_file {
 public:
  /// Errors   io: cannot be made.
  explicit output_file(std::string_view path) : path_(path), partial_(path) {
    const path_kind kind = kind_of_path(path);
    const bool fresh = kind != path_kind::other;
    if (kind == path_kind::file)
      if (std::string target = detail::resolved(path_); !target.empty()) path_ = std::move(target);
    for (int i = 0; i < 100 && fd_ < 0; ++i) {  // another thread or process may be writing the same file
      if (fresh) partial_ = path_ + "." + std::to_string(detail::process_id()) + "-" + std::to_string(i) + ".part";
      fd_ = detail::open_for_writing(partial_, fresh);
      if (fd_ < 0 && errno != EEXIST) break;
    }
    if (fd_ < 0) failed("expected a file that can be made: ");
  }
  ~output_file() { discard(); }
  output_file(const output_file&) = delete;
  output_file& operator=(const output_file&) = delete;

  [[nodiscard]] const std::string& path() const noexcept { return path_; }

  /// Errors   io: the disk is full, or another refusal of the system.
  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const long long n = detail::write_some(fd_, bytes.data(), (std::min)(bytes.size(), std::size_t{1} << 28));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) failed("cannot write: ");
      bytes = bytes.subspan(static_cast<std::size_t>(n));
    }
  }
  void finish() {
    const bool closed = detail::close_written(std::exchange(fd_, -1));  // some file systems say only here that the disk is full
    if (closed && (partial_ == path_ || detail::move_over(partial_, path_))) return;
    const int code = errno;
    if (partial_ != path_) detail::remove_file(partial_);
    errno = code;
    failed(closed ? "cannot move the file to its place: " : "cannot write: ");
  }

 private:
  void discard() noexcept {
    if (fd_ < 0) return;
    detail::close_handle(std::exchange(fd_, -1));
    if (partial_ != path_) detail::remove_file(partial_);
  }
  [[noreturn]] void failed(std::string_view what) {
    const int code = errno;
    discard();
    fail(errc::io, "write", {what, detail::system_message(code)}, path_);
  }

  std::string path_, partial_;
  int fd_ = -1;
};

}  // namespace quena::inline QUENA_ABI
