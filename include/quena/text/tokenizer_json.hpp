// SPDX-License-Identifier: MIT
// Reads tokenizer.json (and tokenizer_config.json), the files of Hugging Face's tokenizers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../core/error.hpp"
#include "../io/json.hpp"
#include "tokenizer_config.hpp"
#include "tokenizer_data.hpp"

namespace quena::inline QUENA_ABI {
namespace detail {

/// Takes the two big tables out of the stream of JSON events and lets the rest, which is small, become a json value.
class tokenizer_json_sink {
 public:
  tokenizer_json_sink(std::string_view where, std::string_view file) : rest_(where, file), where_(where), file_(file) {}

  void null() { scalar("null"), rest_.null(); }
  void boolean(bool v) { scalar("a boolean"), rest_.boolean(v); }
  void number_float(double v) { scalar("a fraction"), rest_.number_float(v); }
  void number_integer(std::int64_t v) {
    if (in_ == table::vocab) fail(errc::malformed, where_, {"model.vocab: expected ids of 0 or more, got ", v}, file_);
    scalar("a number"), rest_.number_integer(v);
  }
  void number_unsigned(std::uint64_t v) {
    if (in_ == table::vocab) return end_entry(v);
    scalar("a number"), rest_.number_unsigned(v);
  }
  void string(std::string& v) {
    if (in_ == table::merges) return add_merge(v);
    if (in_ == table::pair) return add_part(v);
    scalar("a string"), rest_.string(v);
  }
  void key(std::string& k) {
    if (in_ == table::vocab) {
      vocab.add(k, no_token, token_kind::normal, true);
      return;
    }
    if (depth_ == 1) section_ = k;
    if (depth_ == 2) member_ = k;
    rest_.key(k);
  }
  void start_object() {
    if (in_ == table::none && depth_ == 2 && section_ == "model" && member_ == "vocab") {
      in_ = table::vocab;
      rest_.null();
      return;
    }
    scalar("an object"), rest_.start_object(), enter();
  }
  void end_object() {
    if (in_ == table::vocab) {
      in_ = table::none;
      return;
    }
    rest_.end_object(), --depth_;
  }
  void start_array() {
    if (in_ == table::none && depth_ == 2 && section_ == "model" && member_ == "merges") {
      in_ = table::merges;
      has_merges = true;
      rest_.null();
      return;
    }
    if (in_ == table::merges) {
      in_ = table::pair;
      parts_ = 0;
      return;
    }
    scalar("an array"), rest_.start_array(), enter();
  }
  void end_array() {
    if (in_ == table::pair) {
      if (parts_ != 2) bad_merge({"a list of ", parts_});
      in_ = table::merges;
    } else if (in_ == table::merges) {
      in_ = table::none;
    } else {
      rest_.end_array(), --depth_;
    }
  }

  json take_rest() { return rest_.take(); }

  token_list vocab;                        // ids and texts as the file writes them
  std::string merge_bytes;                 // left, right, left, right, …
  std::vector<std::uint32_t> merge_sizes;  // their lengths
  bool has_merges = false;

 private:
  enum class table : std::uint8_t { none, vocab, merges, pair };

  void scalar(std::string_view what) const {
    if (in_ == table::vocab) fail(errc::malformed, where_, {"model.vocab: expected an id for each token, got ", what}, file_);
    if (in_ != table::none) bad_merge(what);
  }
  [[noreturn]] void bad_merge(const error_message& what) const {
    fail(errc::malformed, where_, {"model.merges: expected \"a b\" or [\"a\", \"b\"], got ", what}, file_);
  }
  void enter() {
    ++depth_;
    if (depth_ <= 2) member_.clear();
  }
  void end_entry(std::uint64_t id) {
    if (id > 0x7FFFFFFE) fail(errc::malformed, where_, {"model.vocab: expected ids below 2^31, got ", id}, file_);
    vocab.items.back().id = static_cast<token_id>(id);
  }
  void add_part(std::string_view text) {
    if (++parts_ > 2) bad_merge("a list of more than two");
    merge_bytes.append(text);
    merge_sizes.push_back(static_cast<std::uint32_t>(text.size()));
  }
  void add_merge(std::string_view text) {
    const auto sides = split_merge(text);
    if (!sides) bad_merge({"'", shortened(text), "'"});
    parts_ = 0;
    add_part(sides->first);
    add_part(sides->second);
  }

