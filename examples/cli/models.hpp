// SPDX-License-Identifier: MIT
// From the options to a model on the chosen backend.
#pragma once

#include <concepts>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include <quena/backend/reference.hpp>
#include <quena/load.hpp>
#include <quena/model/weights.hpp>

#include "common.hpp"

namespace cli {

/// Calls f.operator()<B>() for the backend that --backend names; the one place where that is decided.
template <class F>
void with_backend(const model_options& o, F&& f) {
  if (o.backend == "reference") return f.template operator()<quena::reference>();
  f.template operator()<quena::cpu>();
}

template <quena::backend B>
B make_backend(const model_options& o) {
  if constexpr (std::same_as<B, quena::cpu>) return B(quena::cpu_options{.threads = o.threads});
  else return B();
}

/// Everything that the files hold.
template <quena::backend B>
quena::llm<B> load_llm(const model_options& o) {
  progress_bar bar("loading");
  std::vector<quena::adapter_path> adapters;
  for (const auto& [path, scale] : o.adapters) adapters.push_back({path, scale});
  return quena::load(o.path, {.format = o.format, .threads = o.threads, .context = o.context, .kv = o.kv, .adapters = std::move(adapters), .progress = std::ref(bar), .log = {}}, make_backend<B>(o));
}

/// The model alone: needs no tokenizer.
template <quena::backend B>
quena::llama<B> load_model(const model_options& o, const quena::checkpoint& files, quena::format format, std::size_t context) {
  progress_bar bar("loading");
  std::vector<quena::lora_adapter> adapters;
  std::vector<quena::lora_use> merge;
  adapters.reserve(o.adapters.size());
  for (const auto& [path, scale] : o.adapters) merge.push_back({&adapters.emplace_back(quena::lora_adapter::open(path, quena::read_config(files))), scale});
  return quena::llama<B>(files, make_backend<B>(o), {.format = format, .context = context, .merge = std::move(merge), .progress = [&](std::size_t done, std::size_t total) {
    bar(total == 0 ? 1.0 : static_cast<double>(done) / static_cast<double>(total));
  }});
}
template <quena::backend B>
quena::llama<B> load_model(const model_options& o, std::string_view path, quena::format format, std::size_t context) {
  const quena::checkpoint files = quena::checkpoint::open(path);
  quena::check_finite(files);
  return load_model<B>(o, files, format, context);
}

/// The tokenizer alone: needs no weights.
inline quena::tokenizer load_tokenizer(std::string_view path) {
  return quena::tokenizer::open(quena::checkpoint::open(path, {.weights = false, .allow_symlinks = false}));
}

}  // namespace cli
