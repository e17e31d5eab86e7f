// SPDX-License-Identifier: MIT
// What is asked of an engine, and what comes back.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "../core/error.hpp"
#include "../core/token.hpp"
#include "../model/lora_weights.hpp"
#include "../sample/sampler.hpp"

namespace quena::inline QUENA_ABI {

/// A prompt and how it is to be continued.
template <backend B>
struct engine_request {
  std::vector<token_id> prompt = {};
  std::size_t max_tokens = 256;            ///< of each completion
  sampling_options sampling = {};          ///< its end_tokens end a completion; temperature 0 is greedy
  std::size_t n = 1;                       ///< completions; completion i draws as sequence i of the seed
  int priority = 0;                        ///< higher ones first; within one, in the order of arrival
  std::optional<std::chrono::steady_clock::time_point> deadline = {};  ///< what is not finished by then ends
  const lora_weights<B>* adapter = nullptr;  ///< must outlive the request
};

enum class engine_finish : std::uint8_t { none, stop, length, cancelled, deadline, failed };

/// A token of a completion, or its end.
struct engine_event {
  std::size_t completion = 0;
  token_id token = -1;                         ///< -1: the completion has ended
  engine_finish finish = engine_finish::none;  ///< why, at its end
  float logprob = 0;                           ///< NaN unless sampling_options::n_logprobs >= 0
  std::vector<token_logprob> top = {};
};

namespace detail {

/// What the engine and a handle share.
struct request_channel {
  std::mutex mutex;
  std::condition_variable arrived;
  std::deque<engine_event> events;
  std::size_t open = 0;  // completions that have not ended
  std::atomic<bool> cancelled = false;

  void push(engine_event e) {
    {
      const std::lock_guard lock(mutex);
      if (e.token < 0) --open;
      events.push_back(std::move(e));
    }
    arrived.notify_all();
  }
};

}  // namespace detail

/// The other end of a request. Any thread may use it; it may outlive the engine. Letting go of it does not cancel.
class engine_handle {
 public:
  explicit engine_handle(std::shared_ptr<detail::request_channel> channel) : channel_(std::move(channel)) {}

  /// The next event that is there already.
  [[nodiscard]] std::optional<engine_event> poll() {
    const std::lock_guard lock(channel_->mutex);
    return take();
  }
  /// The next event; waits for it. Nothing once all completions have ended and all events were taken. Some other thread must run the engine.
  [[nodiscard]] std::optional<engine_event> wait() {
    std::unique_lock lock(channel_->mutex);
    channel_->arrived.wait(lock, [&] { return !channel_->events.empty() || channel_->open == 0; });
    return take();
  }
  /// Ends all completions before the engine's next step.
  void cancel() noexcept { channel_->cancelled = true; }
  /// Whether all completions have ended; events may still be there.
  [[nodiscard]] bool finished() const {
    const std::lock_guard lock(channel_->mutex);
    return channel_->open == 0;
  }

 private:
  std::optional<engine_event> take() {
    if (channel_->events.empty()) return std::nullopt;
    std::optional<engine_event> e = std::move(channel_->events.front());
    channel_->events.pop_front();
    return e;
  }
  std::shared_ptr<detail::request_channel> channel_;
};

}  // namespace quena::inline QUENA_ABI
