// SPDX-License-Identifier: MIT
// JSON from untrusted bytes: bounded depth, no duplicate keys, every failure a quena::error.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "../core/error.hpp"

namespace quena::inline QUENA_ABI {

using json = nlohmann::json;

/// Bounds on a JSON text that somebody else wrote.
struct json_limits {
  std::size_t max_depth = 64;  ///< nesting of arrays and objects
};

namespace detail {

/// What a JSON text consists of, in order. An interface, so that the parser behind read_json() is compiled once for all sinks:
/// each further instantiation of it would cost two seconds of every user's build.
class json_events {
 public:
  virtual void null() = 0;
  virtual void boolean(bool v) = 0;
  virtual void number_integer(std::int64_t v) = 0;
  virtual void number_unsigned(std::uint64_t v) = 0;
  virtual void number_float(double v, const std::string& literal) = 0;
  virtual void string(std::string& v) = 0;
  virtual void key(std::string& v) = 0;
  virtual void start_object() = 0;
  virtual void end_object() = 0;
  virtual void start_array() = 0;
  virtual void end_array() = 0;

 protected:
  ~json_events() = default;
};

/// Hands the events on to a sink: a class with the members of json_events but virtual; number_float may take the value alone,
/// or the literal too (integers beyond 64 bits arrive there as well).
template <class Sink>
class json_events_to final : public json_events {
 public:
  explicit json_events_to(Sink& sink) : sink_(sink) {}

  void null() override { sink_.null(); }
  void boolean(bool v) override { sink_.boolean(v); }
  void number_integer(std::int64_t v) override { sink_.number_integer(v); }
  void number_unsigned(std::uint64_t v) override { sink_.number_unsigned(v); }
  void number_float(double v, const std::string& literal) override {
    if constexpr (requires(Sink& s) { s.number_float(v, literal); }) sink_.number_float(v, literal);
    else sink_.number_float(v);
  }
  void string(std::string& v) override { sink_.string(v); }
  void key(std::string& v) override { sink_.key(v); }
  void start_object() override { sink_.start_object(); }
  void end_object() override { sink_.end_object(); }
  void start_array() override { sink_.start_array(); }
  void end_array() override { sink_.end_array(); }

 private:
  Sink& sink_;
};

/// SAX filter between nlohmann's parser and a sink: checks depth and turns the parser's complaint into a quena::error.
class json_guard {
 public:
  json_guard(json_events& sink, json_limits limits, std::string_view where, std::string_view file)
      : sink_(sink), limits_(limits), where_(where), file_(file) {}

  bool null() { return sink_.null(), true; }
  bool boolean(bool v) { return sink_.boolean(v), true; }
  bool number_integer(std::int64_t v) { return sink_.number_integer(v), true; }
  bool number_unsigned(std::uint64_t v) { return sink_.number_unsigned(v), true; }
  bool number_float(double v, const std::string& literal) { return sink_.number_float(v, literal), true; }
  bool string(std::string& v) { return sink_.string(v), true; }
  bool binary(json::binary_t&) { return false; }
  bool key(std::string& v) { return sink_.key(v), true; }
  bool start_object(std::size_t) { return enter(), sink_.start_object(), true; }
  bool end_object() { return --depth_, sink_.end_object(), true; }
  bool start_array(std::size_t) { return enter(), sink_.start_array(), true; }
  bool end_array() { return --depth_, sink_.end_array(), true; }
  bool parse_error(std::size_t position, const std::string& token, const json::exception& e) {
    // The parser says "[…] parse error at line 3, column 2: syntax error while parsing value - why; last read: '…'; expected …".
    std::string_view why = e.what();
    std::string place = "byte " + std::to_string(position);
    if (const std::size_t line = why.find("line "), end = why.find(": "); line < end && end != why.npos) place = why.substr(line, end - line);
    if (const std::size_t dash = why.find(" - "), bracket = why.find("] "); dash != why.npos) why.remove_prefix(dash + 3);
    else if (bracket != why.npos) why.remove_prefix(bracket + 2);
    std::string reason(why.substr(0, (std::min)(why.find("; last read"), std::size_t{120})));
    if (reason.size() < why.size()) {
      std::string_view read = token;  // of which the last word is the culprit
      if (const std::size_t space = read.find_last_of(" \n\r\t"); space != read.npos) read.remove_prefix(space + 1);
      reason += " near '" + std::string(read.substr(read.size() - (std::min)(read.size(), std::size_t{40}))) + "'";
    }
    for (char& c : reason)  // the culprit may be invalid UTF-8, which an error's text must not be
      if (static_cast<unsigned char>(c) >= 0x80) c = '?';
    fail(errc::malformed, where_, {"expected JSON, got an error at ", place, ": ", reason}, file_);
  }

