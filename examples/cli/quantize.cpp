// SPDX-License-Identifier: MIT
// quena quantize: writes a model's file anew with its weights in another type.
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <system_error>

#include <quena/io/gguf_writer.hpp>

#include "commands.hpp"
#include "common.hpp"

namespace cli {
namespace {

struct quantize_command {
  std::string path, type, out;
};

/// A path from UTF-8.
std::filesystem::path file_path(const std::string& utf8) { return std::filesystem::path(std::u8string(utf8.begin(), utf8.end())); }

/// A file that is there once it is complete: written beside its place, then moved.
class whole_file {
 public:
  explicit whole_file(const std::string& path) : path_(path), partial_(path + ".part"), stream_(file_path(partial_), std::ios::binary | std::ios::trunc) {
    if (!stream_) failed();
  }
  ~whole_file() {
    std::error_code ignored;
    if (!finished_) stream_.close(), std::filesystem::remove(file_path(partial_), ignored);
  }
  whole_file(const whole_file&) = delete;
  whole_file& operator=(const whole_file&) = delete;
  void write(std::span<const std::byte> bytes) {
    if (!stream_.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()))) failed();
  }
  void finish() {
    stream_.close();
    std::error_code code;
    if (stream_) std::filesystem::rename(file_path(partial_), file_path(path_), code);
    if (!stream_ || code) failed();
    finished_ = true;
  }

 private:
  [[noreturn]] void failed() const { quena::fail(quena::errc::io, "quantize", "expected a file that can be written, got an error", path_); }

  std::string path_, partial_;
  std::ofstream stream_;
  bool finished_ = false;
};

quena::dtype type_of(const std::string& name) {
  for (const quena::dtype d : {quena::dtype::f32, quena::dtype::f16, quena::dtype::bf16, quena::dtype::q8_0, quena::dtype::q4_0})
    if (quena::dtype_name(d) == name) return d;
  quena::fail(quena::errc::unsupported, "quantize", {"--format: expected f32, f16, bf16, q8_0 or q4_0, got ", name});
}

void run_quantize(const quantize_command& o) {
  const quena::dtype type = type_of(o.type);
  const quena::gguf_file source = quena::gguf_file::open(o.path);
  std::error_code ignored;
  if (std::filesystem::equivalent(file_path(o.path), file_path(o.out), ignored))
    quena::fail(quena::errc::invalid_argument, "quantize", "expected another file than the model's own", o.out);
  whole_file out(o.out);
  progress_bar bar("quantizing");
  quena::write_gguf(source, type, [&](std::span<const std::byte> bytes) { out.write(bytes); }, [&](double fraction) { bar(fraction); });
  out.finish();
}

}  // namespace

void add_quantize(CLI::App& app, action& run) {
  auto [sub, o] = add_command<quantize_command>(app, run, "quantize", "Writes a .gguf file anew with its weights in another type", run_quantize);
  sub->add_option("-m,--model", o->path, "a .gguf file")->required()->type_name("PATH");
  sub->add_option("--format", o->type, "f32, f16, bf16, q8_0, q4_0")->required()->type_name("X");
  sub->add_option("-o,--out", o->out, "the file to write")->required()->type_name("PATH");
}

}  // namespace cli
