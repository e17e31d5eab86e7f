// SPDX-License-Identifier: MIT
// Low-rank adapters in PEFT's format: a folder with adapter_config.json and adapter_model.safetensors.
//   W' = W + s B A,  s = lora_alpha / r, or lora_alpha / sqrt(r) with use_rslora     (Hu et al. 2021, arXiv:2106.09685; rsLoRA: Kalajdzievski
//   2023, arXiv:2312.03732)
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../backend/backend.hpp"
#include "../core/hash.hpp"
#include "../io/file_system.hpp"
#include "../io/json.hpp"
#include "../io/json_fields.hpp"
#include "../io/mapped_file.hpp"
#include "../io/safetensors.hpp"
#include "config.hpp"
#include "weights.hpp"

namespace quena::inline QUENA_ABI {

/// What an adapter adds to one module.
struct lora_module {
  std::string name;  ///< model.layers.0.self_attn.q_proj, lm_head
  std::size_t rank = 0, rows = 0, cols = 0;
  double scale = 1;      ///< s
  std::vector<float> a;  ///< [rank, cols]
  std::vector<float> b;  ///< [rows, rank]
};

/// An adapter that fits a model. Immutable.
class lora_adapter {
 public:
  /// Errors   io: a file is absent; malformed: tensors that do not fit the model, the adapter's configuration or each other;
  ///          non_finite; unsupported: what is not a plain LoRA of linear layers (DoRA, biases, saved modules, embeddings, IA3, …):
  ///          never left out silently. All with the file and the field or tensor.
  static lora_adapter open(std::string_view folder, const llama_config& c);

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] const std::vector<lora_module>& modules() const noexcept { return modules_; }  ///< sorted by name
  [[nodiscard]] const lora_module* find(std::string_view module) const noexcept {
    const auto it = std::lower_bound(modules_.begin(), modules_.end(), module, [](const lora_module& m, std::string_view n) { return m.name < n; });
    return it != modules_.end() && it->name == module ? &*it : nullptr;
  }

 private:
  std::string path_;
  std::vector<lora_module> modules_;
};

/// An adapter at some strength: s is multiplied by `scale`.
struct lora_use {
  const lora_adapter* adapter = nullptr;
  double scale = 1;

  /// Another number for another addition to the weights.
  [[nodiscard]] std::uint64_t hash() const {
    std::vector<std::uint64_t> sums = {std::bit_cast<std::uint64_t>(scale)};
    for (const lora_module& m : adapter->modules())
      for (const std::span<const std::byte> bytes : {std::as_bytes(std::span(m.name)), std::as_bytes(std::span(&m.scale, 1)), std::as_bytes(std::span(m.a)), std::as_bytes(std::span(m.b))})
        sums.push_back(content_hash(bytes));
    return combined_hash(sums);
  }
};

namespace detail {

/// The fields of adapter_config.json that decide what the tensors mean.
struct lora_config {
  std::size_t r = 0;
  double alpha = 0;
  bool rslora = false;
  std::vector<std::pair<std::string, double>> rank_pattern, alpha_pattern;
  std::optional<std::vector<std::string>> targets;  ///< none: an expression, which only the tensors can answer for
  std::optional<std::vector<std::size_t>> layers;   ///< none: all

  static constexpr std::uint64_t most = 1u << 20;

