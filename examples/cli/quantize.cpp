// SPDX-License-Identifier: MIT
// quena quantize: writes a model anew with its weights in another format, as an artifact or as a .gguf file.
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <quena/io/gguf_writer.hpp>
#include <quena/model/artifact.hpp>
#include <quena/model/gguf_export.hpp>
#include <quena/model/quantize.hpp>
#include <quena/quant/encode_row.hpp>

#include "commands.hpp"
#include "models.hpp"

namespace cli {
namespace {

struct quantize_command {
  model_options model;
  std::string format, out, method, calibration, output_format;
  std::size_t window = 512, calibration_tokens = 32768;
  bool report = false;

  [[nodiscard]] bool to_gguf() const { return out.ends_with(".gguf"); }
  void check() const {
    const bool careful = !method.empty() || !calibration.empty() || !output_format.empty() || report;
    if (careful && to_gguf()) throw CLI::ValidationError("a .gguf file is rounded to the nearest: --method, --calib, --output-format and --report are for artifacts");
    if (!calibration.empty() && !method.empty() && !quena::needs_data(*quena::parse_quant_method(method))) throw CLI::ValidationError("--calib is for imatrix, awq and gptq, not for " + method);
    if (!output_format.empty()) static_cast<void>(format_of(output_format));
    if (careful && !quena::codes_of(format_of(format))) throw CLI::ValidationError("--method, --calib, --output-format and --report need an integer format, such as int4");
    if (!to_gguf()) static_cast<void>(format_of(format));
  }
};

/// A path from UTF-8.
std::filesystem::path file_path(const std::string& utf8) { return std::filesystem::path(std::u8string(utf8.begin(), utf8.end())); }

/// What a .gguf file can be written in.
quena::gguf_target gguf_target_of(const std::string& name) {
  if (name == "q4_k_m") return {quena::dtype::q4_k, true};
  std::string known = "q4_k_m";
  for (std::size_t i = 0; i < quena::n_dtypes; ++i) {
    const auto d = static_cast<quena::dtype>(i);
    if (!quena::is_encodable(d)) continue;
    if (quena::dtype_name(d) == name) return {d, false};
    known.append(", ").append(quena::dtype_name(d));
  }
  quena::fail(quena::errc::unsupported, "quantize", {"--format: expected one of ", known, " for a .gguf file, got ", name});
}

void to_gguf(const quantize_command& o, const quena::byte_sink& sink) {
  const quena::gguf_target target = gguf_target_of(o.format);
  const quena::checkpoint files = quena::checkpoint::open(o.model.path);
  quena::gguf_source source = quena::gguf_source_of(files);
  progress_bar bar("quantizing");
  quena::write_gguf(std::move(source), target, sink, [&](double fraction) { bar(fraction); });
}

/// The method that was asked for; else the best one for what is at hand.
quena::quant_method method_of(const quantize_command& o) {
  if (o.method.empty()) return o.calibration.empty() ? quena::quant_method::search : quena::quant_method::gptq;
  return *quena::parse_quant_method(o.method);
}

quena::llama<quena::cpu> rounded(const quantize_command& o, const quena::checkpoint& files, quena::format format) {
  std::vector<token_id> ids;
  if (!o.calibration.empty()) ids = quena::tokenizer::open(files).encode(read_file(o.calibration));
  if (ids.size() > o.calibration_tokens) ids.resize(o.calibration_tokens);
  std::optional<quena::format> output;
  if (!o.output_format.empty()) output = format_of(o.output_format);
  std::vector<quena::matrix_report> reports;
  progress_bar bar("quantizing");
  quena::llama<quena::cpu> model = quena::quantize_model(files, make_backend<quena::cpu>(o.model), {.format = format, .output = output, .method = method_of(o), .calibration = ids, .window = o.window, .progress = std::ref(bar),
      .report = o.report ? [&](const quena::matrix_report& r) { reports.push_back(r); } : std::function<void(const quena::matrix_report&)>()});
  ordered_json list = ordered_json::array();
  for (const quena::matrix_report& r : reports) {
    list.push_back({{"name", r.name}, {"weight_error", r.weight_error}});
    if (r.output_error) list.back()["output_error"] = *r.output_error;
  }
  if (o.report) write_json({{"method", quena::quant_method_name(method_of(o))}, {"format", quena::format_name(format)}, {"calibration_tokens", ids.size()}, {"bytes", model.weights().n_bytes()}, {"matrices", list}}, true);
  return model;
}

void to_artifact(const quantize_command& o, const quena::byte_sink& sink) {
  const quena::format format = format_of(o.format);
  const bool integers = quena::codes_of(format).has_value();
  const quena::checkpoint files = quena::checkpoint::open(o.model.path);
  quena::check_finite(files, {.every_value = true});
  const quena::llama<quena::cpu> model = integers ? rounded(o, files, format) : load_model<quena::cpu>(o.model, files, format, 0);
  progress_bar bar("writing");
  quena::write_artifact(files, model, sink, [&](double fraction) { bar(fraction); });
}

void run_quantize(const quantize_command& o) {
  std::error_code ignored;
  const std::filesystem::path out_path = file_path(o.out), folder = out_path.has_parent_path() ? out_path.parent_path() : std::filesystem::path(".");
  const bool in_the_model = std::filesystem::exists(out_path, ignored) && std::filesystem::equivalent(file_path(o.model.path), folder, ignored);
  if (in_the_model || std::filesystem::equivalent(file_path(o.model.path), out_path, ignored) || std::filesystem::equivalent(file_path(o.calibration), out_path, ignored))
    quena::fail(quena::errc::invalid_argument, "quantize", "expected another file than the model's own and the calibration text", o.out);
  std::optional<quena::output_file> out;  // made with its first bytes: a refused model leaves nothing
  const auto sink = [&](std::span<const std::byte> bytes) {
    if (!out) out.emplace(o.out);
    out->write(bytes);
  };
  o.to_gguf() ? to_gguf(o, sink) : to_artifact(o, sink);
  out->finish();
}

}  // namespace

void add_quantize(CLI::App& app, action& run) {
  auto [sub, o] = add_command<quantize_command>(app, run, "quantize", "Writes a model anew with its weights in another format", run_quantize);
  sub->add_option("-m,--model", o->model.path, "a Hugging Face folder or a .gguf file")->required()->type_name("PATH");
  sub->add_option("--format", o->format, "auto, f32, f16, bf16, int8, int4, … for an artifact; f32, f16, bf16, q8_0, q4_0, q4_k, q6_k, q4_k_m for a .gguf file")->required()->type_name("X");
  sub->add_option("-o,--out", o->out, "the file to write: an artifact, or a .gguf file if it is called so")->required()->type_name("PATH");
  sub->add_option("--method", o->method, "nearest, search, hqq; with --calib also imatrix, awq, gptq. Without it: gptq with --calib, else search")
      ->check(CLI::IsMember(std::vector<std::string>(std::begin(quena::detail::quant_method_names), std::end(quena::detail::quant_method_names))))
      ->type_name("M");
  sub->add_option("--calib", o->calibration, "a text like those that the model will see")->type_name("FILE");
  add_number(*sub, "--calib-tokens", o->calibration_tokens, 2, 1 << 24, "how much of it is read; each token takes 4 bytes for each of hidden_size (32768)");
  add_number(*sub, "--window", o->window, 2, 1 << 20, "tokens of it that are read together");
  sub->add_option("--output-format", o->output_format, "another integer format for the output matrix (and the embedding, if it is the same)")->type_name("X");
  sub->add_flag("--report", o->report, "the error of every matrix, as JSON on standard output");
  add_number(*sub, "--threads", o->model.threads, 0, 4096, "0: one per core");
}

}  // namespace cli