 private:
  void enter() {
    if (++depth_ > limits_.max_depth)
      fail(errc::malformed, where_, {"expected JSON nested at most ", limits_.max_depth, " deep, got more"}, file_);
  }

  json_events& sink_;
  json_limits limits_;
  std::string_view where_, file_;
  std::size_t depth_ = 0;
};

/// Builds a json value; a key given twice is an error, since readers disagree on which one counts.
class json_builder {
 public:
  json_builder(std::string_view where, std::string_view file) : where_(where), file_(file) {}

  void null() { put(nullptr); }
  void boolean(bool v) { put(v); }
  void number_integer(std::int64_t v) { put(v); }
  void number_unsigned(std::uint64_t v) { put(v); }
  void number_float(double v) { put(v); }
  void string(std::string& v) { put(std::move(v)); }
  void start_object() { open_.push_back(put(json::object())); }
  void start_array() { open_.push_back(put(json::array())); }
  void end_object() { open_.pop_back(); }
  void end_array() { open_.pop_back(); }
  void key(std::string& k) {
    auto [it, fresh] = open_.back()->get_ref<json::object_t&>().emplace(k, nullptr);
    if (!fresh) fail(errc::malformed, where_, {"expected each key once, got '", k.substr(0, 200), "' twice"}, file_);
    slot_ = &it->second;
  }
  json take() { return std::move(root_); }

 private:
  template <class V>
  json* put(V&& v) {
    if (open_.empty()) return &(root_ = std::forward<V>(v));
    if (open_.back()->is_array()) {
      auto& a = open_.back()->get_ref<json::array_t&>();
      return &a.emplace_back(std::forward<V>(v));
    }
    return &(*slot_ = std::forward<V>(v));
  }

  json root_;
  json* slot_ = nullptr;
  std::vector<json*> open_;  // only the innermost container grows, so these stay valid
  std::string_view where_, file_;
};

}  // namespace detail

/// Streams `text` into `sink` (see detail::json_events_to for the members it needs).
/// Errors   malformed, with the byte where it went wrong.   Cost  linear; memory: the nesting only.
template <class Sink>
void read_json(std::string_view text, Sink& sink, std::string_view where, std::string_view file = {}, json_limits limits = {}) {
  detail::json_events_to<Sink> events(sink);
  detail::json_guard guard(events, limits, where, file);
  // json::sax_parse would compile nlohmann's readers of four binary formats as well.
  auto input = nlohmann::detail::input_adapter(text.data(), text.data() + text.size());
  nlohmann::detail::parser<json, decltype(input)>(std::move(input)).sax_parse(&guard, true);
}

/// Parses a whole JSON text. `where` and `file` go into error messages.
/// Errors   malformed: not JSON, invalid UTF-8, a number out of range, a key twice, nested too deep.
inline json parse_json(std::string_view text, std::string_view where, std::string_view file = {}, json_limits limits = {}) {
  detail::json_builder builder(where, file);
  read_json(text, builder, where, file, limits);
  return builder.take();
}

}  // namespace quena::inline QUENA_ABI
