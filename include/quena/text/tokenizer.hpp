// SPDX-License-Identifier: MIT
// Text to token ids and back, exactly as the model's own tokenizer does it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../core/error.hpp"
#include "../io/checkpoint.hpp"
#include "../io/gguf.hpp"
#include "segment.hpp"
#include "tokenizer_config.hpp"
#include "tokenizer_data.hpp"
#include "tokenizer_gguf.hpp"
#include "tokenizer_json.hpp"

namespace quena::inline QUENA_ABI {

struct encode_options {
  bool add_bos = true;         ///< put what the file asks for around the text (the BOS token, if it asks for that); never a second BOS
  bool parse_special = false;  ///< read `<|eot_id|>` in the text as that token, not as letters
};

struct decode_options {
  bool skip_special = false;  ///< leave special tokens out
  bool continues = false;     ///< the ids go on from earlier ones: keep the first space that SentencePiece drops at the start of a text
};

/// A tokenizer of the Llama family: byte-level BPE (Llama 3) or BPE over characters with byte fallback (Llama 2).
///   auto t = tokenizer::from_json(tokenizer_json, tokenizer_config_json);
///   std::vector<token_id> ids = t.encode("Once upon a time");
///   std::string text = t.decode(ids);
/// Immutable: any number of threads may use one object.
/// Round trip  decode(encode(x)) == x, byte for byte, for every x at byte level, invalid UTF-8 included; with byte fallback for every
///             x without U+2581 (which stands for a space there). Nothing is cleaned up: `clean_up_tokenization_spaces` is ignored.
class tokenizer {
 public:
  explicit tokenizer(detail::tokenizer_data data) : d_(std::move(data)) {}

  /// From the texts of tokenizer.json and, if there is one, tokenizer_config.json. `file` names the former in messages.
  /// Errors   malformed: not JSON, ids negative or twice, merges missing or of unknown tokens, an empty added token, …;
  ///          unsupported: another kind of model, normalizer, pre-tokenizer or split pattern: never a silent guess.
  static tokenizer from_json(std::string_view tokenizer_json, std::string_view tokenizer_config_json = {},
                             std::string_view file = "tokenizer.json") {
    return tokenizer(detail::read_tokenizer_json(tokenizer_json, tokenizer_config_json, file));
  }

  /// From the metadata tokenizer.ggml.* of a GGUF file (models `gpt2` with a known `pre`, and `llama`).
  /// Errors   as from_json.
  static tokenizer from_gguf(const gguf_file& file) { return tokenizer(detail::read_tokenizer_gguf(file)); }

  /// From whichever of the two a checkpoint has. The weights are not needed: checkpoint_options{.weights = false} will do.
  /// Errors   as from_json; io: the folder has no tokenizer.json.
  static tokenizer open(const checkpoint& c) {
    if (c.is_gguf()) return from_gguf(c.gguf());
    const std::optional<std::string> text = c.text_file("tokenizer.json");
    if (!text) fail(errc::io, where, "expected tokenizer.json, which is absent", c.path());
    return from_json(*text, c.text_file("tokenizer_config.json").value_or(""), c.file_path("tokenizer.json"));
  }

  /// The ids of a text. Special tokens in it count only with `parse_special`; added tokens that are not special always do.
  /// Errors   invalid_argument: a text of 4 GiB or more; a byte that the vocabulary has no token for.
  /// Cost     linear, n log n for one endless word; small stack.
  [[nodiscard]] std::vector<token_id> encode(std::string_view text, encode_options options = {}) const {
    std::vector<token_id> ids;
    encode(text, options, ids);
    return ids;
  }

  /// The same, appended to `out`.
  void encode(std::string_view text, encode_options options, std::vector<token_id>& out) const {
    const range whole{0, text.size()};
    wrap(options.add_bos, out, [&] { encode_text(text, {&whole, options.parse_special ? 1u : 0u}, out); });
  }

