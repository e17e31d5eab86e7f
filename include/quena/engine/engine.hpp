// SPDX-License-Identifier: MIT
// Many requests on one model: continuous batching. step() is the whole of it.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../model/llama.hpp"
#include "../text/tokenizer.hpp"
#include "answer.hpp"
#include "metrics.hpp"
#include "request.hpp"
#include "scheduler.hpp"

namespace quena::inline QUENA_ABI {

struct engine_options {
  /// The page pool: sequences at a time, and the budget (n_bytes or n_pages), which is taken at once and never exceeded.
  kv_options cache = {.max_positions = 0, .max_sequences = 32};
  std::size_t token_budget = 512;           ///< rows of one pass, at least max_sequences: what a step costs at most
  std::size_t max_queue = 1024;             ///< requests that wait for their first step; one more is refused
  std::size_t swap_bytes = 0;               ///< host memory for sequences that lost their pages; those it can't hold are computed anew
  bool share_prefixes = true;               ///< keep finished pages for prompts that begin alike
  std::size_t aging = 256;                  ///< steps after which a request can't be overtaken by one of the next priority any more
  std::size_t max_rank = 0;                 ///< of adapters; 0: none can be added
  std::vector<token_id> end_tokens = {};    ///< of the model; they end every answer, unless its sampling says ignore_eos
};

/// Runs any number of requests on one model. What an answer says does not depend, by a bit, on the others, on the order of arrival, on
/// the budgets or on the cache: it is that of a session and a sampler alone.
///   engine<cpu> e(llm.model, {.end_tokens = llm.end_tokens}, &llm.tokenizer);
///   auto handle = e.submit({.prompt = ids, .max_tokens = 100});
///   for (const engine_event& event : handle) std::cout << event.text;
/// The host owns the loop: step(), step_for(), or a handle's range, which steps by itself. Or start() makes a thread that does.
/// submit(), metrics() and the handles may be used by any thread at any time; steps are taken by one thread at a time (errc::busy).
/// The model and the tokenizer must outlive it. Its destruction cancels what is left.
template <backend B>
class engine {
 public:
  /// `words` is needed for text and stop strings only.
  /// Errors   invalid_argument: options that make no sense; out_of_memory.
  explicit engine(const llama<B>& model, const engine_options& options = {}, const tokenizer* words = nullptr)
      : model_(&model),
        words_(words),
        options_(checked(options)),
        schedule_(model.make_cache(options.cache), {.token_budget = options.token_budget, .swap_bytes = options.swap_bytes, .share_prefixes = options.share_prefixes}),
        ws_(model.make_workspace(schedule_.cache(), {.max_rows = options.token_budget, .max_logits = options.cache.max_sequences, .max_rank = options.max_rank})) {}
  engine(const engine&) = delete;
  engine& operator=(const engine&) = delete;
  ~engine() {
    stop();
    for (const auto* list : {&jobs_, &inbox_})
      for (const auto& j : *list) end_all(*j, finish_reason::cancelled);
  }

  /// Takes a request into the queue.
  /// Errors   invalid_argument: an empty prompt, a token outside the vocabulary, n = 0, sampling options, stop strings without a
  ///          tokenizer; context_overflow: a prompt that leaves no room for a token; queue_full.
  request_handle submit(request asked) {
    check_request(asked);
    auto weights = find_adapter(asked.adapter);
    auto j = std::make_unique<job>(std::move(asked), std::move(weights));
    j->answers.push_back(std::make_unique<entry>(*j, 0, *this));
    j->box->advance = [this] { return advance(); };
    request_handle handle(j->box);
    {
      const std::lock_guard lock(inbox_mutex_);
      if (n_queued_ >= options_.max_queue) fail(errc::queue_full, "engine", {"expected at most ", options_.max_queue, " waiting requests, got one more"});
      ++n_queued_;
      inbox_.push_back(std::move(j));
    }
    inbox_changed_.notify_all();
    return handle;
  }

  /// Makes an adapter known; returns what request::adapter names it by, a number that never comes again: prefixes of one that was removed
  /// are not taken for another's.
  /// Errors   invalid_argument: null, made for another shape of model, a rank above max_rank.
  std::uint32_t add_adapter(std::shared_ptr<const lora_weights<B>> weights) {
    if (weights == nullptr || weights->n_layers() != model_->config().n_layers || weights->max_rank() > options_.max_rank)
      fail(errc::invalid_argument, "engine", {"expected an adapter of ", model_->config().n_layers, " layers and a rank of at most ", options_.max_rank, ", got ", (weights == nullptr ? std::string("none") : std::to_string(weights->n_layers()) + " and " + std::to_string(weights->max_rank()))});
    const std::lock_guard lock(inbox_mutex_);
    adapters_.emplace(++last_adapter_, std::move(weights));
    return last_adapter_;
  }
  /// Forgets an adapter for new requests; those that have it keep it.  Errors   invalid_argument: an unknown one.
  void remove_adapter(std::uint32_t id) {
    const std::lock_guard lock(inbox_mutex_);
    if (adapters_.erase(id) == 0) fail(errc::invalid_argument, "engine", {"expected an adapter that was added, got ", id});
  }

