// SPDX-License-Identifier: MIT
// The few questions the readers ask of a file system. Paths are UTF-8 everywhere; on Windows they are widened here.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>

#ifdef _WIN32
#include <direct.h>
#include <io.h>
// Declared here because <windows.h> would leave its macros in every program that includes us.
extern "C" __declspec(dllimport) unsigned long __stdcall GetFileAttributesW(const wchar_t* path);
#else
#include <dirent.h>
#include <unistd.h>
#endif

#include "../core/error.hpp"

namespace quena::inline QUENA_ABI {

enum class path_kind : std::uint8_t { absent, file, folder, other };

namespace detail {

/// The system's words for an errno.
inline std::string system_message(int code) { return std::generic_category().message(code); }

/// A path of ours cannot hold NUL: the system would cut it there.
inline void check_path(std::string_view path) {
  if (path.empty()) fail(errc::invalid_argument, "load", "expected a path, got an empty string");
  if (path.find('\0') != path.npos) fail(errc::invalid_argument, "load", "expected a path without NUL", path);
}

#ifdef _WIN32
/// UTF-8 to UTF-16; bytes that are not UTF-8 become U+FFFD, which names no file.
inline std::wstring widen(std::string_view s) {
  std::wstring out;
  for (std::size_t i = 0; i < s.size();) {
    const auto byte = [&](std::size_t k) { return k < s.size() ? static_cast<unsigned char>(s[k]) : 0u; };
    const std::uint32_t lead = byte(i);
    const std::size_t n = lead < 0x80 ? 1 : lead >> 5 == 6 ? 2 : lead >> 4 == 14 ? 3 : lead >> 3 == 30 ? 4 : 0;
    std::uint32_t code = n == 1 ? lead : n == 2 ? lead & 31 : n == 3 ? lead & 15 : lead & 7;
    bool good = n != 0;
    for (std::size_t k = 1; k < n; ++k) {
      good = good && byte(i + k) >> 6 == 2;
      code = code << 6 | (byte(i + k) & 63);
    }
    if (!good || code > 0x10ffff) code = 0xfffd;
    if (code >= 0x10000) {
      out += static_cast<wchar_t>(0xd800 + ((code - 0x10000) >> 10));
      out += static_cast<wchar_t>(0xdc00 + (code & 0x3ff));
    } else {
      out += static_cast<wchar_t>(code);
    }
    i += good ? n : 1;
  }
  return out;
}

inline std::string narrow(const wchar_t* s) {
  std::string out;
  for (; *s; ++s) {
    std::uint32_t code = static_cast<std::uint16_t>(*s);
    if (code >> 10 == 0x36 && static_cast<std::uint16_t>(s[1]) >> 10 == 0x37)
      code = 0x10000 + ((code & 0x3ff) << 10) + (static_cast<std::uint16_t>(*++s) & 0x3ffu);
    const int more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    constexpr std::uint32_t lead[] = {0, 0xc0, 0xe0, 0xf0};
    out += static_cast<char>(lead[more] | code >> (6 * more));
    for (int k = more; k-- > 0;) out += static_cast<char>(0x80 | (code >> (6 * k) & 63));
  }
  return out;
}

using native_stat = struct _stat64;
inline int stat_path(const std::string& path, native_stat& s) { return _wstat64(widen(path).c_str(), &s); }
inline int stat_handle(int fd, native_stat& s) { return _fstat64(fd, &s); }
inline int make_directory(const std::string& path) { return _wmkdir(widen(path).c_str()); }
inline int open_read_only(const std::string& path) { return _wopen(widen(path).c_str(), _O_RDONLY | _O_BINARY | _O_NOINHERIT); }
inline void close_handle(int fd) { _close(fd); }
inline bool is_folder(const native_stat& s) { return (s.st_mode & _S_IFMT) == _S_IFDIR; }
inline bool is_plain_file(const native_stat& s) { return (s.st_mode & _S_IFMT) == _S_IFREG; }
#else
using native_stat = struct stat;
inline int stat_path(const std::string& path, native_stat& s) { return ::stat(path.c_str(), &s); }
inline int stat_handle(int fd, native_stat& s) { return ::fstat(fd, &s); }
inline int make_directory(const std::string& path) { return ::mkdir(path.c_str(), 0777); }
// O_NONBLOCK: opening a named pipe without a writer would wait for ever; it means nothing for plain files.
inline int open_read_only(const std::string& path) { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); }
inline void close_handle(int fd) { ::close(fd); }
inline bool is_folder(const native_stat& s) { return S_ISDIR(s.st_mode); }
inline bool is_plain_file(const native_stat& s) { return S_ISREG(s.st_mode); }
#endif

/// `path` without symbolic links, or empty if that cannot be found out.
inline std::string resolved(const std::string& path) {
#ifdef _WIN32
  // Links are rare there and need rights; anything that is one counts as leading elsewhere.
  const unsigned long attributes = GetFileAttributesW(widen(path).c_str());
  constexpr unsigned long reparse_point = 0x400;
  return attributes == ~0ul || (attributes & reparse_point) ? std::string() : path;
#else
  char* real = ::realpath(path.c_str(), nullptr);
  if (real == nullptr) return {};
  std::string out(real);
  std::free(real);
  return out;
#endif
}

}  // namespace detail

