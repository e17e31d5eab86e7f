// SPDX-License-Identifier: MIT
// Reads the tokenizer that a GGUF file carries in its metadata (tokenizer.ggml.*).
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../core/error.hpp"
#include "../io/gguf.hpp"
#include "tokenizer_data.hpp"

namespace quena::inline QUENA_ABI {
namespace detail {

/// One reading of one file's tokenizer.ggml.* keys.
class tokenizer_gguf_reader {
 public:
  explicit tokenizer_gguf_reader(const gguf_file& file) : g_(file) { d_.file = file.file(); }

  tokenizer_data read() {
    const std::string_view model = g_.get_string("tokenizer.ggml.model");
    if (model == "gpt2") {
      d_.byte_level = true;
      read_pattern();
    } else if (model != "llama") {
      wrong(errc::unsupported, {"tokenizer.ggml.model: expected gpt2 or llama, got '", shortened(model), "'"});
    }
    read_tokens();
    if (d_.byte_level) {
      read_merges();
    } else {
      make_merges();
      const bool prefix = g_.find_bool("tokenizer.ggml.add_space_prefix").value_or(true);
      d_.prefix = prefix ? space_prefix::always : space_prefix::never;
      d_.strip_space = prefix;
      d_.fuse_unknown = true;
    }
    read_ends();
    find_cuts(d_);
    return std::move(d_);
  }

 private:
  static constexpr std::string_view where = "tokenizer";
  static constexpr std::size_t longest_scored = 512;  // bytes of a SentencePiece piece: bounds the work of make_merges

  [[noreturn]] void wrong(errc code, const error_message& what) const { fail(code, where, what, g_.file()); }

  void read_pattern() {
    const std::string_view pre = g_.get_string("tokenizer.ggml.pre");
    if (pre == "llama-bpe" || pre == "llama3" || pre == "llama-v3") {
      d_.split = split_pattern::llama3;
      d_.ignore_merges = add_bos_ = true;
    } else if (pre == "gpt-2") {
      d_.split = split_pattern::gpt2;
    } else if (pre == "smollm") {
      d_.split = split_pattern::gpt2_digits;
    } else {
      wrong(errc::unsupported, {"tokenizer.ggml.pre: expected llama-bpe, gpt-2 or smollm, got '", shortened(pre), "'"});
    }
  }

  void read_tokens() {
    enum : std::int32_t { normal = 1, unknown, control, user_defined, unused, byte };
    const std::vector<std::string_view> texts = g_.strings("tokenizer.ggml.tokens");
    std::vector<std::int32_t> types(texts.size(), normal);
    if (g_.has("tokenizer.ggml.token_type")) types = g_.i32s("tokenizer.ggml.token_type");
    if (types.size() != texts.size())
      wrong(errc::malformed, {"tokenizer.ggml.token_type: expected one for each of ", texts.size(), " tokens, got ", types.size()});
    if (texts.size() > 0x7FFFFFFE) wrong(errc::malformed, {"tokenizer.ggml.tokens: expected fewer than 2^31, got ", texts.size()});

    token_list list;
    std::array<token_id, 256> fallback;
    fallback.fill(no_token);
    std::vector<added_token> added;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const auto id = static_cast<token_id>(i);
      buffer_.clear();
      const bool reachable = append_token_bytes(d_, texts[i], buffer_);
      switch (types[i]) {
        case normal: list.add(buffer_, id, token_kind::normal, reachable); break;
        case unused: list.add(buffer_, id, token_kind::normal, false); break;
        case unknown:
        case control:
        case user_defined: {
          const bool special = types[i] != user_defined;
          const std::string_view text = d_.byte_level ? texts[i] : std::string_view(buffer_);
          list.add(text, id, special ? token_kind::special : token_kind::added, false);
          // Some files leave the text of an unused control token empty; no text can mean it.
          if (!text.empty()) added.push_back({std::string(text), id, special, false, false, false});
          break;
        }
        case byte: {
          const auto value = byte_fallback_value(texts[i]);
          if (!value) wrong(errc::malformed, {"tokenizer.ggml.tokens: expected <0xNN> for a byte token, got '", shortened(texts[i]), "'"});
          const char c = static_cast<char>(*value);
          list.add(std::string_view(&c, 1), id, token_kind::byte, false);
          fallback[*value] = id;
          break;
        }
        default: wrong(errc::malformed, {"tokenizer.ggml.token_type: expected 1 to 6, got ", types[i]});
      }
    }
    d_.vocab = vocabulary(std::move(list), where, g_.file());
    d_.added = added_token_matcher(std::move(added), where, g_.file());
    find_bytes(d_, fallback);
  }