  json_builder rest_;
  std::string_view where_, file_;
  std::string section_, member_;
  std::size_t depth_ = 0, parts_ = 0;
  table in_ = table::none;
};

/// One reading of one tokenizer.json.
class tokenizer_json_reader {
 public:
  explicit tokenizer_json_reader(std::string_view file) : file_(file) { d_.file = file; }

  tokenizer_data read(std::string_view text, std::string_view config_text) {
    tokenizer_json_sink sink(where, file_);
    read_json(text, sink, where, file_);
    const json j = sink.take_rest();
    if (!j.is_object()) malformed({"expected a JSON object, got ", j.type_name()});
    const json* model = json_member(j, "model");
    if (model == nullptr || !model->is_object()) malformed("expected a member \"model\" that is an object, got none");
    read_model(*model);
    read_normalizer(json_member(j, "normalizer"));
    read_pre_tokenizer(json_member(j, "pre_tokenizer"));
    read_decoder(json_member(j, "decoder"));
    if (!d_.byte_level && !spaces_replaced_)
      unsupported("expected a ByteLevel pre-tokenizer or one that writes U+2581 for spaces, got neither");
    if (sink.vocab.items.empty()) malformed("model.vocab: expected an object of tokens, got none");
    if (!sink.has_merges) malformed("model.merges: expected a list, got none");
    const std::string_view folder = file_.substr(0, file_.find_last_of("/\\") + 1);  // npos + 1 is 0
    const tokenizer_config config = read_tokenizer_config(config_text, std::string(folder) + "tokenizer_config.json");
    read_vocab(sink.vocab, json_member(j, "added_tokens"), config);
    read_merges(sink);
    if (unknown_) d_.unknown = named(*unknown_, "model.unk_token");
    read_post_processor(json_member(j, "post_processor"));
    apply(config);
    find_cuts(d_);
    return std::move(d_);
  }

 private:
  static constexpr std::string_view where = "tokenizer";

  [[noreturn]] void malformed(const error_message& what) const { fail(errc::malformed, where, what, file_); }
  [[noreturn]] void unsupported(const error_message& what) const { fail(errc::unsupported, where, what, file_); }
  [[nodiscard]] bool flag(const json& o, const char* key, bool otherwise) const { return json_flag(o, key, where, file_).value_or(otherwise); }
  [[nodiscard]] std::string text(const json& o, const char* key) const { return json_text(o, key, where, file_).value_or(""); }

  /// The parts of a "Sequence", or the one thing itself.
  [[nodiscard]] std::vector<const json*> parts(const json* j, const char* list) const {
    std::vector<const json*> out;
    if (j == nullptr) return out;
    if (text(*j, "type") != "Sequence") return {j};
    const json* items = json_member(*j, list);
    if (items == nullptr || !items->is_array()) malformed({"expected a list \"", list, "\" in a Sequence, got none"});
    for (const json& item : *items) out.push_back(&item);
    return out;
  }

  void read_model(const json& m) {
    if (const std::string type = text(m, "type"); !type.empty() && type != "BPE")
      unsupported({"model.type: expected BPE, got '", shortened(type), "'"});
    if (const json* dropout = json_member(m, "dropout"); dropout != nullptr && *dropout != 0)
      unsupported({"model.dropout: expected none, got ", shortened(dropout->dump())});
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (!text(m, key).empty()) unsupported({"model.", key, ": expected none, got '", shortened(text(m, key)), "'"});
    d_.ignore_merges = flag(m, "ignore_merges", false);
    d_.fuse_unknown = flag(m, "fuse_unk", false);
    byte_fallback_ = flag(m, "byte_fallback", false);
    unknown_ = json_text(m, "unk_token", where, file_);
  }

