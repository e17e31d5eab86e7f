// SPDX-License-Identifier: MIT
// Template source to tokens, with Jinja2's rules of white space control (trim_blocks and lstrip_blocks on).
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../../core/error.hpp"
#include "meter.hpp"
#include "unicode.hpp"

namespace quena::inline QUENA_ABI {
namespace jinja {

enum class token_kind : std::uint8_t { data, variable_begin, variable_end, block_begin, block_end, name, string, integer, floating, op, end };

struct token {
  token_kind kind = token_kind::end;
  std::uint32_t line = 1;
  std::string text;  ///< data, name, operator; a string after its escapes; the digits of a number

  [[nodiscard]] bool is_op(std::string_view s) const { return kind == token_kind::op && text == s; }
  [[nodiscard]] bool is_name(std::string_view s) const { return kind == token_kind::name && text == s; }
};

/// Splits `source` into tokens. One pass; the text between tags comes out as `data` with the white space already removed that
/// `-`, trim_blocks and lstrip_blocks take away.
/// Errors   malformed, with the line: an unclosed tag, comment, raw block or bracket, an unknown character or escape.
class lexer {
 public:
  lexer(std::string_view source, std::string_view name, const limits& bounds) : name_(name), bounds_(bounds) {
    if (source.size() > bounds.max_source_bytes) fail({"expected a template of at most ", std::to_string(bounds.max_source_bytes), " bytes, got more"});
    normalize(source);
  }

  std::vector<token> run() {
    while (at_ < source_.size()) {
      root();
    }
    add(token_kind::end, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(std::string_view message) const { fail({message}); }
  [[noreturn]] void fail(std::initializer_list<std::string_view> message) const { fail_at(errc::malformed, name_, line_, message); }

  // \r\n and \r become \n; one newline at the very end is dropped.
  void normalize(std::string_view s) {
    source_.reserve(s.size());
    for (std::size_t i = 0; i < s.size(); ++i) {
      if (s[i] == '\r') {
        source_.push_back('\n');
        if (i + 1 < s.size() && s[i + 1] == '\n') ++i;
      } else {
        source_.push_back(s[i]);
      }
    }
    if (!source_.empty() && source_.back() == '\n') source_.pop_back();
    if (!is_valid_utf8(source_)) fail("expected UTF-8, got another encoding");
  }

  void add(token_kind k, std::string text) { tokens_.push_back({k, line_, std::move(text)}); }
  [[nodiscard]] char peek(std::size_t n = 0) const { return at_ + n < source_.size() ? source_[at_ + n] : '\0'; }
  [[nodiscard]] std::string_view rest(std::size_t from) const { return std::string_view(source_).substr(from); }
  [[nodiscard]] bool looking_at(std::string_view s) const { return rest(at_).substr(0, s.size()) == s; }
  void advance_to(std::size_t to) {
    for (; at_ < to; ++at_)
      if (source_[at_] == '\n') ++line_;
    line_starting_ = at_ > 0 && source_[at_ - 1] == '\n';
  }

  // Text up to a tag, without what `sign` (or lstrip_blocks) removes before the tag.
  void data(std::size_t end, char sign, bool strip_line) {
    std::string_view text = std::string_view(source_).substr(at_, end - at_);
    if (sign == '-') {
      text = text.substr(0, trailing_space(text));
    } else if (sign != '+' && strip_line) {
      const std::size_t newline = text.rfind('\n');
      const std::size_t start = newline == text.npos ? 0 : newline + 1;
      if ((start > 0 || line_starting_) && start < text.size() && leading_space(text.substr(start)) == text.size() - start)
        text = text.substr(0, start);
    }
    if (!text.empty()) add(token_kind::data, std::string(text));
    advance_to(end);
  }

  static char sign_at(std::string_view s, std::size_t at) { return at < s.size() && (s[at] == '-' || s[at] == '+') ? s[at] : '\0'; }

  void root() {
    std::size_t tag = at_;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        add(token_kind::data, std::string(rest(at_)));
        return advance_to(source_.size());
      }
      const char c = source_[tag + 1];
      if (c == '%' || c == '{' || c == '#') break;
    }
    const char type = source_[tag + 1];
    const char sign = sign_at(source_, tag + 2);
    data(tag, sign, type != '{');
    const std::size_t inside = tag + 2 + (sign ? 1 : 0);
    if (type == '#') return comment(inside);
    if (type == '{') {
      add(token_kind::variable_begin, "");
      advance_to(inside);
      return tag_contents(true);
    }
    if (raw(inside)) return;
    add(token_kind::block_begin, "");
    advance_to(inside);
    tag_contents(false);
  }

