// SPDX-License-Identifier: MIT
// quena inspect: what is in a model's files, and what it will cost. Checks the files completely.
#include <algorithm>
#include <charconv>
#include <functional>
#include <map>
#include <numeric>
#include <optional>

#include <quena/backend/backend.hpp>
#include <quena/backend/cpu/cpu.hpp>
#include <quena/model/config.hpp>
#include <quena/model/llama_weights.hpp>
#include <quena/model/weights.hpp>
#include <quena/quant/codes.hpp>

#include "commands.hpp"
#include "common.hpp"

namespace cli {
namespace {

struct inspect_command {
  model_options model;
  bool config_only = false;
};

/// A float as the double that people write for it: 1e-05, not 9.999999747378752e-06.
double tidy(float x) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, x).ptr;
  double value = 0;
  std::from_chars(text, end, value);
  return value;
}

ordered_json config_json(const quena::llama_config& c) {
  ordered_json j{{"hidden_size", c.hidden_size},
                 {"intermediate_size", c.intermediate_size},
                 {"n_layers", c.n_layers},
                 {"n_heads", c.n_heads},
                 {"n_kv_heads", c.n_kv_heads},
                 {"head_dim", c.head_dim},
                 {"vocab_size", c.vocab_size},
                 {"max_position_embeddings", c.max_position_embeddings},
                 {"rms_norm_eps", tidy(c.rms_norm_eps)},
                 {"rope_theta", c.rope.theta},
                 {"rope_type", quena::rope_type_name(c.rope.type)},
                 {"tie_word_embeddings", c.tie_word_embeddings},
                 {"attention_bias", c.attention_bias},
                 {"mlp_bias", c.mlp_bias},
                 {"bos_token_id", nullptr},
                 {"eos_token_ids", c.eos_token_ids},
                 {"dtype", c.dtype},
                 {"inv_freq", quena::inv_freq(c.rope, c.head_dim)}};
  if (c.bos_token_id) j["bos_token_id"] = *c.bos_token_id;
  return j;
}

/// Bytes in memory, in exact terms for the weights and the cache; packing may add a few padded rows.
struct memory_plan {
  std::size_t context = 0;
  std::map<quena::format, std::size_t> weights;  ///< matrices in that format; norms and biases are f32 always
  std::map<quena::dtype, std::size_t> kv_cache;  ///< keys and values of `context` positions
  std::size_t workspace = 0;                     ///< activations of a pass of 512 rows, see model/workspace.hpp
};

memory_plan plan_memory(const quena::llama_config& c, std::size_t context) {
  std::size_t matrix_elements = 0, vector_elements = 0;
  const auto count = [&](const std::vector<quena::weight_spec>& table, std::size_t times) {
    for (const quena::weight_spec& w : table) (w.cols != 0 ? matrix_elements : vector_elements) += w.rows * (std::max)(w.cols, std::size_t{1}) * times;
  };
  count(quena::outer_weights(c), 1);
  count(quena::layer_weights_table(c, 0), c.n_layers);

  memory_plan plan;
  plan.context = context;
  for (std::size_t i = 1; i < std::size(quena::detail::format_names); ++i) {  // all but automatic
    const auto f = static_cast<quena::format>(i);
    const std::optional<quena::code_format> codes = quena::codes_of(f);
    const double bits = codes ? quena::bits_per_weight(*codes) : f == quena::format::f32 ? 32 : 16;
    plan.weights[f] = static_cast<std::size_t>(static_cast<double>(matrix_elements) * bits / 8) + vector_elements * 4;
  }
  constexpr std::size_t page_size = 16, rows = 512;
  for (const quena::dtype cell : {quena::dtype::f32, quena::dtype::f16, quena::dtype::bf16, quena::dtype::i8})
    plan.kv_cache[cell] = (context + page_size - 1) / page_size * quena::kv_shape{c.n_layers, c.n_kv_heads, c.head_dim, page_size, 0, cell}.page_bytes();
  const std::size_t attention = c.n_heads * c.head_dim, qkv = attention + 2 * c.n_kv_heads * c.head_dim;
  plan.workspace = 4 * (rows * (2 * c.hidden_size + qkv + attention + c.intermediate_size + c.head_dim) + 2 * (c.hidden_size + c.vocab_size));
  return plan;
}

std::string shape_text(const std::vector<std::size_t>& shape) {
  std::string s = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) s.append(i == 0 ? "" : ", ").append(std::to_string(shape[i]));
  return s + "]";
}

std::string padded(std::string s, std::size_t width) { return s.append(s.size() < width ? width - s.size() : 0, ' '); }

void print_config(const ordered_json& config) {
  for (const auto& [name, value] : config.items()) {
    std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    if (name == "inv_freq" && value.size() > 4)
      text = "[" + value[0].dump() + ", " + value[1].dump() + ", ... " + value.back().dump() + "] (" + std::to_string(value.size()) + ")";
    write(padded(name, 26) + text + "\n");
  }
}