  /// One forward pass for everything that is to be done. Returns whether anything is left.
  /// Errors   busy: another thread (a worker) is at it. A pass that fails ends the requests in it as failed, and throws nothing.
  bool step() {
    if (working_.load(std::memory_order_acquire) || !take_turn()) fail(errc::busy, "engine", "expected one thread to take steps, got another one at the same time");
    return step_and_yield();
  }
  /// Steps until nothing is left or the time is over: at least one, and none that would likely (by the last one's time) end too late.
  template <class Rep, class Period>
  bool step_for(std::chrono::duration<Rep, Period> budget) {
    const auto start = clock::now();
    for (auto before = start;;) {
      if (!step()) return false;
      const auto now = clock::now();
      if (now - start + (now - before) > budget) return true;
      before = now;
    }
  }

  /// Makes a thread that takes the steps.
  /// Errors   busy: there is one.
  void start() {
    if (worker_.joinable()) fail(errc::busy, "engine", "expected no worker thread, got a second start()");
    worker_ = std::jthread([this](const std::stop_token& stopped) { work(stopped); });
    working_.store(true, std::memory_order_release);
  }
  /// Ends that thread after its step; what is left waits for the next start() or step(). Like start(), for the owner's thread.
  void stop() {
    if (!worker_.joinable()) return;
    worker_.request_stop();
    worker_.join();
    working_.store(false, std::memory_order_release);
  }

  [[nodiscard]] engine_metrics metrics() const {
    engine_metrics m;
    {
      const std::lock_guard lock(metrics_mutex_);
      m = published_;
    }
    const std::lock_guard lock(inbox_mutex_);
    m.queued = n_queued_;
    return m;
  }
  [[nodiscard]] const llama<B>& model() const noexcept { return *model_; }
  /// The longest sequence, prompt and answer.
  [[nodiscard]] std::size_t max_length() const noexcept { return schedule_.max_length(); }

 private:
  using clock = detail::engine_clock;

  struct failure {
    errc code;
    std::string message;
  };
  struct job;
  /// An answer and its place in the schedule.
  struct entry : detail::task<B> {
    entry(job& j, std::size_t index, const engine& e) : owner(&j), answer(j.asked, index, e.options_.end_tokens, e.model_->config().vocab_size, e.words_) {
      this->text = &answer, this->adapter = std::uint64_t{j.asked.adapter} << 32 | j.asked.salt, this->weights = j.weights.get();
    }
    job* owner;
    detail::answer answer;
  };
  /// A request that is worked on. Its first answer comes with it, the others when the prompt is computed.
  struct job {
    job(request r, std::shared_ptr<const lora_weights<B>> w) : asked(std::move(r)), weights(std::move(w)), box(std::make_shared<detail::mailbox>()) { box->n_open = asked.n; }
    request asked;
    std::shared_ptr<const lora_weights<B>> weights;
    std::shared_ptr<detail::mailbox> box;
    std::vector<std::unique_ptr<entry>> answers;  // null: ended
    std::size_t n_ended = 0;
    bool queued = true;                           // counts in n_queued_
    bool mute = false;                            // its callback threw
    std::optional<failure> failed;
    detail::rank turn = {};
    clock::time_point submitted = clock::now();
  };
  using jobs = std::vector<std::unique_ptr<job>>;

  static const engine_options& checked(const engine_options& o) {
    if (o.cache.max_sequences == 0 || o.token_budget < o.cache.max_sequences)
      fail(errc::invalid_argument, "engine", {"expected a token budget of at least max_sequences (", o.cache.max_sequences, ", not 0), got ", o.token_budget});
    if (o.max_queue == 0) fail(errc::invalid_argument, "engine", "expected room for a waiting request, got max_queue 0");
    if (o.aging > std::size_t{1} << 31) fail(errc::invalid_argument, "engine", {"expected aging of at most 2^31 steps, got ", o.aging});
    return o;
  }