  void comment(std::size_t from) {
    if (from >= source_.size()) return advance_to(source_.size());  // Jinja2 lets an empty one be
    const std::size_t close = source_.find("#}", from);
    if (close == std::string::npos) fail("expected '#}' after '{#', got the end of the template");
    const char sign = close > from ? sign_at(source_, close - 1) : '\0';
    advance_to(after_close(close + 2, sign, true));
  }

  // End of a tag whose delimiter ends at `at`: '-' takes all white space, a block or comment one newline unless '+'.
  [[nodiscard]] std::size_t after_close(std::size_t at, char sign, bool trim) const {
    if (sign == '-') return at + leading_space(rest(at));
    if (trim && sign != '+' && at < source_.size() && source_[at] == '\n') return at + 1;
    return at;
  }

  // `{% raw %} … {% endraw %}`; false if it is another tag.
  bool raw(std::size_t inside) {
    std::size_t p = keyword(inside, "raw");
    if (p == std::string::npos) return false;
    const bool minus = rest(p).substr(0, 3) == "-%}";
    if (!minus && rest(p).substr(0, 2) != "%}") return false;
    advance_to(minus ? p + 3 + leading_space(rest(p + 3)) : p + 2);
    for (std::size_t tag = at_;; tag += 2) {
      tag = source_.find("{%", tag);
      if (tag == std::string::npos) fail("expected '{% endraw %}', got the end of the template");
      const char sign = sign_at(source_, tag + 2);
      std::size_t end = keyword(tag + 2 + (sign ? 1 : 0), "endraw");
      if (end == std::string::npos) continue;
      const char close = sign_at(source_, end);
      if (close) ++end;
      if (rest(end).substr(0, 2) != "%}") continue;
      data(tag, sign, true);
      advance_to(after_close(end + 2, close, true));
      return true;
    }
  }

  // Position after `word` and the white space around it, or npos.
  [[nodiscard]] std::size_t keyword(std::size_t from, std::string_view word) const {
    from += leading_space(rest(from));
    if (rest(from).substr(0, word.size()) != word) return std::string::npos;
    from += word.size();
    return from + leading_space(rest(from));
  }

  bool close_tag(bool variable) {
    const char sign = peek() == '-' || (peek() == '+' && !variable) ? peek() : '\0';
    const std::size_t from = at_ + (sign ? 1 : 0);
    if (rest(from).substr(0, 2) != (variable ? "}}" : "%}")) return false;
    add(variable ? token_kind::variable_end : token_kind::block_end, "");
    advance_to(after_close(from + 2, sign, !variable));
    return true;
  }

  void tag_contents(bool variable) {
    std::string open;  // brackets that wait for their partner
    while (at_ < source_.size()) {
      if (open.empty() && close_tag(variable)) return;
      const char c = peek();
      if (const std::size_t space = leading_space(rest(at_)); space > 0) {
        advance_to(at_ + space);
      } else if (c >= '0' && c <= '9') {
        number();
      } else if (c == '\'' || c == '"') {
        string(c);
      } else if (name_length() > 0) {
        const std::size_t n = name_length();
        add(token_kind::name, std::string(rest(at_).substr(0, n)));
        advance_to(at_ + n);
      } else {
        op(open);
      }
    }
    fail(variable ? "expected '}}', got the end of the template" : "expected '%}', got the end of the template");
  }

  [[nodiscard]] std::size_t name_length() const {
    std::size_t n = 0;
    while (at_ + n < source_.size()) {
      const unsigned char c = static_cast<unsigned char>(source_[at_ + n]);
      const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c >= 0x80;
      if (!letter && !(c >= '0' && c <= '9')) break;
      ++n;
    }
    return n;
  }

  // Digits of the given base, single underscores allowed between them; npos if there is none at `from`.
  [[nodiscard]] std::size_t digits(std::size_t from, int base, bool lead_underscore = false) const {
    const auto is_digit = [&](std::size_t i) {
      const char c = i < source_.size() ? source_[i] : '\0';
      const int v = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : 99;
      return v < base;
    };
    if (lead_underscore && from < source_.size() && source_[from] == '_') ++from;
    if (!is_digit(from)) return std::string::npos;
    while (true) {
      while (is_digit(from)) ++from;
      if (from < source_.size() && source_[from] == '_' && is_digit(from + 1)) ++from;
      else return from;
    }
  }

