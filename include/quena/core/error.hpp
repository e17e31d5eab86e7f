// SPDX-License-Identifier: MIT
// The one exception type of the library.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace quena::inline v0 {

/// What kind of thing went wrong, for programs; the message is for people.
enum class errc {
  invalid_argument,  ///< a parameter of the caller's is out of range
  io,                ///< a file cannot be opened, read or mapped
  malformed,         ///< bytes that break their format (truncated, inconsistent, hostile)
  unsupported,       ///< well formed, but something this library does not implement
  context_overflow,  ///< more tokens than the context holds
  out_of_memory,     ///< a memory budget (a page pool, a limit) is exhausted
  non_finite,        ///< NaN or infinity where numbers are needed
  cancelled,         ///< the caller's stop token was triggered
  busy,              ///< the object is in use by another call
};

/// Every error of the library. `what()` reads `[where] what was expected, what came (file)`.
class error : public std::runtime_error {
 public:
  error(errc code, std::string_view where, std::string_view message, std::string_view file = {})
      : std::runtime_error(text(where, message, file)), code_(code) {}

  [[nodiscard]] errc code() const noexcept { return code_; }

 private:
  static std::string text(std::string_view where, std::string_view message, std::string_view file) {
    std::string s;
    s.reserve(where.size() + message.size() + file.size() + 6);
    s.append("[").append(where).append("] ").append(message);
    if (!file.empty()) s.append(" (").append(file).append(")");
    for (char& c : s)  // one line, whatever an untrusted name contains
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
    return s;
  }

  errc code_;
};

/// Throws quena::error; a function of its own so that the cold path stays out of callers.
[[noreturn]] inline void fail(errc code, std::string_view where, std::string_view message, std::string_view file = {}) {
  throw error(code, where, message, file);
}

namespace detail {

/// A name of untrusted length, for use in a message.
inline std::string shortened(std::string_view s) { return s.size() <= 100 ? std::string(s) : std::string(s.substr(0, 100)) + "..."; }

}  // namespace detail

}  // namespace quena::inline v0
