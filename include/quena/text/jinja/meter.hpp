// SPDX-License-Identifier: MIT
// Budgets of one rendering: steps, live memory, depth. A template comes from a file that somebody else wrote.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "../../core/error.hpp"

namespace quena::inline QUENA_ABI {
namespace jinja {

/// What a template may use up. The defaults are hundreds of times what real chat templates need; the `per_input_byte`
/// figures let the budget grow with the messages, so that a long conversation is never refused.
struct limits {
  std::size_t max_source_bytes = std::size_t{1} << 18;   ///< template text
  std::size_t max_nesting = 100;                         ///< of blocks and of expressions, in the source
  std::size_t max_depth = 600;                           ///< of evaluation: macros that call macros, loops in loops, …
  std::size_t max_value_depth = 100;                     ///< lists in lists in …
  std::uint64_t max_steps = 2'000'000;                   ///< nodes evaluated, items visited, 64-byte units of text moved
  std::uint64_t steps_per_input_byte = 64;
  std::size_t max_output_bytes = std::size_t{8} << 20;   ///< also of any single string
  std::size_t output_per_input_byte = 4;
  std::size_t max_memory_bytes = std::size_t{24} << 20;  ///< values alive at the same time
  std::size_t memory_per_input_byte = 16;
  std::size_t max_range = 100'000;                       ///< items of range(): Jinja2's own sandbox limit
};

/// `[name] line N: message`, the message in pieces; line 0 is left out.
[[noreturn, gnu::noinline]] inline void fail_at(errc code, std::string_view name, std::uint32_t line, std::initializer_list<std::string_view> message) {
  std::string s;
  if (line != 0) s.append("line ").append(std::to_string(line)).append(": ");
  for (const std::string_view piece : message) s.append(piece);
  quena::fail(code, name, s);
}

/// Counts what one rendering uses and ends it with a quena::error when a limit is passed.
/// Every error of the engine goes through fail(), which adds the template's name and the line being evaluated.
class meter {
 public:
  meter(const limits& bounds, std::string_view name, std::size_t input_bytes)
      : bounds_(bounds), name_(name),
        steps_left_(bounds.max_steps + bounds.steps_per_input_byte * input_bytes),
        memory_left_(bounds.max_memory_bytes + bounds.memory_per_input_byte * input_bytes),
        max_text_(bounds.max_output_bytes + bounds.output_per_input_byte * input_bytes) {}
  meter(const meter&) = delete;
  meter& operator=(const meter&) = delete;

  [[nodiscard]] const limits& bounds() const noexcept { return bounds_; }

  std::uint32_t line = 0;  ///< where evaluation stands, for messages

  void step(std::uint64_t n = 1) {
    if (n > steps_left_) exhausted("steps");
    steps_left_ -= n;
  }
  /// Pays for looking at or copying `n` bytes.
  void touch(std::size_t n) { step(1 + n / 64); }

  /// Checks that a string of `n` bytes may be made, before anything is allocated for it.
  void check_text(std::size_t n) const {
    if (n > max_text_) exhausted("bytes of text");
  }
  void hold(std::size_t n) {
    if (n > memory_left_) exhausted("bytes of memory");
    memory_left_ -= n;
  }
  void release(std::size_t n) noexcept { memory_left_ += n; }

  void enter() {
    if (depth_ >= bounds_.max_depth) exhausted("levels of nested evaluation");
    ++depth_;
  }
  void leave() noexcept { --depth_; }

  /// Ends the rendering with a message in pieces, so that what builds it does not weigh on every caller.
  [[noreturn]] void fail(std::initializer_list<std::string_view> message, errc code = errc::invalid_argument) const {
    fail_at(code, name_, line, message);
  }

 private:
  [[noreturn]] void exhausted(std::string_view what) const {
    fail({"expected a template that stays within its budget, got one that needs too many ", what}, errc::out_of_memory);
  }

  limits bounds_;
  std::string_view name_;
  std::uint64_t steps_left_;
  std::size_t memory_left_;
  std::size_t max_text_;
  std::size_t depth_ = 0;
};

/// One level of evaluation for as long as it lives.
class nested {
 public:
  explicit nested(meter& m) : meter_(m) { meter_.enter(); }
  ~nested() { meter_.leave(); }
  nested(const nested&) = delete;
  nested& operator=(const nested&) = delete;

 private:
  meter& meter_;
};

/// Memory that is charged to a meter for as long as it lives; without a meter it costs nothing (the caller's own values).
class charge {
 public:
  charge() = default;
  charge(meter* m, std::size_t n) : meter_(m), n_(n) {
    if (meter_) meter_->hold(n_);
  }
  charge(charge&& o) noexcept : meter_(o.meter_), n_(o.n_) { o.meter_ = nullptr; }
  charge& operator=(charge&& o) noexcept {
    if (this != &o) {
      if (meter_) meter_->release(n_);
      meter_ = o.meter_;
      n_ = o.n_;
      o.meter_ = nullptr;
    }
    return *this;
  }
  ~charge() {
    if (meter_) meter_->release(n_);
  }
  void grow(std::size_t n) {
    if (meter_) meter_->hold(n);
    n_ += n;
  }

 private:
  meter* meter_ = nullptr;
  std::size_t n_ = 0;
};

}  // namespace jinja
}  // namespace quena::inline QUENA_ABI