  void read_merges() {
    const std::vector<std::string_view> merges = g_.strings("tokenizer.ggml.merges");
    d_.merges = merge_table(merges.size());
    for (std::size_t i = 0; i < merges.size(); ++i) {
      const auto sides = split_merge(merges[i]);
      if (!sides) wrong(errc::malformed, {"tokenizer.ggml.merges: expected \"a b\", got '", shortened(merges[i]), "'"});
      add_written_merge(d_, sides->first, sides->second, i, buffer_);
    }
  }

  /// SentencePiece merges the neighbours whose joint piece has the best score. As a table of merges: every way to split a piece
  /// into two others, ranked by the piece's score, equal scores alike.
  void make_merges() {
    const std::vector<float> scores = g_.f32s("tokenizer.ggml.scores");
    if (scores.size() != d_.vocab.size())
      wrong(errc::malformed, {"tokenizer.ggml.scores: expected one for each of ", d_.vocab.size(), " tokens, got ", scores.size()});
    std::vector<token_id> order;
    for (std::size_t i = 0; i < scores.size(); ++i) {
      if (!std::isfinite(scores[i])) wrong(errc::malformed, {"tokenizer.ggml.scores: expected finite numbers, got another for token ", i});
      const auto id = static_cast<token_id>(i);
      if (d_.vocab.find(d_.vocab.bytes(id)) == id) order.push_back(id);
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](token_id a, token_id b) { return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)]; });
    struct scored {
      token_id left, right;
      merge_table::merge made;
    };
    std::vector<scored> merges;
    std::uint32_t rank = 0;
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (i > 0 && scores[static_cast<std::size_t>(order[i])] < scores[static_cast<std::size_t>(order[i - 1])]) ++rank;
      const std::string_view text = d_.vocab.bytes(order[i]);
      if (text.size() > longest_scored)
        wrong(errc::unsupported, {"tokenizer.ggml.tokens: expected pieces of at most 512 bytes, got ", text.size()});
      for (std::size_t at = decode_utf8(text).n_bytes; at < text.size(); at += decode_utf8(text, at).n_bytes) {
        const token_id left = d_.vocab.find(text.substr(0, at)), right = d_.vocab.find(text.substr(at));
        if (left != no_token && right != no_token) merges.push_back({left, right, {rank, order[i]}});
      }
    }
    d_.merges = merge_table(merges.size());
    for (const scored& m : merges) d_.merges.add(m.left, m.right, m.made, where, g_.file());
  }

  /// The id that a key names, if it is there.
  [[nodiscard]] std::optional<token_id> named(std::string_view key) const {
    const std::optional<std::uint64_t> id = g_.find_u64(key);
    if (!id) return std::nullopt;
    if (*id >= d_.vocab.size())
      wrong(errc::malformed, {key, ": expected an id below ", d_.vocab.size(), ", got ", *id});
    return static_cast<token_id>(*id);
  }

  void add_eos(std::optional<token_id> id) {
    if (id && std::find(d_.eos.begin(), d_.eos.end(), *id) == d_.eos.end()) d_.eos.push_back(*id);
  }

  void read_ends() {
    d_.bos = named("tokenizer.ggml.bos_token_id");
    d_.unknown = named("tokenizer.ggml.unknown_token_id");
    for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) add_eos(named(key));
    const bool has_end_of_text = !d_.eos.empty();  // the first one; those that follow end turns
    // Older files don't say which tokens end a turn; these are the names that Llama's chat formats give them.
    for (const added_token& t : d_.added.tokens())
      if (t.special && (t.text == "<|eot_id|>" || t.text == "<|eom_id|>" || t.text == "<|im_end|>")) add_eos(t.id);
    if (g_.find_bool("tokenizer.ggml.add_bos_token").value_or(add_bos_ || !d_.byte_level) && d_.bos) d_.first_ids = {*d_.bos};
    if (g_.find_bool("tokenizer.ggml.add_eos_token").value_or(false) && has_end_of_text) d_.last_ids = {d_.eos.front()};
  }

  const gguf_file& g_;
  tokenizer_data d_;
  std::string buffer_;
  bool add_bos_ = false;
};

/// Reads the metadata; see tokenizer::from_gguf.
inline tokenizer_data read_tokenizer_gguf(const gguf_file& file) { return tokenizer_gguf_reader(file).read(); }

}  // namespace detail
}  // namespace quena::inline QUENA_ABI
