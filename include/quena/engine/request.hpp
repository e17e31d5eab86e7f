// SPDX-License-Identifier: MIT
// What an engine is asked, and how it answers.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../core/error.hpp"
#include "../core/token.hpp"
#include "../sample/options.hpp"
#include "../sample/outcome.hpp"

namespace quena::inline QUENA_ABI {

/// What an answer took.
struct answer_usage {
  std::size_t prompt_tokens = 0;     ///< all of the prompt, cached or not
  std::size_t cached_tokens = 0;     ///< of them, found in the prefix cache when the answer was begun
  std::size_t generated_tokens = 0;  ///< without the end token
};

/// Something that happened to one of a request's answers: a token, or its end.
struct engine_event {
  std::size_t answer = 0;                            ///< 0 … n-1
  std::optional<token_id> token = {};                ///< none: the end, or text that was held back
  std::string text = {};                             ///< what can be delivered now, valid UTF-8; empty without a tokenizer
  std::optional<generated_logprobs> logprobs = {};   ///< of the token, if they were asked for
  finish_reason reason = finish_reason::none;        ///< not none: the answer's last event, which holds no token
  answer_usage usage = {};                           ///< with the last event
  std::optional<errc> failure = {};                  ///< with finish_reason::failed: what and why
  std::string message = {};
};

struct request {
  std::vector<token_id> prompt = {};
  std::size_t max_tokens = 256;
  sampling_options sampling = {};      ///< seed, log-probabilities and end tokens are among them; the engine's end tokens count, too
  std::vector<std::string> stop = {};  ///< strings that end the text; they are not part of it. They need the engine's tokenizer
  bool special_text = false;           ///< deliver generated control tokens as text
  std::size_t n = 1;                   ///< answers. They share the prompt's pages; answer i draws as sequence i of the seed
  std::int32_t priority = 0;           ///< greater first; engine_options::aging says how far it can overtake
  std::optional<std::chrono::steady_clock::time_point> deadline = {};  ///< after it the answers end, with what they have
  std::uint32_t adapter = 0;           ///< 0: none; else what engine::add_adapter() returned
  std::uint32_t salt = 0;              ///< prefixes are shared between requests of one salt (and one adapter) only
  /// Called for every event by whoever runs the steps; then the handle delivers none. It must not block or step the engine; submit() and
  /// cancel() are fine. An exception from it ends the request as failed.
  std::function<void(const engine_event&)> on_event = {};
};

namespace detail {

/// Where a request's events wait for their reader, and what the reader says. Shared by the handle and the engine.
struct mailbox {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<engine_event> events;  // guarded
  std::size_t n_open = 0;           // guarded: answers that have not ended
  std::function<bool()> advance;    // a step of the engine, unless another thread runs it; not called once n_open is 0
  std::atomic<bool> cancelled = false;

  void push(engine_event e) {
    const std::lock_guard lock(mutex);
    if (e.reason != finish_reason::none) --n_open;
    events.push_back(std::move(e));
    changed.notify_all();
  }
  void end_one() {
    const std::lock_guard lock(mutex);
    --n_open;
    changed.notify_all();
  }
};

}  // namespace detail

/// The caller's end of a request: an input range of events, and its cancel button. Copies are the same request. May be used by any
/// thread, and after the engine is gone. Dropping it cancels nothing.
///   for (const engine_event& e : handle) std::cout << e.text;
class request_handle {
 public:
  explicit request_handle(std::shared_ptr<detail::mailbox> box) : box_(std::move(box)) {}

  /// The next event, if one is there. Never blocks and computes nothing.
  [[nodiscard]] std::optional<engine_event> poll() {
    const std::lock_guard lock(box_->mutex);
    return take();
  }
  /// The next event; none: all answers have ended and everything was delivered. Runs steps of the engine where nobody else does, else waits.
  [[nodiscard]] std::optional<engine_event> next() {
    for (;;) {
      {
        const std::lock_guard lock(box_->mutex);
        if (!box_->events.empty() || box_->n_open == 0) return take();
      }
      if (box_->advance()) continue;
      std::unique_lock lock(box_->mutex);  // another thread steps; it may cease to, so this one looks again soon
      box_->changed.wait_for(lock, std::chrono::milliseconds(5), [&] { return !box_->events.empty() || box_->n_open == 0; });
    }
  }
  /// True when all answers have ended; events may still wait.
  [[nodiscard]] bool done() const {
    const std::lock_guard lock(box_->mutex);
    return box_->n_open == 0;
  }
  /// Ends the answers that have not ended, with the next step. Safe at any time, from any thread, any number of times.
  void cancel() noexcept { box_->cancelled.store(true, std::memory_order_relaxed); }

  class iterator {
   public:
    using value_type = engine_event;
    using difference_type = std::ptrdiff_t;
    using iterator_concept = std::input_iterator_tag;
    explicit iterator(request_handle* h) : h_(h) { ++*this; }
    const engine_event& operator*() const noexcept { return *event_; }
    const engine_event* operator->() const noexcept { return &*event_; }
    iterator& operator++() {
      event_ = h_->next();
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(const iterator& i, std::default_sentinel_t) noexcept { return !i.event_; }

   private:
    request_handle* h_;
    std::optional<engine_event> event_;
  };
  iterator begin() { return iterator(this); }
  std::default_sentinel_t end() const noexcept { return {}; }

 private:
  std::optional<engine_event> take() {  // with the mutex
    if (box_->events.empty()) return {};
    std::optional<engine_event> e(std::move(box_->events.front()));
    box_->events.pop_front();
    return e;
  }

  std::shared_ptr<detail::mailbox> box_;
};

}  // namespace quena::inline QUENA_ABI
