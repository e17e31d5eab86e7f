// SPDX-License-Identifier: MIT
// Chat templates: a conversation to the text a model was trained on, with special tokens only where the template put them.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../core/error.hpp"
#include "../io/json.hpp"
#include "jinja/from_json.hpp"
#include "jinja/interpreter.hpp"
#include "jinja/parser.hpp"
#include "segment.hpp"

namespace quena::inline QUENA_ABI {

/// One turn of a conversation. For tool calls and other fields use the JSON form.
struct chat_message {
  std::string role;
  std::string content;
};

/// What a rendering needs besides the messages.
struct template_options {
  bool add_generation_prompt = true;  ///< end with the header of the assistant's turn
  std::string bos_token, eos_token;   ///< text of these special tokens; count as written by the template. Empty: undefined
  std::vector<std::pair<std::string, std::string>> special_tokens;  ///< further ones: {"pad_token", "<pad>"}
  jinja::clock_function clock;        ///< what strftime_now() shows; empty: the system's local time
};

/// A rendered conversation: the text, and which parts of it the template wrote.
class rendered_chat {
 public:
  explicit rendered_chat(jinja::text t) : text_(std::move(t)) {}

  [[nodiscard]] const std::string& text() const noexcept { return text_.bytes(); }

  /// For tokenizer.encode_segments() with add_bos = false: the template writes the BOS itself if the model wants one. What came
  /// from messages, tools or variables has parse_special = false, so it can never become a control token; nor can a token
  /// that is put together from the template's and somebody else's characters. The views refer to this object.
  [[nodiscard]] std::vector<text_segment> segments() const {
    std::vector<text_segment> out;
    text_.for_each_run([&](std::string_view bytes, bool from_template) { out.push_back({bytes, from_template}); });
    return out;
  }

 private:
  jinja::text text_;
};

/// A chat template in the part of Jinja that Llama-family models and their fine-tunes use, rendered as Jinja2 does under
/// Hugging Face transformers: sandboxed, trim_blocks, lstrip_blocks, break and continue, tojson without ASCII escapes,
/// raise_exception, strftime_now, generation blocks. `tools` and `documents` are none unless given; the numbers, dates and brackets
/// that printing makes count as data.
/// Threads  render is const and may run in several threads at once.
/// Errors   [name] line N: …, as quena::error: malformed (syntax, not UTF-8), invalid_argument (the template refuses these messages,
///          or uses what is undefined), out_of_memory (a budget of jinja::limits is exhausted).
/// Source   the template documentation of Jinja 3.1; transformers, utils/chat_template_utils.py (behaviour).
class chat_template {
 public:
  explicit chat_template(std::string_view source, std::string_view name = "chat_template", const jinja::limits& bounds = {})
      : name_(name), bounds_(bounds), program_(jinja::parser(source, name_, bounds_).run()) {}

  /// Renders over a dict of all variables, just as given.
  [[nodiscard]] rendered_chat render(const jinja::value& variables, const jinja::clock_function& clock = {}) const {
    if (!variables.is(jinja::kind::dict)) fail(errc::invalid_argument, name_, {"expected the variables as a dict, got '", jinja::type_name(variables), "'"});
    jinja::runtime rt(bounds_, name_, input_bytes(variables), clock);
    return rendered_chat(jinja::interpreter(program_, rt, variables.as_dict()).run());
  }

  /// Renders messages that are only roles and texts; `vars_json` as in render_json().
  [[nodiscard]] rendered_chat render(std::span<const chat_message> messages, const template_options& options = {}, std::string_view vars_json = {}) const {
    std::vector<jinja::value> list;
    list.reserve(messages.size());
    for (const chat_message& m : messages) list.push_back(jinja::value::dict({{"role", m.role}, {"content", m.content}}));
    return render_chat(jinja::value::list(std::move(list)), variables(vars_json), options);
  }

  /// Renders a JSON array of messages; `vars_json` is a JSON object of further variables (tools, date_string, …) or empty.
  [[nodiscard]] rendered_chat render_json(std::string_view messages_json, std::string_view vars_json = {}, const template_options& options = {}) const {
    const jinja::value messages = jinja::value_from_json(messages_json, name_, "messages");
    if (!messages.is(jinja::kind::list)) fail(errc::invalid_argument, name_, "expected a JSON array of messages, got another value");
    return render_chat(messages, variables(vars_json), options);
  }

  /// As the above, from values: `messages` a list of dicts, `vars` a dict.
  [[nodiscard]] rendered_chat render_chat(const jinja::value& messages, const jinja::value& vars, const template_options& options = {}) const {
    auto all = std::make_unique<jinja::dict_object>();
    const auto set = [&](std::string_view key, jinja::value v) { jinja::dict_insert(*all, jinja::value(std::string(key)), std::move(v)); };
    set("tools", jinja::value(nullptr));
    set("documents", jinja::value(nullptr));
    set("add_generation_prompt", jinja::value(options.add_generation_prompt));
    if (!options.bos_token.empty()) set("bos_token", jinja::value(options.bos_token, true));
    if (!options.eos_token.empty()) set("eos_token", jinja::value(options.eos_token, true));
    for (const auto& [key, token] : options.special_tokens) set(key, jinja::value(token, true));
    for (const auto& [key, v] : vars.as_dict().entries) jinja::dict_insert(*all, key, v);
    set("messages", messages);
    return render(jinja::value(jinja::kind::dict, std::move(all)), options.clock);
  }

 private:
  [[nodiscard]] jinja::value variables(std::string_view vars_json) const {
    jinja::value vars = vars_json.empty() ? jinja::value::dict({}) : jinja::value_from_json(vars_json, name_, "variables");
    if (!vars.is(jinja::kind::dict)) fail(errc::invalid_argument, name_, "expected a JSON object of variables, got another value");
    return vars;
  }

  /// Bytes of text and values in the input, for the budgets.
  static std::size_t input_bytes(const jinja::value& v) {
    std::size_t n = 16;
    if (v.is_string()) n += v.as_text().size();
    if (v.is(jinja::kind::list))
      for (const jinja::value& item : v.as_list().items) n += input_bytes(item);
    if (v.is(jinja::kind::dict))
      for (const auto& [key, item] : v.as_dict().entries) n += input_bytes(key) + input_bytes(item);
    return n;
  }

  std::string name_;
  jinja::limits bounds_;
  jinja::program program_;
};

}  // namespace quena::inline QUENA_ABI
