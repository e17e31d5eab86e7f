// SPDX-License-Identifier: MIT
// A path becomes a model that can be talked to.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/cpu/cpu.hpp"
#include "io/checkpoint.hpp"
#include "model/artifact.hpp"
#include "model/generation_config.hpp"
#include "model/llama.hpp"
#include "sample/options.hpp"
#include "text/tokenizer.hpp"

namespace quena::inline QUENA_ABI {

/// A folder with a low-rank adapter in PEFT's format (model/lora.hpp), and how strongly it is added.
struct adapter_path {
  std::string path;
  double scale = 1;
};

struct load_options {
  quena::format format = quena::format::automatic;
  int threads = 0;               ///< 0: one per core; for the default backend only
  std::size_t context = 0;       ///< longest sequence; 0: the model's max_position_embeddings, 4096 at most
  std::optional<dtype> kv = {};  ///< cache cells f32, f16, bf16 or i8; none: f32 for a model in f32, f16 otherwise
  std::vector<adapter_path> adapters = {};  ///< merged into the weights, in this order; loaded without them, the model is the original again
  /// Where loaded checkpoints are kept as artifacts, so that the next load of the same one has nothing to do; empty: nowhere. The folder
  /// is made if need be; old artifacts are not removed. A cache that cannot be read or written only makes loading slower (log says why).
  std::string cache_dir = {};
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

namespace detail {

template <backend B>
llm<B> load_files(const checkpoint& files, const load_options& options, const std::vector<lora_use>& merge, std::shared_ptr<const B> b) {
  check_finite(files);
  quena::tokenizer tokenizer = quena::tokenizer::open(files);
  generation_defaults defaults = read_generation_defaults(files);
  std::optional<std::string> chat = read_chat_template(files);

  weight_options weights{.format = options.format, .context = options.context, .merge = merge, .progress = {}};
  if (options.progress)
    weights.progress = [&](std::size_t done, std::size_t total) { options.progress(static_cast<double>(done) / static_cast<double>(total)); };
  llama<B> model(files, std::move(b), weights);

  std::vector<token_id> end_tokens = defaults.eos_token_ids;
  for (const token_id id : tokenizer.eos_ids())
    if (std::find(end_tokens.begin(), end_tokens.end(), id) == end_tokens.end()) end_tokens.push_back(id);
  const auto text_of = [&](std::optional<token_id> id) { return id ? std::string(tokenizer.token_bytes(*id)) : std::string(); };
  std::string bos = text_of(tokenizer.bos_id()), eos = text_of(tokenizer.eos_ids().empty() ? std::nullopt : std::optional(tokenizer.eos_ids().front()));
  if (options.log)
    options.log("loaded " + files.path() + ": " + std::to_string(model.config().n_layers) + " layers, " + std::string(format_name(model.weights().stored)) +
                " weights of " + std::to_string(model.weights().n_bytes() >> 20) + " MiB on backend " + std::string(model.backend().name()));
  return {std::move(model), std::move(tokenizer), std::move(chat), std::move(bos), std::move(eos), std::move(defaults), std::move(end_tokens),
          {.max_positions = options.context, .max_sequences = 1, .page_size = 16, .n_pages = 0, .cell = options.kv}};
}

template <packing_backend B>
llm<B> load_cached(const checkpoint& files, const load_options& options, const std::vector<lora_use>& merge, const std::shared_ptr<const B>& b) {
  const auto log = [&](std::string_view what, const std::string& why) {
    if (options.log) options.log(std::string(what) + ": " + why);
  };
  std::vector<std::uint64_t> additions;
  for (const lora_use& use : merge) additions.push_back(use.hash());
  const std::string cached = artifact_cache_path(options.cache_dir, files, options.format, B::packed_form, std::move(additions));
  if (kind_of_path(cached) == path_kind::file) try {
      return load_files(checkpoint::open(cached), options, {}, b);
    } catch (const error& e) {
      if (e.code() == errc::out_of_memory) throw;
      log("the cache cannot be used", e.what());
    }
  llm<B> source = load_files(files, options, merge, b);
  try {
    make_folder(options.cache_dir);
    output_file out(cached);
    write_artifact(files, source.model, [&](std::span<const std::byte> bytes) { out.write(bytes); });
    out.finish();
  } catch (const error& e) {
    log("the cache cannot be written", e.what());
  }
  return source;
}

}  // namespace detail

/// Loads a Hugging Face folder, a GGUF file or an artifact onto a backend.
/// Errors   io, malformed, unsupported, non_finite: which file, what was expected and what came; out_of_memory.
/// Cost     one read of the weights, packed in parallel; memory: the packed weights, and less than one tensor for a while. An artifact:
///          one read for its hashes, in parallel, and no memory of its own.
template <backend B>
[[nodiscard]] llm<B> load(std::string_view path, const load_options& options, B b) {
  const checkpoint files = checkpoint::open(path);
  auto shared = std::make_shared<const B>(std::move(b));
  std::vector<lora_adapter> adapters;
  std::vector<lora_use> merge;
  adapters.reserve(options.adapters.size());
  for (const adapter_path& a : options.adapters) merge.push_back({&adapters.emplace_back(lora_adapter::open(a.path, read_config(files))), a.scale});
  if constexpr (packing_backend<B>)
    if (!options.cache_dir.empty() && files.artifact() == nullptr) return detail::load_cached<B>(files, options, merge, shared);
  return detail::load_files<B>(files, options, merge, std::move(shared));
}

/// The same on the CPU.
[[nodiscard]] inline llm<cpu> load(std::string_view path, const load_options& options = {}) {
  return load(path, options, cpu(cpu_options{.threads = options.threads, .level = {}}));
}

}  // namespace quena::inline QUENA_ABI
