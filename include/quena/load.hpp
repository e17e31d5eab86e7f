// SPDX-License-Identifier: MIT
// A path becomes a model that can be talked to.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/cpu/cpu.hpp"
#include "io/checkpoint.hpp"
#include "model/generation_config.hpp"
#include "model/llama.hpp"
#include "sample/options.hpp"
#include "text/tokenizer.hpp"

namespace quena::inline QUENA_ABI {

struct load_options {
  quena::format format = quena::format::automatic;
  int threads = 0;               ///< 0: one per core; for the default backend only
  std::size_t context = 0;       ///< longest sequence; 0: the model's max_position_embeddings, 4096 at most
  std::optional<dtype> kv = {};  ///< cache cells f32, f16 or bf16; none: f32 for a model in f32, f16 otherwise
  std::function<void(double fraction)> progress = {};   ///< called while weights load, up to 1
  std::function<void(std::string_view line)> log = {};  ///< what was loaded and how; silent without it
};

/// Everything that a checkpoint holds, ready to run. Immutable: any number of threads may generate from one llm.
template <backend B>
struct llm {
  llama<B> model;
  quena::tokenizer tokenizer;
  std::optional<std::string> chat_template;  ///< as the files have it. chat compiles it: a program that only completes texts holds no Jinja
  std::string bos_token, eos_token;          ///< as text, for the template
  generation_defaults defaults;              ///< of generation_config.json
  std::vector<token_id> end_tokens;          ///< the union of what all files name
  kv_options cache;                          ///< what a session of this llm gets
};

/// The model's own sampling settings: generation_config.json where it speaks; greedy where it says do_sample: false or nothing.
[[nodiscard]] inline sampling_options sampling_defaults(const generation_defaults& d) {
  sampling_options o;
  if (!d.do_sample.value_or(d.temperature.has_value())) o.temperature = 0;
  else o.temperature = d.temperature.value_or(1.0f);
  o.top_k = d.top_k.value_or(0);
  o.top_p = d.top_p.value_or(1.0f);
  o.min_p = d.min_p.value_or(0.0f);
  o.typical_p = d.typical_p.value_or(1.0f);
  o.repetition_penalty = d.repetition_penalty.value_or(1.0f);
  return o;
}
template <backend B>
[[nodiscard]] sampling_options sampling_defaults(const llm<B>& source) {
  return sampling_defaults(source.defaults);
}

/// Loads a Hugging Face folder or a GGUF file onto a backend.
/// Errors   io, malformed, unsupported: which file, what was expected and what came; out_of_memory.
/// Cost     one read of the weights, packed in parallel; memory: the packed weights, and less than one tensor for a while.
template <backend B>
[[nodiscard]] llm<B> load(std::string_view path, const load_options& options, B b) {
  const checkpoint files = checkpoint::open(path);
  check_finite(files);
  quena::tokenizer tokenizer = quena::tokenizer::open(files);
  generation_defaults defaults = read_generation_defaults(files);
  std::optional<std::string> chat = read_chat_template(files);

  weight_options weights{.format = options.format, .context = options.context, .progress = {}};
  if (options.progress)
    weights.progress = [&](std::size_t done, std::size_t total) { options.progress(static_cast<double>(done) / static_cast<double>(total)); };
  llama<B> model(files, std::move(b), weights);

  std::vector<token_id> end_tokens = defaults.eos_token_ids;
  for (const token_id id : tokenizer.eos_ids())
    if (std::find(end_tokens.begin(), end_tokens.end(), id) == end_tokens.end()) end_tokens.push_back(id);
  const auto text_of = [&](std::optional<token_id> id) { return id ? std::string(tokenizer.token_bytes(*id)) : std::string(); };
  std::string bos = text_of(tokenizer.bos_id()), eos = text_of(tokenizer.eos_ids().empty() ? std::nullopt : std::optional(tokenizer.eos_ids().front()));
  if (options.log)
    options.log("loaded " + std::string(path) + ": " + std::to_string(model.config().n_layers) + " layers, " + std::string(format_name(model.weights().stored)) +
                " weights of " + std::to_string(model.weights().n_bytes() >> 20) + " MiB on backend " + std::string(model.backend().name()));
  return {std::move(model), std::move(tokenizer), std::move(chat), std::move(bos), std::move(eos), std::move(defaults), std::move(end_tokens),
          {.max_positions = options.context, .max_sequences = 1, .page_size = 16, .n_pages = 0, .cell = options.kv}};
}

/// The same on the CPU.
[[nodiscard]] inline llm<cpu> load(std::string_view path, const load_options& options = {}) {
  return load(path, options, cpu(cpu_options{.threads = options.threads, .level = {}}));
}

}  // namespace quena::inline QUENA_ABI
