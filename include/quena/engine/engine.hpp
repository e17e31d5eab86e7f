// SPDX-License-Identifier: MIT
// Many sequences at once over one model: requests come and go between passes, and each pass takes one row of every sequence that decodes
// and fills up with pieces of prompts (continuous batching: Yu et al. 2022, Orca; chunked prefill: Agrawal et al. 2023, arXiv:2308.16369).
// What a request gets does not depend, by a bit, on what else runs: that is forward()'s contract, and draws are keyed by the request.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <utility>
#include <vector>

#include "../model/llama.hpp"
#include "request.hpp"

namespace quena::inline QUENA_ABI {

struct engine_options {
  std::size_t max_sequences = 32;  ///< that run at the same time
  std::size_t max_positions = 0;   ///< longest sequence; 0: as kv_options
  std::size_t page_size = 16;
  std::size_t cache_bytes = 0;     ///< keys and values of all sequences, never exceeded; 0: max_sequences of the longest
  std::optional<dtype> cell = {};
  std::size_t step_tokens = 256;   ///< rows of one pass: decoding first, the rest is prompts
  std::size_t max_queue = 1024;    ///< completions that wait; more are refused
  std::size_t max_rank = 0;        ///< of adapters; 0: none
};

/// Counts since the engine was made, and what is there now.
struct engine_metrics {
  std::size_t queued = 0, running = 0, pages_free = 0, pages = 0;
  std::uint64_t steps = 0, prompt_tokens = 0, generated_tokens = 0, preemptions = 0, finished = 0;
  double first_token_s = 0;  ///< mean time from submit() to the first token of those that have one
};

/// Errors   busy: more completions than max_queue; invalid_argument, context_overflow: a request that can never run.
/// Threads  submit(), metrics() and handles: any. step() and run(): one at a time. The model must outlive the engine.
template <backend B>
class engine {
  using clock = std::chrono::steady_clock;

 public:
  explicit engine(const llama<B>& model, const engine_options& o = {})
      : model_(&model), options_(o), cache_(model.make_cache(cache_options(model, o))),
        ws_(model.make_workspace(cache_, {.max_rows = (std::max)(o.step_tokens, o.max_sequences), .max_logits = o.max_sequences, .max_rank = o.max_rank})) {
    rows_.reserve(ws_.max_rows);
  }
  /// What still runs ends as cancelled.
  ~engine() {
    for (job& j : waiting_) end(j, engine_finish::cancelled);
    for (job& j : running_) end(j, engine_finish::cancelled);
    for (job& j : arrived_) end(j, engine_finish::cancelled);
  }
  engine(const engine&) = delete;
  engine& operator=(const engine&) = delete;

  [[nodiscard]] engine_handle submit(engine_request<B> r) {
    const std::size_t vocab_size = model_->config().vocab_size;
    const auto bad = [](const error_message& what, errc code = errc::invalid_argument) { fail(code, "engine", what); };
    if (r.prompt.empty()) bad("expected a prompt of at least one token, got none");
    if (r.n == 0 || r.max_tokens == 0) bad({"expected at least one completion of at least one token, got ", r.n, " of ", r.max_tokens});
    if (r.prompt.size() >= cache_.max_positions()) bad({"expected a prompt below the context of ", cache_.max_positions(), " tokens, got ", r.prompt.size()}, errc::context_overflow);
    if (cache_.pages_for(r.prompt.size()) > cache_.shape().n_pages) bad({"expected a prompt that fits in ", cache_.shape().n_pages, " pages, got ", r.prompt.size(), " tokens"}, errc::context_overflow);
    if (r.adapter != nullptr && r.adapter->max_rank() > options_.max_rank) bad({"expected an adapter of rank ", options_.max_rank, " at most, got ", r.adapter->max_rank()});
    const auto channel = std::make_shared<detail::request_channel>();
    channel->open = r.n;
    const auto request = std::make_shared<const engine_request<B>>(std::move(r));
    jobs fresh;
    for (std::size_t i = 0; i < request->n; ++i) {
      job& j = fresh.emplace_back(job{request, channel, i, sampler(request->sampling, vocab_size, i), request->prompt, {}, clock::now()});
      j.choice.accept_prompt(request->prompt);
    }
    {
      const std::lock_guard lock(mutex_);
      if (n_queued_ + fresh.size() > options_.max_queue) bad({"expected at most ", options_.max_queue, " completions in the queue, got ", n_queued_ + fresh.size()}, errc::busy);
      n_queued_ += fresh.size();
      arrived_.splice(arrived_.end(), fresh);
    }
    work_.notify_all();
    return engine_handle(channel);
  }