  void read_normalizer(const json* j) {
    for (const json* n : parts(j, "normalizers")) {
      const std::string type = text(*n, "type");
      const json* pattern = json_member(*n, "pattern");
      if (type == "Prepend" && text(*n, "prepend") == sentencepiece_space) {
        d_.prefix = space_prefix::always;
        normalizer_prepends_ = true;
      } else if (type == "Replace" && pattern != nullptr && text(*pattern, "String") == " " && text(*n, "content") == sentencepiece_space) {
        spaces_replaced_ = true;
      } else {
        unsupported({"normalizer: expected none, or Prepend and Replace with U+2581, got '", shortened(type), "'"});
      }
    }
  }

  void read_pre_tokenizer(const json* j) {
    bool digits = false, split = false;
    for (const json* p : parts(j, "pretokenizers")) {
      const std::string type = text(*p, "type");
      if (type == "ByteLevel" && !d_.byte_level && !flag(*p, "add_prefix_space", true)) {
        d_.byte_level = true;
        if (flag(*p, "use_regex", true)) {
          if (split) unsupported("pre_tokenizer: expected one split pattern, got two");
          d_.split = digits ? split_pattern::gpt2_digits : split_pattern::gpt2;
        } else if (digits) {
          unsupported("pre_tokenizer: expected a split pattern after Digits, got none");
        }
      } else if (type == "Digits" && flag(*p, "individual_digits", false) && !split && !digits && !d_.byte_level) {
        digits = true;
      } else if (type == "Split" && !split && !digits && !d_.byte_level) {
        const json* pattern = json_member(*p, "pattern");
        const std::string regex = pattern == nullptr ? "" : text(*pattern, "Regex");
        const std::optional<split_pattern> known = find_split_pattern(regex);
        if (!known || text(*p, "behavior") != "Isolated" || flag(*p, "invert", false))
          unsupported({"pre_tokenizer: expected a known split pattern, each match a word, got '", regex.substr(0, 300), "'"});
        d_.split = *known;
        split = true;
      } else if (type == "Metaspace" && text(*p, "replacement") == sentencepiece_space && !spaces_replaced_) {
        read_metaspace(*p);
      } else {
        unsupported({"pre_tokenizer: expected ByteLevel (without prefix), Split, Digits or Metaspace in a known combination, got '", shortened(type), "'"});
      }
    }
    if (d_.byte_level && (spaces_replaced_ || normalizer_prepends_)) unsupported("normalizer: expected none with ByteLevel, got one");
    if (!d_.byte_level && (split || digits)) unsupported("pre_tokenizer: expected ByteLevel with Split or Digits, got none");
  }

  void read_metaspace(const json& p) {
    spaces_replaced_ = true;
    d_.prefix_unless_space = true;
    const std::optional<std::string> scheme = json_text(p, "prepend_scheme", where, file_);
    if (scheme)
      d_.prefix = *scheme == "always" ? space_prefix::always : *scheme == "first" ? space_prefix::first : space_prefix::never;
    else
      d_.prefix = flag(p, "add_prefix_space", true) ? space_prefix::always : space_prefix::never;
    d_.cut_at_every_space = flag(p, "split", true);
  }

  void read_decoder(const json* j) {
    for (const json* p : parts(j, "decoders")) {
      const std::string type = text(*p, "type");
      if (type == "Strip") {
        const json* start = json_member(*p, "start");
        const json* stop = json_member(*p, "stop");
        if (text(*p, "content") != " " || start == nullptr || *start != 1 || (stop != nullptr && *stop != 0))
          unsupported({"decoder: expected Strip of one space at the start, got ", p->dump(-1, ' ', false, json::error_handler_t::replace).substr(0, 100)});
        d_.strip_space = true;
      } else if (type == "Metaspace") {
        d_.strip_space = json_member(*p, "prepend_scheme") != nullptr ? text(*p, "prepend_scheme") != "never" : flag(*p, "add_prefix_space", true);
      } else if (type != "ByteLevel" && type != "Replace" && type != "ByteFallback" && type != "Fuse") {
        unsupported({"decoder: expected ByteLevel, Replace, ByteFallback, Fuse, Strip or Metaspace, got '", shortened(type), "'"});
      }
    }
  }