  /// The ids of a text in parts, for chat templates: see text_segment. Without special tokens in the untrusted parts the ids are those
  /// of the joined text. `add_bos` as in encode_options; a template that writes BOS itself gets no second one.
  [[nodiscard]] std::vector<token_id> encode_segments(std::span<const text_segment> segments, bool add_bos = true) const {
    std::string text;
    std::vector<range> trusted;  // runs of neighbouring parts with parse_special
    for (const text_segment& s : segments) {
      if (s.parse_special && !s.text.empty()) {
        if (trusted.empty() || trusted.back().end != text.size()) trusted.push_back({text.size(), text.size()});
        trusted.back().end += s.text.size();
      }
      text.append(s.text);
    }
    std::vector<token_id> ids;
    wrap(add_bos, ids, [&] { encode_text(text, trusted, ids); });
    return ids;
  }

  /// The bytes of the ids. They are UTF-8 if the ids came from UTF-8 and are whole; see to_valid_utf8 and stream_decoder otherwise.
  /// Errors   invalid_argument: an id that is not a token's.
  [[nodiscard]] std::string decode(std::span<const token_id> ids, decode_options options = {}) const {
    std::string out;
    for (const token_id id : ids) {
      check_id(id);
      if (!options.skip_special || !is_special(id)) out.append(d_.vocab.bytes(id));
    }
    if (d_.strip_space && !options.continues && !out.empty() && out[0] == ' ') out.erase(0, 1);
    return out;
  }

  /// What one id stands for, e.g. " the", half a character, or "<|eot_id|>".
  /// Errors   invalid_argument: not a token's id.
  [[nodiscard]] std::string_view token_bytes(token_id id) const {
    check_id(id);
    return d_.vocab.bytes(id);
  }

  /// One more than the largest id.
  [[nodiscard]] std::size_t vocab_size() const noexcept { return d_.vocab.size(); }
  /// True if the id is a token's; false outside the vocabulary and for the holes that some have.
  [[nodiscard]] bool contains(token_id id) const noexcept { return d_.vocab.kind(id) != detail::token_kind::absent; }
  /// True for control tokens: those that decoding can skip and that text yields only with `parse_special`.
  [[nodiscard]] bool is_special(token_id id) const noexcept { return d_.vocab.kind(id) == detail::token_kind::special; }

  /// The token that begins a text, if the file names one.
  [[nodiscard]] std::optional<token_id> bos_id() const noexcept { return d_.bos; }
  /// The tokens that end a text or a turn, as far as the tokenizer's files name them.
  [[nodiscard]] std::span<const token_id> eos_ids() const noexcept { return d_.eos; }
  /// True if encode() puts BOS in front by itself.
  [[nodiscard]] bool adds_bos() const noexcept { return d_.bos && !d_.first_ids.empty() && d_.first_ids.front() == *d_.bos; }
  /// True if decoding drops a space at the start of a text (SentencePiece).
  [[nodiscard]] bool strips_leading_space() const noexcept { return d_.strip_space; }

  /// The id of exactly this piece: an added or special token by its text, otherwise a token by its bytes.
  [[nodiscard]] std::optional<token_id> find(std::string_view piece) const {
    const token_id id = detail::find_token(d_, piece, piece);
    return id == detail::no_token ? std::nullopt : std::optional<token_id>(id);
  }

 private:
  struct range {
    std::size_t begin, end;
  };

  static constexpr std::string_view where = "tokenizer";

  void check_id(token_id id) const {
    if (!contains(id))
      fail(errc::invalid_argument, where, {"expected a token id below ", vocab_size(), " that is in use, got ", id}, d_.file);
  }

  /// Runs `body`, which appends ids, between the file's first and last ids. BOS that the text brought along is not doubled.
  template <class Body>
  void wrap(bool add, std::vector<token_id>& out, Body&& body) const {
    const std::size_t start = out.size();
    if (add) out.insert(out.end(), d_.first_ids.begin(), d_.first_ids.end());
    const std::size_t text = out.size();
    body();
    if (text > start && text < out.size() && d_.bos && out[text - 1] == *d_.bos && out[text] == *d_.bos)
      out.erase(out.begin() + static_cast<std::ptrdiff_t>(text));
    if (add) out.insert(out.end(), d_.last_ids.begin(), d_.last_ids.end());
  }