  void check_request(const request& r) const {
    const std::size_t vocab_size = model_->config().vocab_size;
    if (r.prompt.empty()) fail(errc::invalid_argument, "engine", "expected a prompt of at least one token, got none");
    if (r.prompt.size() >= max_length())
      fail(errc::context_overflow, "engine", {"expected a prompt below the context of ", max_length(), " tokens, got ", r.prompt.size()});
    for (const token_id t : r.prompt)
      if (t < 0 || static_cast<std::size_t>(t) >= vocab_size) fail(errc::invalid_argument, "engine", {"expected tokens in [0, ", vocab_size, "), got ", t});
    if (r.n == 0) fail(errc::invalid_argument, "engine", "expected at least one answer, got n = 0");
    if (!r.stop.empty() && words_ == nullptr) fail(errc::invalid_argument, "engine", "expected a tokenizer for stop strings, got an engine without one");
  }

  [[nodiscard]] std::shared_ptr<const lora_weights<B>> find_adapter(std::uint32_t id) const {
    if (id == 0) return nullptr;
    const std::lock_guard lock(inbox_mutex_);
    const auto known = adapters_.find(id);
    if (known == adapters_.end()) fail(errc::invalid_argument, "engine", {"expected an adapter that was added, got ", id});
    return known->second;
  }

  // ---- whose turn it is ---------------------------------------------------------------------------------------------------------

  bool take_turn() noexcept { return !stepping_.exchange(true, std::memory_order_acquire); }
  /// With the turn, which ends.
  bool step_and_yield() {
    const auto give_back = [](std::atomic<bool>* held) { held->store(false, std::memory_order_release); };
    const std::unique_ptr<std::atomic<bool>, decltype(give_back)> turn(&stepping_, give_back);
    return take_step();
  }
  /// For a handle that waits.
  bool advance() {
    if (working_.load(std::memory_order_acquire) || !take_turn()) return false;
    step_and_yield();
    return true;
  }
  void work(const std::stop_token& stopped) {
    while (!stopped.stop_requested()) {
      if (!take_turn()) {  // a handle is at its last step
        std::this_thread::yield();
        continue;
      }
      if (step_and_yield()) continue;
      std::unique_lock lock(inbox_mutex_);
      inbox_changed_.wait(lock, stopped, [&] { return !inbox_.empty(); });
    }
  }

  // ---- a step -------------------------------------------------------------------------------------------------------------------

  bool take_step() {
    const auto start = clock::now();
    collect();
    sweep();
    schedule_.plan();
    if (!schedule_.rows().empty()) {
      for (const auto& part : schedule_.parts()) leave_queue(job_of(*part.who));
      if (const std::optional<forward_output> out = forward()) {
        const auto computed = clock::now();
        schedule_.passed();
        std::size_t line = 0;
        for (const auto& part : schedule_.parts())
          if (part.complete) choose(*part.who, out->logits[line++].span());
        counted_.choose_s += detail::seconds_between(computed, clock::now());
      }
      ++counted_.steps;
      sweep();
    }
    counted_.step_s += detail::seconds_between(start, clock::now());
    publish();
    const std::lock_guard lock(inbox_mutex_);
    return !jobs_.empty() || !inbox_.empty();
  }

  /// Takes up new requests.
  void collect() {
    jobs arrived;
    {
      const std::lock_guard lock(inbox_mutex_);
      arrived.swap(inbox_);
    }
    for (auto& j : arrived) {
      j->turn = {static_cast<std::int64_t>(counted_.steps) - j->asked.priority * static_cast<std::int64_t>(options_.aging), n_arrived_++, 0};
      ++counted_.requests;
      counted_.prompt_tokens += j->asked.prompt.size();
      entry& first = *j->answers.front();
      first.turn = j->turn;
      first.n_siblings = j->asked.n - 1;
      schedule_.add(first);
      jobs_.push_back(std::move(j));
    }
  }

  /// Ends requests that are over for a reason that is not their text's.
  void sweep() {
    const auto now = clock::now();
    for (const auto& j : jobs_) {
      if (j->failed) end_all(*j, finish_reason::failed);
      else if (j->box->cancelled.load(std::memory_order_relaxed)) end_all(*j, finish_reason::cancelled);
      else if (j->asked.deadline && now >= *j->asked.deadline) end_all(*j, finish_reason::deadline);
      else if (j->asked.max_tokens == 0) end_all(*j, finish_reason::length);
    }
    std::erase_if(jobs_, [](const auto& j) { return j->n_ended == j->asked.n; });
  }

  std::optional<forward_output> forward() {
    const auto start = clock::now();
    std::optional<forward_output> out;
    const auto failed = attempt([&] { out = model_->forward(schedule_.rows(), schedule_.cache(), ws_, {}, schedule_.adapters()); });
    counted_.forward_s += detail::seconds_between(start, clock::now());
    counted_.computed_tokens += schedule_.rows().size();
    if (failed)
      for (const auto& part : schedule_.parts()) job_of(*part.who).failed = failed;
    return out;
  }

