// SPDX-License-Identifier: MIT
// quena quantize: writes a model anew with its weights in another format, as an artifact or as a .gguf file.
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <system_error>

#include <quena/io/gguf_writer.hpp>
#include <quena/model/artifact.hpp>
#include <quena/quant/encode_row.hpp>

#include "commands.hpp"
#include "models.hpp"

namespace cli {
namespace {

struct quantize_command {
  model_options model;
  std::string format, out;
};

/// A path from UTF-8.
std::filesystem::path file_path(const std::string& utf8) { return std::filesystem::path(std::u8string(utf8.begin(), utf8.end())); }

/// Tensor types that a .gguf file can be written in.
quena::dtype gguf_type_of(const std::string& name) {
  std::string known;
  for (std::size_t i = 0; i < quena::n_dtypes; ++i) {
    const auto d = static_cast<quena::dtype>(i);
    if (!quena::is_encodable(d)) continue;
    if (quena::dtype_name(d) == name) return d;
    known.append(known.empty() ? "" : ", ").append(quena::dtype_name(d));
  }
  quena::fail(quena::errc::unsupported, "quantize", {"--format: expected one of ", known, " for a .gguf file, got ", name});
}

void to_gguf(const quantize_command& o, const quena::byte_sink& sink) {
  const quena::dtype type = gguf_type_of(o.format);
  const quena::gguf_file source = quena::gguf_file::open(o.model.path);
  progress_bar bar("quantizing");
  quena::write_gguf(source, type, sink, [&](double fraction) { bar(fraction); });
}

void to_artifact(const quantize_command& o, const quena::byte_sink& sink) {
  const quena::checkpoint files = quena::checkpoint::open(o.model.path);
  quena::check_finite(files, {.every_value = true});
  const quena::llama<quena::cpu> model = load_model<quena::cpu>(o.model, files, format_of(o.format), 0);
  progress_bar bar("writing");
  quena::write_artifact(files, model, sink, [&](double fraction) { bar(fraction); });
}

void run_quantize(const quantize_command& o) {
  std::error_code ignored;
  if (std::filesystem::equivalent(file_path(o.model.path), file_path(o.out), ignored))
    quena::fail(quena::errc::invalid_argument, "quantize", "expected another file than the model's own", o.out);
  const bool gguf = o.out.ends_with(".gguf");
  std::optional<quena::output_file> out;  // made with its first bytes: a refused model leaves nothing
  const auto sink = [&](std::span<const std::byte> bytes) {
    if (!out) out.emplace(o.out);
    out->write(bytes);
  };
  gguf ? to_gguf(o, sink) : to_artifact(o, sink);
  out->finish();
}

}  // namespace

void add_quantize(CLI::App& app, action& run) {
  auto [sub, o] = add_command<quantize_command>(app, run, "quantize", "Writes a model anew with its weights in another format", run_quantize);
  sub->add_option("-m,--model", o->model.path, "a Hugging Face folder or a .gguf file; to write a .gguf file, one of those")->required()->type_name("PATH");
  sub->add_option("--format", o->format, "auto, f32, f16, bf16, int8, int4, … for an artifact; f32, f16, bf16, q8_0, q4_0 for a .gguf file")->required()->type_name("X");
  sub->add_option("-o,--out", o->out, "the file to write: an artifact, or a .gguf file if it is called so")->required()->type_name("PATH");
  add_number(*sub, "--threads", o->model.threads, 0, 4096, "0: one per core");
}

}  // namespace cli