  /// A name of PEFT's lists and patterns: a module's whole name, or its end after a dot.
  [[nodiscard]] static bool names(std::string_view pattern, std::string_view module) noexcept {
    return module == pattern || (module.size() > pattern.size() && module.ends_with(pattern) && module[module.size() - pattern.size() - 1] == '.');
  }
  [[nodiscard]] static std::optional<double> matched(const std::vector<std::pair<std::string, double>>& patterns, std::string_view module) {
    for (const auto& [pattern, value] : patterns)
      if (names(pattern, module)) return value;
    return std::nullopt;
  }
  [[nodiscard]] std::size_t rank_of(std::string_view module) const { return static_cast<std::size_t>(matched(rank_pattern, module).value_or(static_cast<double>(r))); }
  [[nodiscard]] double scale_of(std::string_view module) const {
    const double rank = static_cast<double>(rank_of(module));
    return matched(alpha_pattern, module).value_or(alpha) / (rslora ? std::sqrt(rank) : rank);
  }
};

/// rank_pattern, alpha_pattern: names to numbers.
inline std::vector<std::pair<std::string, double>> lora_pattern(const json_fields& f, std::string_view key, bool whole) {
  std::vector<std::pair<std::string, double>> out;
  const json* const object = f.find(key);
  if (object == nullptr) return out;
  if (!object->is_object()) f.wrong(key, "an object", *object);
  const json_fields values(*object, "lora", f.file(), std::string(key) + ".");
  for (const auto& [name, value] : object->items()) {
    if (name.find_first_of("^$*+?()[]{}|\\") != name.npos) f.wrong(key, "names of modules, or their ends", json(name), errc::unsupported);
    out.emplace_back(name, whole ? static_cast<double>(values.need_integer(name, 1, lora_config::most)) : values.need(name, values.number(name), "a number"));
  }
  return out;
}

inline lora_config parse_lora_config(const json& config, std::string_view file) {
  const json_fields f(config, "lora", file);
  const auto only = [&](std::string_view key, bool right, const error_message& wanted) {
    if (!right) f.wrong(key, wanted, *f.find(key), errc::unsupported);
  };
  const auto absent = [&](std::string_view key) {
    const json* const v = f.find(key);
    only(key, v == nullptr || ((v->is_array() || v->is_object()) && v->empty()), "nothing there");
  };
  const std::string type = f.need("peft_type", f.string("peft_type"), "LORA");
  only("peft_type", type == "LORA", "LORA");
  for (const char* key : {"use_dora", "fan_in_fan_out", "lora_bias", "use_qalora"}) only(key, !f.boolean(key).value_or(false), "false");
  only("bias", f.string("bias").value_or("none") == "none", "none");
  for (const char* key : {"modules_to_save", "layer_replication", "trainable_token_indices", "target_parameters", "alora_invocation_tokens"}) absent(key);
  if (const json* init = f.find("init_lora_weights"); init != nullptr && init->is_string())
    for (const char* kind : {"pissa", "olora", "corda"})  // these change the base weights, too
      only("init_lora_weights", !init->get<std::string>().starts_with(kind), "an adapter of the model's own weights");

  lora_config c;
  c.r = f.need_integer("r", 1, lora_config::most);
  c.alpha = f.need("lora_alpha", f.number("lora_alpha", 0, 1e9), "a number");
  c.rslora = f.boolean("use_rslora").value_or(false);
  c.rank_pattern = lora_pattern(f, "rank_pattern", true);
  c.alpha_pattern = lora_pattern(f, "alpha_pattern", false);
  if (const json* layers = f.find("layers_to_transform")) {
    c.layers.emplace();
    const auto add = [&](const json& v) {
      const std::optional<std::uint64_t> n = unsigned_value(v);
      if (!n || *n > config_limits::layers) f.wrong("layers_to_transform", "numbers of layers", v);
      c.layers->push_back(static_cast<std::size_t>(*n));
    };
    if (!layers->is_array()) add(*layers);
    else for (const json& v : *layers) add(v);
  }
  const json* const targets = f.find("target_modules");
  if (targets == nullptr || targets->is_string() || f.has("exclude_modules")) return c;
  if (!targets->is_array()) f.wrong("target_modules", "names of modules", *targets);
  c.targets.emplace();
  for (const json& v : *targets) {
    if (!v.is_string()) f.wrong("target_modules", "names of modules", v);
    c.targets->push_back(v.get<std::string>());
  }
  return c;
}

/// Every linear module of the model: its name and its weight's shape.
inline std::vector<lora_module> linear_modules(const llama_config& c) {
  std::vector<lora_module> all = {{.name = "lm_head", .rank = 0, .rows = c.vocab_size, .cols = c.hidden_size, .scale = 1, .a = {}, .b = {}}};
  for (std::size_t l = 0; l < c.n_layers; ++l)
    for (const weight_spec& w : layer_weights_table(c, l))
      if (w.cols != 0) all.push_back({.name = w.name.substr(0, w.name.size() - std::string_view(".weight").size()), .rank = 0, .rows = w.rows, .cols = w.cols, .scale = 1, .a = {}, .b = {}});
  std::sort(all.begin(), all.end(), [](const lora_module& a, const lora_module& b) { return a.name < b.name; });
  return all;
}

}  // namespace detail