  std::string_view bytes_of(std::string_view text) {
    buffer_.clear();
    append_token_bytes(d_, text, buffer_);
    return buffer_;
  }

  void read_vocab(const token_list& raw, const json* added, const tokenizer_config& config) {
    token_list list;
    list.bytes.reserve(raw.bytes.size());
    list.items.reserve(raw.items.size());
    std::array<token_id, 256> fallback;
    fallback.fill(no_token);
    for (const token_list::item& t : raw.items) {
      const std::string_view written = std::string_view(raw.bytes).substr(t.offset, t.length);
      const auto value = byte_fallback_ ? byte_fallback_value(written) : std::nullopt;
      if (value) {
        const char c = static_cast<char>(*value);
        list.add(std::string_view(&c, 1), t.id, token_kind::byte, false);
        fallback[*value] = t.id;
      } else {
        buffer_.clear();
        const bool reachable = append_token_bytes(d_, written, buffer_);
        list.add(buffer_, t.id, token_kind::normal, reachable);
      }
    }
    const std::vector<added_token> tokens = read_added(added);
    vocabulary base(list, where, file_);  // to tell which of the added tokens are new
    for (const added_token& t : tokens) {
      if (base.kind(t.id) == token_kind::absent) {
        buffer_.clear();  // new, unless the vocabulary has this very text as a key
        if (append_token_bytes(d_, t.text, buffer_) && base.find(buffer_) != no_token && base.find(t.text) != no_token)
          malformed({"added_tokens: expected the id of the vocabulary for '", shortened(t.text), "', got ", t.id});
        list.add(d_.byte_level ? std::string_view(t.text) : bytes_of(t.text), t.id, token_kind::added, false);
      } else if (base.bytes(t.id) != bytes_of(t.text) && base.bytes(t.id) != t.text) {
        malformed({"added_tokens: expected an id of its own for '", shortened(t.text), "', got ", t.id, ", which is '", shortened(base.bytes(t.id)), "'"});
      }
    }
    d_.vocab = list.items.size() == raw.items.size() ? std::move(base) : vocabulary(std::move(list), where, file_);
    find_bytes(d_, fallback);
    match_added(tokens, config);
  }

  [[nodiscard]] std::vector<added_token> read_added(const json* list) const {
    std::vector<added_token> out;
    if (list == nullptr) return out;
    if (!list->is_array()) malformed({"added_tokens: expected a list, got ", list->type_name()});
    for (const json& j : *list) {
      const json* id = json_member(j, "id");
      const std::optional<std::string> content = json_text(j, "content", where, file_);
      if (!content || id == nullptr || !id->is_number_unsigned() || id->get<std::uint64_t>() > 0x7FFFFFFE)
        malformed({"added_tokens: expected objects with a content and an id of 0 or more, got ", j.dump(-1, ' ', false, json::error_handler_t::replace).substr(0, 200)});
      if (flag(j, "single_word", false)) unsupported({"added_tokens: expected single_word to be false, got true for '", shortened(*content), "'"});
      out.push_back({*content, id->get<token_id>(), flag(j, "special", false), flag(j, "lstrip", false), flag(j, "rstrip", false),
                     flag(j, "normalized", !flag(j, "special", false))});
    }
    return out;
  }

