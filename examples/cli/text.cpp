// SPDX-License-Identifier: MIT
// quena tokenize, detokenize, template: text and token ids, without a model.
#include <algorithm>
#include <limits>

#include <quena/text/chat_template.hpp>
#include <quena/text/tokenizer.hpp>

#include "commands.hpp"
#include "common.hpp"

namespace cli {
namespace {

quena::checkpoint text_files(const std::string& path) { return quena::checkpoint::open(path, {.weights = false, .allow_symlinks = false}); }

struct tokenize_command {
  std::string model;
  bool no_bos = false, parse_special = false, jsonl = false, json = false;
};

void run_tokenize(const tokenize_command& o) {
  const quena::tokenizer tokenizer = quena::tokenizer::open(text_files(o.model));
  const auto print_ids = [&](std::string_view text) {
    write_json(tokenizer.encode(text, {.add_bos = !o.no_bos, .parse_special = o.parse_special}));
  };
  if (!o.jsonl) return print_ids(read_file("-"));
  for_each_line([&](std::string_view line, const std::string& place) {
    const nlohmann::json text = quena::parse_json(line, "tokenize", place);
    if (!text.is_string()) quena::fail(quena::errc::malformed, "tokenize", "expected a JSON string, got something else", place);
    print_ids(text.get_ref<const std::string&>());
  });
}

struct detokenize_command {
  std::string model;
  std::optional<std::vector<token_id>> ids;
  bool skip_special = false, jsonl = false, json = false;

  void check() const {
    if (!ids && !jsonl) throw CLI::RequiredError("--ids or --jsonl");
  }
};

std::string hexadecimal(std::string_view bytes) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string out;
  out.reserve(2 * bytes.size());
  for (const char c : bytes) {
    out += digits[static_cast<unsigned char>(c) >> 4];
    out += digits[static_cast<unsigned char>(c) & 15];
  }
  return out;
}

void run_detokenize(const detokenize_command& o) {
  const quena::tokenizer tokenizer = quena::tokenizer::open(text_files(o.model));
  const quena::decode_options options{.skip_special = o.skip_special, .continues = false};
  if (!o.jsonl) return write(tokenizer.decode(*o.ids, options));
  for_each_line([&](std::string_view line, const std::string& place) {
    write(hexadecimal(tokenizer.decode(ids_from_json(line, "detokenize", place), options)) + "\n");
  });
}

struct template_command {
  std::string model, messages, variables, source;
  bool no_generation_prompt = false, ids = false, json = false;
};

void run_template(const template_command& o) {
  const quena::checkpoint files = text_files(o.model);
  const std::optional<std::string> source = o.source.empty() ? quena::read_chat_template(files) : read_file(o.source);
  if (!source) quena::fail(quena::errc::unsupported, "template", "expected a model with a chat template, got one without", o.model);
  std::optional<quena::tokenizer> tokenizer;
  quena::template_options options;
  options.add_generation_prompt = !o.no_generation_prompt;
  if (o.ids || has_tokenizer(files)) {
    tokenizer = quena::tokenizer::open(files);
    if (const auto bos = tokenizer->bos_id()) options.bos_token = tokenizer->token_bytes(*bos);
    if (const auto eos = tokenizer->eos_ids(); !eos.empty()) options.eos_token = tokenizer->token_bytes(eos.front());
  }
  const quena::rendered_chat text =
      quena::chat_template(*source).render_json(read_file(o.messages), o.variables.empty() ? std::string() : read_file(o.variables), options);
  if (!o.ids) return write(text.text());
  write_json(tokenizer->encode_segments(text.segments(), false));
}

}  // namespace

void add_tokenize(CLI::App& app, action& run) {
  auto [sub, o] = add_command<tokenize_command>(app, run, "tokenize", "Standard input to a JSON array of token ids", run_tokenize);
  add_model_path(*sub, o->model);
  sub->add_flag("--no-bos", o->no_bos, "leave out what the tokenizer puts around a text");
  sub->add_flag("--parse-special", o->parse_special, "read control tokens in the text as such");
  sub->add_flag("--jsonl", o->jsonl, "each line of input is a JSON string and gives one line");
  sub->add_flag("--json", o->json, "no effect: it is JSON always");
}

void add_detokenize(CLI::App& app, action& run) {
  auto [sub, o] = add_command<detokenize_command>(app, run, "detokenize", "Token ids to bytes on standard output", run_detokenize);
  add_model_path(*sub, o->model);
  CLI::Option* ids = add_ids(*sub, "--ids", o->ids, "token ids");
  sub->add_flag("--jsonl", o->jsonl, "each line of standard input is a JSON array of ids and gives one line of hexadecimal")->excludes(ids);
  sub->add_flag("--skip-special", o->skip_special, "leave control tokens out");
}

void add_template(CLI::App& app, action& run) {
  auto [sub, o] = add_command<template_command>(app, run, "template", "Renders a chat template over messages", run_template);
  add_model_path(*sub, o->model);
  sub->add_option("--messages", o->messages, "a JSON array of messages")->required()->type_name("FILE");
  sub->add_option("--vars", o->variables, "a JSON object of more template variables")->type_name("FILE");
  sub->add_option("--template", o->source, "another template than the model's")->type_name("FILE");
  sub->add_flag("--no-generation-prompt", o->no_generation_prompt, "do not begin the assistant's turn");
  sub->add_flag("--ids", o->ids, "a JSON array of the text's token ids");
}

}  // namespace cli
