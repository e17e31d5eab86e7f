// SPDX-License-Identifier: MIT
// A conversation: turns through the model's own chat template, on one session whose cache is reused from turn to turn.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "generate.hpp"
#include "text/chat_template.hpp"

namespace quena::inline QUENA_ABI {

struct chat_options {
  std::string system = {};           ///< the system message; empty: none
  generate_options generate = {};    ///< for every answer
  std::string variables_json = {};   ///< more template variables as a JSON object: tools, date_string, …
  jinja::clock_function clock = {};  ///< for templates that ask for the date; empty: the system's
};

/// Keeps the messages and answers them. What a user writes never becomes a control token: only what the template itself wrote is
/// read as such. The llm must outlive it.
///   quena::chat talk(llm, {.system = "Be brief."});
///   for (std::string_view piece : talk.send("Who wrote Moby Dick?")) std::cout << piece << std::flush;
template <backend B>
class chat {
 public:
  /// Errors   unsupported: the model has no chat template; malformed: it has one that cannot be read (which line, and why).
  explicit chat(const llm<B>& source, chat_options options = {})
      : source_(&source), options_(std::move(options)), template_(template_of(source)), session_(source.model, source.cache) {
    if (!options_.system.empty()) messages_.push_back({"system", options_.system});
  }
  chat(const chat&) = delete;
  chat& operator=(const chat&) = delete;

  /// Adds the user's message and returns the answer as a range of pieces, which are recorded as they are delivered. An answer that
  /// is abandoned or cancelled stays in the history as far as it was delivered. One answer at a time.
  /// Errors   context_overflow: the conversation does not fit any more; the history is as it was before the call.
  [[nodiscard]] generation<B> send(std::string_view user) {
    const std::size_t before = messages_.size();
    try {
      messages_.push_back({"user", std::string(user)});
      const std::vector<token_id> ids = prompt();
      if (ids.empty()) fail(errc::invalid_argument, "chat", "expected a chat template that writes something, got nothing from it");
      messages_.push_back({"assistant", {}});
      // What the cache holds already need not be computed again; at least one token must be, for its logits.
      const auto cached = session_.tokens();
      const auto differ = std::mismatch(cached.begin(), cached.end(), ids.begin(), ids.end() - 1).first;
      session_.rewind(static_cast<std::size_t>(differ - cached.begin()));
      return generation<B>(*source_, session_, std::span(ids).subspan(session_.length()), options_.generate, &messages_.back().content);
    } catch (...) {
      messages_.resize(before);
      throw;
    }
  }

  /// The callback form: see run().
  template <class F>
    requires std::invocable<F&, std::string_view>
  generate_result send(std::string_view user, F&& each) {
    generation<B> answer = send(user);
    return run(answer, each);
  }

  [[nodiscard]] const std::vector<chat_message>& messages() const noexcept { return messages_; }
  [[nodiscard]] chat_options& options() noexcept { return options_; }
  /// Forgets everything but the system message.
  void clear() { messages_.resize(options_.system.empty() ? 0 : 1); }

 private:
  [[nodiscard]] static chat_template template_of(const llm<B>& source) {
    if (!source.chat_template) fail(errc::unsupported, "chat", "expected a model with a chat template, got one without");
    return chat_template(*source.chat_template);
  }
  [[nodiscard]] std::vector<token_id> prompt() const {
    const rendered_chat text = template_.render(
        messages_, {.add_generation_prompt = true, .bos_token = source_->bos_token, .eos_token = source_->eos_token, .special_tokens = {}, .clock = options_.clock}, options_.variables_json);
    return source_->tokenizer.encode_segments(text.segments(), false);
  }

  const llm<B>* source_;
  chat_options options_;
  chat_template template_;
  session<B> session_;
  std::vector<chat_message> messages_;
};

}  // namespace quena::inline QUENA_ABI