inline lora_adapter lora_adapter::open(std::string_view folder, const llama_config& c) {
  constexpr std::string_view prefix = "base_model.model.", ends[] = {".lora_A.weight", ".lora_B.weight"};
  const std::string config_path = join_path(folder, "adapter_config.json"), tensors_path = join_path(folder, "adapter_model.safetensors");
  const mapped_file config_file = mapped_file::open(config_path);
  if (config_file.bytes().size() > (std::size_t{1} << 24)) fail(errc::malformed, "lora", {"expected a text of at most 16 MiB, got ", config_file.bytes().size(), " bytes"}, config_path);
  const detail::lora_config config =
      detail::parse_lora_config(parse_json({reinterpret_cast<const char*>(config_file.bytes().data()), config_file.bytes().size()}, "lora", config_path), config_path);
  const safetensors_file tensors = safetensors_file::open(tensors_path);
  const auto bad = [&](const error_message& what, errc code = errc::malformed) { fail(code, "lora", what, tensors_path); };

  lora_adapter adapter;
  adapter.path_ = folder;
  const auto read = [&](const safetensors_tensor& t, std::size_t rows, std::size_t cols) {
    if (t.shape != std::vector{rows, cols}) bad({t.name, ": expected ", detail::shape_text({rows, cols}), ", got ", detail::shape_text(t.shape)});
    if (t.type != dtype::f32 && t.type != dtype::f16 && t.type != dtype::bf16) bad({t.name, ": expected f32, f16 or bf16, got ", dtype_name(t.type)}, errc::unsupported);
    if (const std::size_t at = find_non_finite(t.type, t.data.data(), rows * cols); at != rows * cols) bad({t.name, ": expected finite numbers, got another as element ", at}, errc::non_finite);
    std::vector<float> values(rows * cols);
    dequantize_row(t.type, t.data.data(), values.data(), values.size());
    return values;
  };
  std::vector<lora_module> linear = detail::linear_modules(c);
  for (const safetensors_tensor& t : tensors.tensors()) {
    const std::string_view name = t.name, end = name.ends_with(ends[0]) ? ends[0] : ends[1];
    const bool framed = name.starts_with(prefix) && name.ends_with(end) && name.size() > prefix.size() + end.size();
    const std::string_view module = framed ? name.substr(prefix.size(), name.size() - prefix.size() - end.size()) : "";
    const auto at = std::lower_bound(linear.begin(), linear.end(), module, [](const lora_module& m, std::string_view n) { return m.name < n; });
    if (at == linear.end() || at->name != module) bad({detail::shortened(name), ": expected lora_A and lora_B of the linear layers of a model with ", c.n_layers, " layers, got this one"}, errc::unsupported);
  }
  for (lora_module& m : linear) {
    const std::string stem = std::string(prefix) + m.name;
    const safetensors_tensor *const a = tensors.find(stem + std::string(ends[0])), *const b = tensors.find(stem + std::string(ends[1]));
    if (a == nullptr && b == nullptr) {
      const auto in_layer = [&](std::size_t l) { return m.name.starts_with("model.layers." + std::to_string(l) + "."); };
      const bool listed = config.targets && std::any_of(config.targets->begin(), config.targets->end(), [&](const std::string& t) { return detail::lora_config::names(t, m.name); });
      if (listed && (!config.layers || std::any_of(config.layers->begin(), config.layers->end(), in_layer))) bad({stem, ends[0], ": expected it, as target_modules says, but it is absent"});
      continue;
    }
    for (std::size_t i = 0; i < 2; ++i)
      if ((i == 0 ? a : b) == nullptr) bad({stem, ends[i], ": expected it beside the other half, but it is absent"});
    m.rank = config.rank_of(m.name), m.scale = config.scale_of(m.name);
    m.a = read(*a, m.rank, m.cols), m.b = read(*b, m.rows, m.rank);
    adapter.modules_.push_back(std::move(m));
  }
  if (adapter.modules_.empty()) bad("expected lora_A and lora_B of some module, got none");
  return adapter;
}

}  // namespace quena::inline QUENA_ABI
