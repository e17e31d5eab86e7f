// SPDX-License-Identifier: MIT
// Ctrl-C that ends a computation instead of the program.
#pragma once

#include <memory>
#include <optional>
#include <stop_token>
#include <string>

namespace cli {

/// While it lives, Ctrl-C does not end the program (only the third in a row does, should the first two have no effect). One at a time.
class interrupts {
 public:
  interrupts();
  ~interrupts();
  interrupts(const interrupts&) = delete;
  interrupts& operator=(const interrupts&) = delete;

  /// A token that the next Ctrl-C triggers, until the scope ends.
  class scope {
   public:
    explicit scope(interrupts& i);
    ~scope();
    scope(const scope&) = delete;
    scope& operator=(const scope&) = delete;
    [[nodiscard]] std::stop_token token() const;

   private:
    struct state;
    std::unique_ptr<state> state_;
  };

  /// A line of standard input without its end; nothing at the end of the input, or on Ctrl-C.
  std::optional<std::string> read_line();

 private:
  std::string buffer_;  // input after the last line
};

}  // namespace cli