  /// Scratch of one call: the tokenizer itself stays immutable.
  struct scratch {
    explicit scratch(const detail::tokenizer_data& d) : merger(d.merges) {}
    detail::bpe_merger merger;
    std::vector<token_id> symbols;
    std::string normalized;
    bool at_start = true;  // nothing was encoded yet
  };

  void encode_text(std::string_view text, std::span<const range> trusted, std::vector<token_id>& out) const {
    if (text.size() >= (std::numeric_limits<std::uint32_t>::max)())
      fail(errc::invalid_argument, where, {"expected a text of less than 4 GiB, got ", text.size(), " bytes"}, d_.file);
    scratch s(d_);
    split_added(d_.added, text, trusted, s, out, [&](std::string_view piece, std::span<const range> inner) {
      if (d_.byte_level) return split_added(d_.added_normalized, piece, inner, s, out, [&](std::string_view plain, auto) { encode_bytes(plain, s, out); });
      encode_sentencepiece(piece, inner, s, out);
    });
  }

  /// Hands the text between added tokens to `plain(piece, its trusted ranges)` and appends the tokens' ids.
  template <class F>
  void split_added(const detail::added_token_matcher& matcher, std::string_view text, std::span<const range> trusted, scratch& s,
                   std::vector<token_id>& out, F&& plain) const {
    std::vector<range> inner;
    std::size_t reached = 0;  // the first trusted range that the pieces have not passed
    const auto give = [&](std::size_t begin, std::size_t end) {
      if (begin == end) return;
      inner.clear();
      while (reached < trusted.size() && trusted[reached].end <= begin) ++reached;
      for (std::size_t i = reached; i < trusted.size() && trusted[i].begin < end; ++i)
        inner.push_back({(trusted[i].begin > begin ? trusted[i].begin : begin) - begin, (trusted[i].end < end ? trusted[i].end : end) - begin});
      plain(text.substr(begin, end - begin), std::span<const range>(inner));
      s.at_start = false;
    };
    std::size_t done = 0;
    if (!matcher.tokens().empty() && (!trusted.empty() || matcher.has_plain())) {
      std::size_t r = 0;  // the first trusted range that ends after `at`
      for (std::size_t at = 0; at < text.size(); ++at) {
        while (r < trusted.size() && trusted[r].end <= at) ++r;
        const bool specials = r < trusted.size() && trusted[r].begin <= at;
        if (!matcher.starts(text[at], specials)) continue;
        const detail::added_token* t = matcher.match(text.substr(at), [&](const detail::added_token& c) {
          return !c.special || (specials && at + c.text.size() <= trusted[r].end);
        });
        if (t == nullptr) continue;
        std::size_t begin = at, end = at + t->text.size();
        if (t->lstrip)
          while (begin > done && is_space_before(text, begin)) begin = character_before(text, begin);
        if (t->rstrip) end = detail::word_scanner(text).skip(char_class::space, end);
        give(done, begin);
        out.push_back(t->id);
        s.at_start = false;
        done = end;
        at = end - 1;
      }
    }
    give(done, text.size());
  }