  /// One pass. False: there was nothing to do.
  /// Errors   as forward(); the requests that were in the pass end as failed, and the engine goes on with the others.
  bool step() {
    take_arrived();
    drop_ended();
    plan();
    if (rows_.empty()) {
      const bool ended = drop_ended();
      publish();
      return ended;
    }
    publish();
    try {
      const forward_output out = model_->forward(rows_, cache_, ws_, {}, adapters_);
      std::size_t line = 0;
      ++counts_.steps;
      for (job* const j : in_pass_) advance(*j, out, line);
    } catch (...) {
      for (job* const j : in_pass_) j->finish = engine_finish::failed;
      drop_ended();
      publish();
      throw;
    }
    share_prompts();
    drop_ended();
    publish();
    return true;
  }
  /// Steps until the time is over or nothing is left to do; ends at most one pass late.
  bool step_for(clock::duration budget) {
    const auto until = clock::now() + budget;
    bool more = true;
    while (more && clock::now() < until) more = step();
    return more;
  }
  /// Steps until `stop`, and sleeps while there is nothing to do. For a thread of the host's: std::jthread([&](std::stop_token t) { e.run(t); }).
  void run(const std::stop_token& stop) {
    const std::stop_callback wake(stop, [this] {
      const std::lock_guard lock(mutex_);  // not between the sleeper's look at `stop` and its sleep
      work_.notify_all();
    });
    while (!stop.stop_requested()) {
      if (step()) continue;
      std::unique_lock lock(mutex_);
      work_.wait(lock, [&] { return stop.stop_requested() || !arrived_.empty(); });
    }
  }

  [[nodiscard]] engine_metrics metrics() const {
    const std::lock_guard lock(mutex_);
    engine_metrics m = metrics_;
    m.queued = n_queued_;
    return m;
  }

 private:
  /// A completion: tokens holds the prompt and what was generated; the cache holds the first ones of them.
  struct job {
    std::shared_ptr<const engine_request<B>> request;
    std::shared_ptr<detail::request_channel> channel;
    std::size_t index;
    sampler choice;
    std::vector<token_id> tokens;
    std::optional<sequence_id> sequence;  // while it runs
    clock::time_point submitted;
    std::size_t planned = 0;              // tokens of this pass
    std::size_t line = 0;                 // of the pass's logits
    engine_finish finish = engine_finish::none;
    bool chose_first = false;             // in the last pass: its cache holds exactly the prompt

    [[nodiscard]] std::size_t generated() const noexcept { return tokens.size() - request->prompt.size(); }
  };
  using jobs = std::list<job>;

