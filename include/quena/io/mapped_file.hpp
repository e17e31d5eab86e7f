// SPDX-License-Identifier: MIT
// A file's bytes as memory, read only, without reading them first.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "../core/error.hpp"
#include "file_system.hpp"

#ifdef _WIN32
// Declared here because <windows.h> would leave its macros in every program that includes us.
struct _SECURITY_ATTRIBUTES;
extern "C" {
__declspec(dllimport) void* __stdcall CreateFileMappingW(void* file, _SECURITY_ATTRIBUTES*, unsigned long protection, unsigned long size_high,
                                                         unsigned long size_low, const wchar_t* name);
__declspec(dllimport) int __stdcall UnmapViewOfFile(const void* base);
__declspec(dllimport) int __stdcall CloseHandle(void* handle);
#ifdef _WIN64
__declspec(dllimport) void* __stdcall MapViewOfFile(void* mapping, unsigned long access, unsigned long offset_high, unsigned long offset_low,
                                                    unsigned long long n_bytes);
#else
__declspec(dllimport) void* __stdcall MapViewOfFile(void* mapping, unsigned long access, unsigned long offset_high, unsigned long offset_low,
                                                    unsigned long n_bytes);
#endif
}
#else
#include <sys/mman.h>
#endif

namespace quena::inline QUENA_ABI {

/// A plain file mapped read only. Moving keeps the addresses; the bytes live as long as the object.
/// Whoever parses them must compare every offset with `bytes().size()`: touching a page beyond the end kills the process. So
/// does another program that shortens the file while it is mapped; nothing can be done about that here.
class mapped_file {
 public:
  mapped_file() = default;
  mapped_file(mapped_file&& other) noexcept : bytes_(std::exchange(other.bytes_, {})), path_(std::move(other.path_)) {}
  mapped_file& operator=(mapped_file&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(path_, other.path_);
    return *this;
  }
  ~mapped_file() { unmap(); }

  /// Errors   io: no such file, no permission, a folder or a device, cannot be mapped.
  static mapped_file open(std::string_view path) {
    detail::check_path(path);
    mapped_file file;
    file.path_ = path;
    const int fd = detail::open_read_only(file.path_);
    if (fd < 0) {
      const int code = errno;  // Windows says "permission denied" of a folder
      if (kind_of_path(path) == path_kind::folder) fail(errc::io, "load", "expected a file, got a folder", path);
      fail(errc::io, "load", {"cannot open: ", detail::system_message(code)}, path);
    }
    struct closer {
      int fd;
      ~closer() { detail::close_handle(fd); }
    } closing{fd};

    detail::native_stat s;
    if (detail::stat_handle(fd, s) != 0) fail(errc::io, "load", {"cannot read the size: ", detail::system_message(errno)}, path);
    if (detail::is_folder(s)) fail(errc::io, "load", "expected a file, got a folder", path);
    if (!detail::is_plain_file(s)) fail(errc::io, "load", "expected a plain file, got a device, pipe or socket", path);
    const auto size = static_cast<std::uint64_t>(s.st_size);
    if (size > (std::numeric_limits<std::size_t>::max)() / 2) fail(errc::io, "load", "the file is larger than the address space", path);
    if (size != 0) file.map(fd, static_cast<std::size_t>(size));
    return file;
  }

  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::string_view text() const noexcept { return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()}; }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

  /// Says that `part` of bytes() will not be needed soon, so that its pages need not stay in memory (a later read brings them
  /// back). Loading calls it after each tensor: an 8B checkpoint then costs no more memory than its prepared weights.
  void release(std::span<const std::byte> part) const noexcept {
#if !defined(_WIN32) && defined(MADV_DONTNEED)
    const long page = ::sysconf(_SC_PAGESIZE);
    if (page <= 0 || part.empty() || part.data() < bytes_.data() || part.data() + part.size() > bytes_.data() + bytes_.size()) return;
    const auto size = static_cast<std::uintptr_t>(page);  // whole pages only: the borders may belong to a neighbour
    const auto begin = (reinterpret_cast<std::uintptr_t>(part.data()) + size - 1) / size * size;
    const auto end = reinterpret_cast<std::uintptr_t>(part.data() + part.size()) / size * size;
    if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
#else
    (void)part;
#endif
  }

 private:
  void map(int fd, std::size_t size) {
#ifdef _WIN32
    constexpr unsigned long page_readonly = 2, map_read = 4;
    void* const handle = reinterpret_cast<void*>(_get_osfhandle(fd));
    void* const mapping = CreateFileMappingW(handle, nullptr, page_readonly, 0, 0, nullptr);
    if (mapping == nullptr) fail(errc::io, "load", "cannot map the file", path_);
    void* const base = MapViewOfFile(mapping, map_read, 0, 0, size);
    CloseHandle(mapping);  // the view keeps it alive
    if (base == nullptr) fail(errc::io, "load", {"cannot map ", size, " bytes"}, path_);
#else
    void* const base = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (base == MAP_FAILED) fail(errc::io, "load", {"cannot map ", size, " bytes: ", detail::system_message(errno)}, path_);
#endif
    bytes_ = {static_cast<const std::byte*>(base), size};
  }

  void unmap() noexcept {
    if (bytes_.empty()) return;
#ifdef _WIN32
    UnmapViewOfFile(bytes_.data());
#else
    ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
#endif
    bytes_ = {};
  }

  std::span<const std::byte> bytes_;
  std::string path_;
};

}  // namespace quena::inline QUENA_ABI