  /// The next token of an answer; of all of the request's answers when its prompt has just been computed.
  void choose(detail::task<B>& of, std::span<const float> logits) {
    job& j = job_of(of);
    const std::size_t first = of.text->index(), last = of.n_siblings == 0 ? first + 1 : j.asked.n;
    of.n_siblings = 0;
    const auto failed = attempt([&] {
      while (j.answers.size() < last) {
        entry& sibling = *j.answers.emplace_back(std::make_unique<entry>(j, j.answers.size(), *this));
        sibling.turn = j.turn, sibling.turn.answer = sibling.answer.index();
        schedule_.fork(of, sibling);
      }
      for (std::size_t i = first; i < last; ++i) choose_one(j, i, logits);
    });
    if (failed) j.failed = failed;
  }
  void choose_one(job& j, std::size_t i, std::span<const float> logits) {
    detail::answer& a = j.answers[i]->answer;
    std::optional<engine_event> token = a.choose(logits, scratch_, max_length());
    if (token) {
      const auto now = clock::now();
      if (a.last_token) counted_.inter_token.add(detail::seconds_between(*a.last_token, now));
      else counted_.first_token.add(detail::seconds_between(j.submitted, now));
      a.last_token = now;
      ++counted_.generated_tokens;
      deliver(j, std::move(*token));
    }
    if (a.reason() != finish_reason::none) end(j, i, a.reason());
  }

  // ---- ends ---------------------------------------------------------------------------------------------------------------------

  void end(job& j, std::size_t i, finish_reason reason) {
    if (!j.answers[i]) return;
    engine_event last = j.answers[i]->answer.finish(reason);
    schedule_.remove(*j.answers[i]);
    j.answers[i].reset();
    finish(j, std::move(last));
  }
  /// Ends all answers that have not ended, also those that never began.
  void end_all(job& j, finish_reason reason) {
    for (std::size_t i = 0; i < j.answers.size(); ++i) end(j, i, reason);
    for (std::size_t i = j.answers.size(); i < j.asked.n; ++i)
      finish(j, {.answer = i, .reason = reason, .usage = {.prompt_tokens = j.asked.prompt.size(), .cached_tokens = 0, .generated_tokens = 0}});
    leave_queue(j);
  }
  void finish(job& j, engine_event last) {
    ++j.n_ended, ++counted_.finished;
    if (j.failed) last.failure = j.failed->code, last.message = j.failed->message;
    deliver(j, std::move(last));
  }
  void deliver(job& j, engine_event e) {
    if (!j.asked.on_event) return j.box->push(std::move(e));
    if (!j.mute) try {
        j.asked.on_event(e);
      } catch (...) {  // whatever the host throws is the host's: its request ends here, the others go on
        j.mute = true;
        j.box->cancelled.store(true, std::memory_order_relaxed);
      }
    if (e.reason != finish_reason::none) j.box->end_one();
  }
  void leave_queue(job& j) {
    if (!std::exchange(j.queued, false)) return;
    const std::lock_guard lock(inbox_mutex_);
    --n_queued_;
  }

  // ---- small things -------------------------------------------------------------------------------------------------------------

  [[nodiscard]] static job& job_of(detail::task<B>& t) noexcept { return *static_cast<entry&>(t).owner; }

  /// What f() throws, if it does.
  template <class F>
  static std::optional<failure> attempt(F&& f) {
    try {
      f();
      return {};
    } catch (const error& e) {
      return failure{e.code(), e.what()};
    } catch (const std::exception& e) {  // of the standard library: no memory
      return failure{errc::out_of_memory, e.what()};
    }
  }

  void publish() {
    schedule_.report(counted_);
    const std::lock_guard lock(metrics_mutex_);
    published_ = counted_;
  }

  const llama<B>* model_;
  const tokenizer* words_;
  engine_options options_;
  // Of whoever has the turn.
  detail::scheduler<B> schedule_;
  workspace<B> ws_;
  sampling_scratch scratch_;
  jobs jobs_;
  std::uint64_t n_arrived_ = 0;
  engine_metrics counted_;
  std::atomic<bool> stepping_ = false;
  // Of all threads.
  mutable std::mutex inbox_mutex_, metrics_mutex_;
  std::condition_variable_any inbox_changed_;
  jobs inbox_;                // guarded by inbox_mutex_
  std::size_t n_queued_ = 0;  // guarded by inbox_mutex_
  std::map<std::uint32_t, std::shared_ptr<const lora_weights<B>>> adapters_;  // guarded by inbox_mutex_
  std::uint32_t last_adapter_ = 0;                                            // guarded by inbox_mutex_
  engine_metrics published_;  // guarded by metrics_mutex_
  std::atomic<bool> working_ = false;
  std::jthread worker_;
};

}  // namespace quena::inline QUENA_ABI