  static kv_options cache_options(const llama<B>& model, const engine_options& o) {
    if (o.max_sequences == 0 || o.step_tokens == 0) fail(errc::invalid_argument, "engine", {"expected positive sizes, got ", o.max_sequences, " sequences and ", o.step_tokens, " tokens"});
    kv_options k{.max_positions = o.max_positions, .max_sequences = o.max_sequences, .page_size = o.page_size, .n_pages = 0, .cell = o.cell};
    if (o.cache_bytes == 0) return k;
    k.n_pages = 1;
    const std::size_t page = model.make_cache(k).shape().page_bytes();
    k.n_pages = o.cache_bytes / page;
    if (k.n_pages == 0) fail(errc::invalid_argument, "engine", {"expected cache_bytes of at least one page, ", page, " bytes, got ", o.cache_bytes});
    return k;
  }
  [[nodiscard]] std::size_t length(const job& j) const { return j.sequence ? cache_.length(*j.sequence) : 0; }
  void take_arrived() {
    const std::lock_guard lock(mutex_);
    while (!arrived_.empty()) {  // behind all of its own priority
      const auto place = std::find_if(waiting_.begin(), waiting_.end(), [&](const job& j) { return j.request->priority < arrived_.front().request->priority; });
      waiting_.splice(place, arrived_, arrived_.begin());
    }
  }
  /// Completions that were cancelled, came too late or ended go. Whether there were any.
  bool drop_ended() {
    const auto now = clock::now();
    const std::uint64_t before = counts_.finished;
    for (jobs* const list : {&running_, &waiting_})
      for (auto j = list->begin(); j != list->end();) {
        if (j->finish == engine_finish::none && j->channel->cancelled) j->finish = engine_finish::cancelled;
        if (j->finish == engine_finish::none && cache_.pages_for(j->tokens.size()) > cache_.shape().n_pages) j->finish = engine_finish::length;  // fills all memory
        if (j->finish == engine_finish::none && j->request->deadline && now >= *j->request->deadline) j->finish = engine_finish::deadline;
        if (j->finish == engine_finish::none) {
          ++j;
          continue;
        }
        if (j->sequence) cache_.remove(*j->sequence);
        end(*j, j->finish);
        ++counts_.finished;
        j = list->erase(j);
      }
    return counts_.finished != before;
  }
  static void end(job& j, engine_finish why) { j.channel->push({.completion = j.index, .token = -1, .finish = why}); }

  /// Which rows the next pass has. Running jobs stand in the order in which they may keep their place.
  void plan() {
    while (!plan_rows() && running_.size() > 1) preempt(std::prev(running_.end()));  // prompts that block each other: the last one makes room
    if (rows_.empty() && running_.size() == 1) running_.front().finish = engine_finish::length;  // nothing is left that could make room
  }
  bool plan_rows() {
    rows_.clear(), in_pass_.clear(), adapters_.clear();
    std::size_t budget = options_.step_tokens, n_free = cache_.free_pages();
    for (job& j : running_) j.planned = 0;
    const auto is_decoding = [&](const job& j) { return j.tokens.size() - length(j) == 1; };
    const auto take = [&](job& j, std::size_t n) {
      n_free -= cache_.pages_needed(*j.sequence, length(j) + n);
      j.planned = n;
      budget -= (std::min)(budget, n);
    };
    // Decoding, the first ones first; where pages run out, the last ones lose theirs.
    for (auto j = running_.begin(); j != running_.end(); ++j) {
      if (!is_decoding(*j)) continue;
      while (cache_.pages_needed(*j->sequence, length(*j) + 1) > n_free && std::prev(running_.end()) != j) n_free += preempt(std::prev(running_.end()));
      if (cache_.pages_needed(*j->sequence, length(*j) + 1) > n_free) break;  // the last one: it waits until others end
      take(*j, 1);
    }
    // Then the rest of prompts: of those that run, and of those that fit beside all that these will need.
    std::size_t promised = 0;
    const auto prefill = [&](job& j) {
      std::size_t n = (std::min)(budget, j.tokens.size() - length(j));
      while (n != 0 && cache_.pages_needed(*j.sequence, length(j) + n) > n_free) --n;
      if (n != 0) take(j, n);
      promised += cache_.pages_for(j.tokens.size()) - (std::min)(cache_.pages_for(j.tokens.size()), cache_.pages_for(length(j) + n));
    };
    for (job& j : running_)
      if (!is_decoding(j)) prefill(j);
    while (!waiting_.empty() && budget != 0 && running_.size() < options_.max_sequences && cache_.pages_for(waiting_.front().tokens.size()) + promised <= n_free) {
      job& j = waiting_.front();
      j.sequence = cache_.add();
      running_.splice(place_of(j), waiting_, waiting_.begin());
      prefill(j);
    }
    stage();
    return !rows_.empty();
  }
  [[nodiscard]] typename jobs::iterator place_of(const job& j) {
    return std::find_if(running_.begin(), running_.end(), [&](const job& other) { return other.request->priority < j.request->priority; });
  }
  /// Gives a job's pages back; it will be computed anew, and goes on as if nothing had been. Returns the pages that came free.
  std::size_t preempt(typename jobs::iterator j) {
    const std::size_t before = cache_.free_pages();
    cache_.remove(*j->sequence);
    j->sequence.reset(), j->planned = 0;
    ++counts_.preemptions;
    waiting_.splice(std::find_if(waiting_.begin(), waiting_.end(), [&](const job& other) { return other.request->priority <= j->request->priority; }), running_, j);
    return cache_.free_pages() - before;
  }
  void stage() {
    for (job& j : running_) {
      j.chose_first = false;
      if (j.planned == 0) continue;
      std::uint32_t adapter = no_adapter;
      if (j.request->adapter != nullptr) {
        const auto known = std::find(adapters_.begin(), adapters_.end(), j.request->adapter);
        adapter = static_cast<std::uint32_t>(known - adapters_.begin());
        if (known == adapters_.end()) adapters_.push_back(j.request->adapter);
      }
      const std::size_t first = length(j);
      for (std::size_t i = first; i < first + j.planned; ++i)
        rows_.push_back({j.tokens[i], static_cast<std::uint32_t>(i), *j.sequence, i + 1 == j.tokens.size(), adapter});
      in_pass_.push_back(&j);
    }
  }