  void number() {
    const std::size_t none = std::string::npos;
    std::size_t end = digits(at_, 10);
    bool floating = false;
    if (at_ == 0 || source_[at_ - 1] != '.') {
      if (end + 1 < source_.size() && source_[end] == '.')
        if (const std::size_t fraction = digits(end + 1, 10); fraction != none) floating = true, end = fraction;
      if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
        const bool sign = end + 1 < source_.size() && (source_[end + 1] == '+' || source_[end + 1] == '-');
        if (const std::size_t exponent = digits(end + (sign ? 2 : 1), 10); exponent != none) floating = true, end = exponent;
      }
    }
    if (!floating && peek() == '0') {  // 0x1f, 0b1, 0o7, or zeros
      const char x = static_cast<char>(peek(1) | 0x20);
      const int base = x == 'x' ? 16 : x == 'b' ? 2 : x == 'o' ? 8 : 0;
      const std::size_t based = base ? digits(at_ + 2, base, true) : none;
      if (based != none) end = based;
      else for (end = at_ + 1; end < source_.size() && (source_[end] == '0' || (source_[end] == '_' && rest(end + 1).substr(0, 1) == "0"));) ++end;
    }
    std::string text;
    for (const char c : rest(at_).substr(0, end - at_))
      if (c != '_') text.push_back(c);
    add(floating ? token_kind::floating : token_kind::integer, std::move(text));
    advance_to(end);
  }

  void string(char quote) {
    std::string s;
    std::size_t p = at_ + 1;
    for (; p < source_.size() && source_[p] != quote;) {
      if (source_[p] != '\\') {
        s.push_back(source_[p++]);
        continue;
      }
      if (++p >= source_.size()) break;
      p = escape(p, s);
    }
    if (p >= source_.size()) fail("expected a closing quote, got the end of the template");
    add(token_kind::string, std::move(s));
    advance_to(p + 1);
  }

  // Python's escapes; an unknown one keeps its backslash. `p` is after the backslash; returns the position after the escape.
  std::size_t escape(std::size_t p, std::string& s) const {
    const char c = source_[p++];
    switch (c) {
      case '\n': return p;
      case 'n': return s.push_back('\n'), p;
      case 't': return s.push_back('\t'), p;
      case 'r': return s.push_back('\r'), p;
      case 'a': return s.push_back('\a'), p;
      case 'b': return s.push_back('\b'), p;
      case 'f': return s.push_back('\f'), p;
      case 'v': return s.push_back('\v'), p;
      case '\\':
      case '\'':
      case '"': return s.push_back(c), p;
      case 'x': return code(p, 2, s);
      case 'u': return code(p, 4, s);
      case 'U': return code(p, 8, s);
      case 'N': fail("expected a numeric escape, got '\\N{…}', which is not supported");
      default: break;
    }
    if (c >= '0' && c <= '7') {
      char32_t v = static_cast<char32_t>(c - '0');
      for (int i = 0; i < 2 && p < source_.size() && source_[p] >= '0' && source_[p] <= '7'; ++i) v = v * 8 + static_cast<char32_t>(source_[p++] - '0');
      return append_utf8(s, v), p;
    }
    s.push_back('\\');
    s.push_back(c);
    return p;
  }

  std::size_t code(std::size_t p, std::size_t n, std::string& s) const {
    std::uint32_t v = 0;
    const std::string_view hex = rest(p).substr(0, n);
    const auto [end, ec] = std::from_chars(hex.data(), hex.data() + hex.size(), v, 16);
    if (hex.size() != n || ec != std::errc() || end != hex.data() + n) fail({"expected ", std::to_string(n), " hexadecimal digits in an escape"});
    if (v > 0x10ffff || (v >= 0xd800 && v < 0xe000)) fail("expected an escape for a Unicode character, got one for a surrogate or beyond");
    append_utf8(s, v);
    return p + n;
  }

  void op(std::string& open) {
    static constexpr std::string_view two[] = {"//", "**", "==", "!=", ">=", "<="};
    for (const std::string_view s : two)
      if (looking_at(s)) {
        add(token_kind::op, std::string(s));
        return advance_to(at_ + 2);
      }
    const char c = peek();
    if (std::string_view("+-/*%~[](){}<>=.:|,;").find(c) == std::string_view::npos || c == '\0')
      fail({"expected an expression, got the character '", rest(at_).substr(0, character_length(source_, at_)), "'"});
    if (c == '(' || c == '[' || c == '{') open.push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c) fail(std::string("unexpected '") + c + "'" + (open.empty() ? "" : std::string(", expected '") + open.back() + "'"));
      open.pop_back();
    }
    add(token_kind::op, std::string(1, c));
    advance_to(at_ + 1);
  }

  std::string_view name_;
  limits bounds_;
  std::string source_;
  std::size_t at_ = 0;
  std::uint32_t line_ = 1;
  bool line_starting_ = true;
  std::vector<token> tokens_;
};

}  // namespace jinja
}  // namespace quena::inline QUENA_ABI