void run_inspect(const inspect_command& o) {
  if (!o.model.adapters.empty()) quena::fail(quena::errc::unsupported, "inspect", "--lora: expected none: adapters are not looked at here");
  const quena::checkpoint files = quena::checkpoint::open(o.model.path, {.weights = !o.config_only, .allow_symlinks = false});
  const quena::llama_config config = quena::read_config(files);
  const ordered_json config_fields = config_json(config);
  if (o.config_only) return o.model.json ? write_json(config_fields) : print_config(config_fields);

  quena::check_tensors(files, config);
  quena::check_finite(files, {.every_value = true});

  const quena::artifact_file* const artifact = files.artifact();
  const std::string container = std::string(artifact ? "artifact of " : "") + (files.is_gguf() ? "gguf" : "safetensors");
  const quena::dtype embedding = files.find("model.embed_tokens.weight")->type;
  const quena::format format = artifact ? quena::detail::artifact_format<quena::cpu>(files, o.model.format) : quena::stored_format(o.model.format, embedding);
  const std::size_t context = o.model.context != 0 ? o.model.context : (std::min)(config.max_position_embeddings, std::size_t{4096});
  memory_plan plan = plan_memory(config, context);
  if (format == quena::format::automatic)  // the file's blocks as they are
    for (const quena::checkpoint_tensor& t : files.tensors()) plan.weights[format] += t.data.size();
  std::size_t packed_bytes = 0;
  if (artifact != nullptr) {
    for (const quena::safetensors_tensor& t : artifact->tensors()) {
      artifact->expect_hash(t.name, quena::detail::serial_hash(t.data));
      if (t.name.starts_with("packed/")) packed_bytes += t.data.size();
    }
    plan.weights[format] = packed_bytes;
  }
  const quena::dtype cell = o.model.kv.value_or(format == quena::format::f32 ? quena::dtype::f32 : quena::dtype::f16);
  const std::size_t total = plan.weights.at(format) + plan.kv_cache.at(cell) + plan.workspace;

  std::size_t n_bytes = packed_bytes, n_parameters = 0;
  std::map<quena::dtype, std::size_t> by_dtype;
  for (const quena::checkpoint_tensor& t : files.tensors()) {
    n_bytes += t.data.size();
    n_parameters += std::accumulate(t.shape.begin(), t.shape.end(), std::size_t{1}, std::multiplies<>());
    by_dtype[t.type] += t.data.size();
  }

  if (o.model.json) {
    ordered_json tensors = ordered_json::array(), dtypes, weights, kv;
    for (const quena::checkpoint_tensor& t : files.tensors())
      tensors.push_back({{"name", t.name}, {"dtype", quena::dtype_name(t.type)}, {"shape", t.shape}, {"bytes", t.data.size()}, {"file", t.file}});
    for (const auto& [type, bytes] : by_dtype) dtypes[std::string(quena::dtype_name(type))] = bytes;
    for (const auto& [f, bytes] : plan.weights) weights[std::string(quena::format_name(f))] = bytes;
    for (const auto& [type, bytes] : plan.kv_cache) kv[std::string(quena::dtype_name(type))] = bytes;
    return write_json({{"config", config_fields},
                       {"container", container},
                       {"format", quena::format_name(format)},
                       {"parameters", n_parameters},
                       {"bytes", n_bytes},
                       {"dtypes", dtypes},
                       {"tokenizer", has_tokenizer(files)},
                       {"tensors", tensors},
                       {"memory", {{"context", context}, {"weights_bytes", plan.weights.at(format)}, {"kv_bytes", plan.kv_cache.at(cell)},
                                   {"workspace_bytes", plan.workspace}, {"total_bytes", total}, {"weights_bytes_by_format", weights}, {"kv_bytes_by_type", kv}}}});
  }

  write(padded("path", 26) + files.path() + "\n" + padded("container", 26) + container + ", " + std::to_string(files.tensors().size()) + " tensors, " +
        std::to_string(n_parameters) + " parameters, " + readable_bytes(static_cast<double>(n_bytes)) + "\n");
  for (const auto& [type, bytes] : by_dtype) write(padded("  " + std::string(quena::dtype_name(type)), 26) + readable_bytes(static_cast<double>(bytes)) + "\n");
  write("\n");
  print_config(config_fields);
  write("\n");
  std::size_t name_width = 0, shape_width = 0;
  for (const quena::checkpoint_tensor& t : files.tensors()) {
    name_width = (std::max)(name_width, t.name.size());
    shape_width = (std::max)(shape_width, shape_text(t.shape).size());
  }
  for (const quena::checkpoint_tensor& t : files.tensors())
    write(padded(t.name, name_width + 2) + padded(std::string(quena::dtype_name(t.type)), 6) + padded(shape_text(t.shape), shape_width + 2) +
          readable_bytes(static_cast<double>(t.data.size())) + "\n");
  write("\nmemory for a context of " + std::to_string(context) + "\n");
  const auto line = [](const std::string& what, std::size_t bytes, bool chosen) {
    write("  " + padded(what, 24) + readable_bytes(static_cast<double>(bytes)) + (chosen ? "  *\n" : "\n"));
  };
  for (const auto& [f, bytes] : plan.weights) line("weights " + std::string(quena::format_name(f)), bytes, f == format);
  for (const auto& [type, bytes] : plan.kv_cache) line("cache " + std::string(quena::dtype_name(type)), bytes, type == cell);
  line("activations", plan.workspace, true);
  line("total of *", total, false);
}

}  // namespace

void add_inspect(CLI::App& app, action& run) {
  auto [sub, o] = add_command<inspect_command>(app, run, "inspect", "Shows what is in a model's files and checks them", run_inspect);
  add_model_options(*sub, o->model);
  sub->add_flag("--config-only", o->config_only, "the configuration alone; needs no weights");
}

}  // namespace cli