  /// What a pass means for one of its jobs.
  void advance(job& j, const forward_output& out, std::size_t& line) {
    counts_.prompt_tokens += j.generated() == 0 ? j.planned : 0;
    if (length(j) != j.tokens.size()) return;  // more of the prompt to come
    j.line = line++;
    j.chose_first = j.generated() == 0;
    if (j.chose_first) first_token_s_ += std::chrono::duration<double>(clock::now() - j.submitted).count(), ++n_first_tokens_;
    choose(j, out.logits[j.line].span());
  }
  void choose(job& j, std::span<const float> logits) {
    sampled s;
    try {
      s = j.choice.choose(logits);
    } catch (const error&) {  // nothing to choose from: this completion's trouble alone
      j.finish = engine_finish::failed;
      return;
    }
    if (j.choice.is_end(s.token)) return void(j.finish = engine_finish::stop);
    j.choice.accept(s.token);
    j.tokens.push_back(s.token);
    ++counts_.generated_tokens;
    j.channel->push({.completion = j.index, .token = s.token, .finish = engine_finish::none, .logprob = s.logprob, .top = {s.top.begin(), s.top.end()}});
    if (j.generated() == j.request->max_tokens || j.tokens.size() > cache_.max_positions()) j.finish = engine_finish::length;
  }
  /// The other completions of a prompt that has just been computed begin with its pages and its logits.
  void share_prompts() {
    for (auto j = running_.begin(); j != running_.end(); ++j) {
      if (!j->chose_first || j->request->n == 1) continue;
      for (auto other = waiting_.begin(); other != waiting_.end() && running_.size() < options_.max_sequences;) {
        const auto next = std::next(other);
        if (other->request == j->request && other->generated() == 0) {
          other->sequence = cache_.fork(*j->sequence);
          choose(*other, {ws_.host_logits.data() + j->line * model_->config().vocab_size, model_->config().vocab_size});
          running_.splice(std::next(j), waiting_, other);
        }
        other = next;
      }
    }
  }
  void publish() {
    const std::lock_guard lock(mutex_);
    n_queued_ = waiting_.size() + arrived_.size();
    metrics_ = counts_;
    metrics_.running = running_.size(), metrics_.pages_free = cache_.free_pages(), metrics_.pages = cache_.shape().n_pages;
    metrics_.first_token_s = n_first_tokens_ == 0 ? 0 : first_token_s_ / static_cast<double>(n_first_tokens_);
  }

  const llama<B>* model_;
  engine_options options_;
  kv_cache<B> cache_;
  workspace<B> ws_;
  jobs waiting_, running_;
  std::vector<row> rows_;
  std::vector<job*> in_pass_;
  std::vector<const lora_weights<B>*> adapters_;
  engine_metrics counts_;
  double first_token_s_ = 0;
  std::size_t n_first_tokens_ = 0;

  mutable std::mutex mutex_;  // of what follows
  std::condition_variable work_;
  jobs arrived_;
  std::size_t n_queued_ = 0;
  engine_metrics metrics_;
};

}  // namespace quena::inline QUENA_ABI