  /// Builds the matchers. A token that tokenizer_config.json calls special is special whatever tokenizer.json says.
  void match_added(std::vector<added_token> tokens, const tokenizer_config& config) {
    std::map<std::string, std::size_t, std::less<>> places;
    for (std::size_t i = 0; i < tokens.size(); ++i) places.emplace(tokens[i].text, i);
    for (const std::string& s : config.special) {
      if (const auto it = places.find(s); it != places.end()) {
        tokens[it->second].special = true;
      } else if (const token_id id = d_.vocab.find(bytes_of(s)); id != no_token) {
        places.emplace(s, tokens.size());
        tokens.push_back({s, id, true, false, false, false});
      }
    }
    std::vector<added_token> first, second;
    for (added_token& t : tokens) {
      if (t.text.empty()) malformed({"added_tokens: expected some content, got none for id ", t.id});
      d_.vocab.set_kind(t.id, t.special ? token_kind::special : token_kind::added);
      const bool metaspace = !d_.byte_level && d_.prefix_unless_space;  // a pre-tokenizer: added tokens are found before it
      if (t.normalized && !d_.byte_level && !metaspace) t.text = (normalizer_prepends_ ? " " : "") + std::string(bytes_of(t.text));
      (t.normalized && !metaspace ? second : first).push_back(std::move(t));
    }
    d_.added = added_token_matcher(std::move(first), where, file_);
    d_.added_normalized = added_token_matcher(std::move(second), where, file_);
  }

  void read_merges(const tokenizer_json_sink& sink) {
    const std::size_t n = sink.merge_sizes.size() / 2;
    d_.merges = merge_table(n);
    std::size_t at = 0;
    const auto next = [&](std::size_t i) {
      const std::string_view written = std::string_view(sink.merge_bytes).substr(at, sink.merge_sizes[i]);
      at += written.size();
      return written;
    };
    for (std::size_t i = 0; i < n; ++i) {
      const std::string_view left = next(2 * i), right = next(2 * i + 1);
      add_written_merge(d_, left, right, i, buffer_);
    }
  }

  [[nodiscard]] token_id named(const std::string& token, const char* what) {
    const token_id id = find_token(d_, token, bytes_of(token));
    if (id == no_token) malformed({what, ": expected a token of the vocabulary, got '", shortened(token), "'"});
    return id;
  }

  /// Which tokens the file wants around a text.
  void read_post_processor(const json* j) {
    for (const json* p : parts(j, "processors")) {
      const std::string type = text(*p, "type");
      if (type == "ByteLevel") continue;
      if (type != "TemplateProcessing") unsupported({"post_processor: expected ByteLevel or TemplateProcessing, got '", shortened(type), "'"});
      const json* single = json_member(*p, "single");
      if (single == nullptr || !single->is_array()) malformed("post_processor: expected a list \"single\", got none");
      bool before = true;
      for (const json& part : *single) {
        if (json_member(part, "Sequence") != nullptr) {
          before = false;
        } else if (const json* special = json_member(part, "SpecialToken")) {
          (before ? d_.first_ids : d_.last_ids).push_back(named(text(*special, "id"), "post_processor"));
        } else {
          malformed("post_processor: expected SpecialToken or Sequence in \"single\", got something else");
        }
      }
      if (before) malformed("post_processor: expected the text itself in \"single\", got none");
    }
  }

  /// An explicit add_bos_token or add_eos_token in tokenizer_config.json decides; otherwise the post-processor has.
  void apply(const tokenizer_config& c) {
    if (c.bos) d_.bos = named(*c.bos, "bos_token");
    else if (!d_.first_ids.empty()) d_.bos = d_.first_ids.front();
    if (c.eos) d_.eos.push_back(named(*c.eos, "eos_token"));
    const auto set = [](std::vector<token_id>& ids, std::optional<bool> wanted, std::optional<token_id> id) {
      if (!wanted) return;
      ids.clear();
      if (*wanted && id) ids.push_back(*id);
    };
    set(d_.first_ids, c.add_bos, d_.bos);
    set(d_.last_ids, c.add_eos, d_.eos.empty() ? std::nullopt : std::optional<token_id>(d_.eos.front()));
  }

  tokenizer_data d_;
  std::string_view file_;
  std::string buffer_;
  std::optional<std::string> unknown_;
  bool byte_fallback_ = false, spaces_replaced_ = false, normalizer_prepends_ = false;
};

/// Reads both texts; see tokenizer::from_json.
inline tokenizer_data read_tokenizer_json(std::string_view text, std::string_view config, std::string_view file) {
  return tokenizer_json_reader(file).read(text, config);
}

}  // namespace detail
}  // namespace quena::inline QUENA_ABI