  static std::size_t character_before(std::string_view text, std::size_t at) noexcept {
    std::size_t begin = at - 1;
    while (begin > 0 && at - begin < 4 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
    return begin + decode_utf8(text, begin).n_bytes == at ? begin : at - 1;
  }
  static bool is_space_before(std::string_view text, std::size_t at) noexcept {
    return detail::word_scanner(text).peek(character_before(text, at)).kind == char_class::space;
  }

  void encode_bytes(std::string_view text, scratch& s, std::vector<token_id>& out) const {
    split_words(d_.split, text, [&](std::string_view word) {
      if (word.size() == 1) return out.push_back(byte_token(word[0]));
      if (d_.ignore_merges)
        if (const token_id id = d_.vocab.find(word); id != detail::no_token) return out.push_back(id);
      s.symbols.clear();
      for (const char c : word) s.symbols.push_back(byte_token(c));
      s.merger.run(s.symbols, out);
    });
  }

  [[nodiscard]] token_id byte_token(char c) const {
    const token_id id = d_.byte_ids[static_cast<unsigned char>(c)];
    if (id != detail::no_token) return id;
    if (d_.unknown) return *d_.unknown;
    fail(errc::invalid_argument, where, {"expected text that the vocabulary can express, got byte ", static_cast<unsigned>(static_cast<unsigned char>(c))}, d_.file);
  }

  void encode_sentencepiece(std::string_view text, std::span<const range> trusted, scratch& s, std::vector<token_id>& out) const {
    bool prefix = d_.prefix == detail::space_prefix::always || (d_.prefix == detail::space_prefix::first && s.at_start);
    if (d_.prefix_unless_space && (text[0] == ' ' || text.substr(0, 3) == detail::sentencepiece_space)) prefix = false;
    std::string_view normalized = text;
    std::vector<range> moved;
    if (prefix || text.find(detail::sentencepiece_space) != text.npos) {
      s.normalized.assign(prefix ? 1 : 0, ' ');
      detail::append_with_spaces(text, s.normalized);
      normalized = s.normalized;
      if (!trusted.empty()) moved = normalized_ranges(text, trusted, prefix);
      trusted = moved;
    }
    split_added(d_.added_normalized, normalized, trusted, s, out, [&](std::string_view piece, auto) { encode_characters(piece, s, out); });
  }

  /// Where the ranges lie once each U+2581 has shrunk to one byte; a prefix goes with the text behind it.
  static std::vector<range> normalized_ranges(std::string_view text, std::span<const range> ranges, bool prefix) {
    std::vector<range> out;
    std::size_t next = text.find(detail::sentencepiece_space), removed = 0;
    const auto move = [&](std::size_t at) {
      for (; next != text.npos && next + 3 <= at; next = text.find(detail::sentencepiece_space, next + 3)) removed += 2;
      return at - removed + (prefix ? 1 : 0);
    };
    for (const range& r : ranges) {
      const std::size_t begin = r.begin == 0 ? 0 : move(r.begin);
      out.push_back({begin, move(r.end)});
    }
    return out;
  }

  /// Byte-pair encoding over characters; those without a token become their bytes, or unknown.
  void encode_characters(std::string_view text, scratch& s, std::vector<token_id>& out) const {
    const auto flush = [&] {
      if (!s.symbols.empty()) s.merger.run(s.symbols, out);
      s.symbols.clear();
    };
    bool after_unknown = false;
    for (std::size_t at = 0; at < text.size();) {
      const std::string_view c = text.substr(at, decode_utf8(text, at).n_bytes);
      if (c[0] == ' ' && at > 0 && (d_.cut_at_every_space || (d_.cut_at_spaces && text[at - 1] != ' '))) flush();
      at += c.size();
      if (const token_id id = d_.vocab.find(c); id != detail::no_token) {
        s.symbols.push_back(id);
        after_unknown = false;
        continue;
      }
      bool all = true;
      for (const char b : c) all = all && d_.byte_ids[static_cast<unsigned char>(b)] != detail::no_token;
      if (all || !d_.unknown) {
        for (const char b : c) s.symbols.push_back(byte_token(b));
        after_unknown = false;
      } else {
        if (!d_.fuse_unknown || !after_unknown) s.symbols.push_back(*d_.unknown);
        after_unknown = true;
      }
    }
    flush();
  }

  detail::tokenizer_data d_;
};

/// The chat template of a checkpoint, if it has one: chat_template.jinja, `chat_template` in tokenizer_config.json (of several the one
/// called `name`), or tokenizer.chat_template in a GGUF file.
/// Errors   malformed: tokenizer_config.json is broken.
inline std::optional<std::string> read_chat_template(const checkpoint& c, std::string_view name = "default") {
  if (c.is_gguf()) {
    std::optional<std::string_view> text;
    if (name != "default") text = c.gguf().find_string("tokenizer.chat_template." + std::string(name));
    if (!text) text = c.gguf().find_string("tokenizer.chat_template");
    return text ? std::optional<std::string>(*text) : std::nullopt;
  }
  if (name == "default")
    if (std::optional<std::string> file = c.text_file("chat_template.jinja")) return file;
  return detail::read_tokenizer_config(c.text_file("tokenizer_config.json").value_or(""), c.file_path("tokenizer_config.json"), name).chat_template;
}

}  // namespace quena::inline QUENA_ABI
