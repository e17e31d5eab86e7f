// SPDX-License-Identifier: MIT
// The one exception type of the library.
#pragma once

#include <charconv>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "config.hpp"

namespace quena::inline QUENA_ABI {

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
  queue_full,        ///< as many requests wait as may: try again later
};

class error_message;

namespace detail {

/// A text or a number of a message. Small and trivial: every check of the library builds some in its caller's code.
struct message_piece {
  enum class kind : std::uint8_t { text, c_string, natural, negative, real, real32, message };

  message_piece(const char* s) noexcept : pointer(s), type(kind::c_string) {}                                                          // NOLINT(google-explicit-constructor)
  message_piece(std::string_view s) noexcept : pointer(s.data()), size(static_cast<std::uint32_t>(s.size())), type(kind::text) {}      // NOLINT(google-explicit-constructor)
  message_piece(const std::string& s) noexcept : message_piece(std::string_view(s)) {}                                                 // NOLINT(google-explicit-constructor)
  message_piece(const error_message& m) noexcept : pointer(&m), type(kind::message) {}                                                 // NOLINT(google-explicit-constructor)
  template <std::integral T>
    requires(!std::same_as<T, bool> && !std::same_as<T, char>)
  message_piece(T n) noexcept : integer(static_cast<std::uint64_t>(n)), type(n < T{0} ? kind::negative : kind::natural) {}             // NOLINT(google-explicit-constructor)
  message_piece(double x) noexcept : real(x), type(kind::real) {}                                                                      // NOLINT(google-explicit-constructor)
  message_piece(float x) noexcept : real(static_cast<double>(x)), type(kind::real32) {}                                                // NOLINT(google-explicit-constructor)

  inline void append_to(std::string& out) const;

  union {
    const void* pointer;
    std::uint64_t integer;
    double real;
  };
  std::uint32_t size = 0;
  kind type;
};

}  // namespace detail

/// What an error says, in pieces: {"expected at most ", limit, " rows, got ", n}. Numbers are written in no locale, fractions in the
/// shortest form that reads back the same. Only a view: the text is put together when the error is thrown, out of the callers' way.
class error_message {
 public:
  error_message(const char* whole) noexcept : only_(whole) {}                                              // NOLINT(google-explicit-constructor)
  error_message(std::string_view whole) noexcept : only_(whole) {}                                         // NOLINT(google-explicit-constructor)
  error_message(const std::string& whole) noexcept : only_(whole) {}                                       // NOLINT(google-explicit-constructor)
  error_message(std::initializer_list<detail::message_piece> pieces) noexcept : only_(""), pieces_(pieces) {}  // NOLINT(google-explicit-constructor)
  error_message(const error_message&) = delete;
  error_message& operator=(const error_message&) = delete;

  void append_to(std::string& out) const {
    only_.append_to(out);
    for (const detail::message_piece& p : pieces_) p.append_to(out);
  }

 private:
  detail::message_piece only_;
  std::initializer_list<detail::message_piece> pieces_;  // of the caller's expression, which ends with the throw
};

inline void detail::message_piece::append_to(std::string& out) const {
  char digits[32];
  std::to_chars_result end{digits, {}};
  switch (type) {
    case kind::text: out.append(static_cast<const char*>(pointer), size); return;
    case kind::c_string: out.append(static_cast<const char*>(pointer)); return;
    case kind::message: static_cast<const error_message*>(pointer)->append_to(out); return;
    case kind::natural: end = std::to_chars(digits, digits + sizeof digits, integer); break;
    case kind::negative: end = std::to_chars(digits, digits + sizeof digits, static_cast<std::int64_t>(integer)); break;
    case kind::real: end = std::to_chars(digits, digits + sizeof digits, real); break;
    case kind::real32: end = std::to_chars(digits, digits + sizeof digits, static_cast<float>(real)); break;
  }
  out.append(digits, end.ptr);
}

/// Every error of the library. `what()` reads `[where] what was expected, what came (file)`.
class error : public std::runtime_error {
 public:
  error(errc code, std::string_view where, const error_message& message, std::string_view file = {})
      : std::runtime_error(text(where, message, file)), code_(code) {}

  [[nodiscard]] errc code() const noexcept { return code_; }

 private:
  static std::string text(std::string_view where, const error_message& message, std::string_view file) {
    std::string s;
    s.append("[").append(where).append("] ");
    message.append_to(s);
    if (!file.empty()) s.append(" (").append(file).append(")");
    for (char& c : s)  // one line, whatever an untrusted name contains
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
    return s;
  }

  errc code_;
};

/// Throws quena::error; a function of its own so that the cold path stays out of callers.
[[noreturn, gnu::cold, gnu::noinline]] inline void fail(errc code, std::string_view where, const error_message& message, std::string_view file = {}) {
  throw error(code, where, message, file);
}

namespace detail {

/// A name of untrusted length, for use in a message.
inline std::string shortened(std::string_view s) { return s.size() <= 100 ? std::string(s) : std::string(s.substr(0, 100)) + "..."; }

}  // namespace detail

}  // namespace quena::inline QUENA_ABI