/// What stands at `path` (links followed).
[[nodiscard]] inline path_kind kind_of_path(std::string_view path) {
  detail::check_path(path);
  detail::native_stat s;
  std::string p(path);
#ifdef _WIN32
  while (p.size() > 1 && (p.back() == '/' || p.back() == '\\') && p[p.size() - 2] != ':') p.pop_back();  // stat refuses "folder/"
#endif
  if (detail::stat_path(p, s) != 0) return path_kind::absent;
  return detail::is_folder(s) ? path_kind::folder : detail::is_plain_file(s) ? path_kind::file : path_kind::other;
}

/// What changes when a file is written: its size and the time, in the system's units.
struct file_stamp {
  std::uint64_t size = 0, changed = 0;
};
[[nodiscard]] inline file_stamp stamp_of(std::string_view path) {
  detail::native_stat s;
  if (detail::stat_path(std::string(path), s) != 0) return {};
#if defined(__linux__)
  const auto changed = static_cast<std::uint64_t>(s.st_mtim.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(s.st_mtim.tv_nsec);
#else
  const auto changed = static_cast<std::uint64_t>(s.st_mtime);
#endif
  return {static_cast<std::uint64_t>(s.st_size), changed};
}

/// Makes a folder, if it is not there.
/// Errors   io.
inline void make_folder(std::string_view path) {
  if (kind_of_path(path) == path_kind::folder) return;
  if (detail::make_directory(std::string(path)) != 0 && errno != EEXIST) fail(errc::io, "write", {"cannot make the folder: ", detail::system_message(errno)}, path);
}

/// folder + separator + name.
[[nodiscard]] inline std::string join_path(std::string_view folder, std::string_view name) {
  std::string p(folder);
  if (!p.empty() && p.back() != '/' && p.back() != '\\') p += '/';
  return p.append(name);
}

/// The names in a folder that end in `suffix`, unsorted.
/// Errors   io, if the folder cannot be read.
[[nodiscard]] inline std::vector<std::string> names_in_folder(std::string_view folder, std::string_view suffix) {
  detail::check_path(folder);
  std::vector<std::string> names;
#ifdef _WIN32
  _wfinddata64_t entry;
  const std::intptr_t search = _wfindfirst64(detail::widen(join_path(folder, "*")).c_str(), &entry);
  if (search == -1) {
    if (errno == ENOENT) return names;
    fail(errc::io, "load", {"expected a readable folder: ", detail::system_message(errno)}, folder);
  }
  do {
    if (std::string name = detail::narrow(entry.name); std::string_view(name).ends_with(suffix)) names.push_back(std::move(name));
  } while (_wfindnext64(search, &entry) == 0);
  _findclose(search);
#else
  DIR* dir = ::opendir(std::string(folder).c_str());
  if (dir == nullptr) fail(errc::io, "load", {"expected a readable folder: ", detail::system_message(errno)}, folder);
  struct closer {
    DIR* d;
    ~closer() { ::closedir(d); }
  } closing{dir};
  while (const dirent* entry = ::readdir(dir))
    if (std::string_view(entry->d_name).ends_with(suffix)) names.emplace_back(entry->d_name);
#endif
  return names;
}

}  // namespace quena::inline QUENA_ABI
