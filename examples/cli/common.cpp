// SPDX-License-Identifier: MIT
#include "common.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <utility>
#include <limits>
#include <system_error>

#include <CLI/Error.hpp>
#include <quena/io/json.hpp>

#ifdef _WIN32
#include <fcntl.h>
#include <io.h>
// Declared here because <windows.h> would bring its macros along.
struct quena_process_memory {  // PROCESS_MEMORY_COUNTERS
  unsigned long size, page_faults;
  std::size_t peak_working_set, rest[7];
};
extern "C" __declspec(dllimport) void* __stdcall GetCurrentProcess();
extern "C" __declspec(dllimport) int __stdcall K32GetProcessMemoryInfo(void* process, quena_process_memory* counters, unsigned long size);
#else
#include <sys/resource.h>
#include <unistd.h>
#endif

namespace cli {

// ---- options

namespace {

[[noreturn]] void usage_error(const std::string& option, const std::string& expected, std::string_view got) {
  throw CLI::ValidationError(option, "expected " + expected + ", got '" + std::string(got.substr(0, 100)) + "'");
}

[[noreturn]] void not_yet(const std::string& what) { quena::fail(quena::errc::unsupported, "cli", what); }

}  // namespace

std::int64_t parse_number(const std::string& option, std::string_view text, std::int64_t low, std::int64_t high) {
  std::int64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size() || value < low || value > high) {
    const bool bounded = high != (std::numeric_limits<std::int64_t>::max)();
    usage_error(option, "a whole number " + (bounded ? "from " + std::to_string(low) + " to " + std::to_string(high) : "of at least " + std::to_string(low)), text);
  }
  return value;
}

CLI::Option* add_real(CLI::App& app, const std::string& name, std::optional<float>& to, const std::string& help) {
  return app.add_option_function<std::string>(name, [&to, name](const std::string& text) {
    float value = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (code != std::errc() || end != text.data() + text.size()) usage_error(name, "a decimal number", text);
    to = value;
  }, help)->type_name("X");
}

CLI::Option* add_texts(CLI::App& app, const std::string& name, std::vector<std::string>& to, const std::string& help) {
  return app.add_option_function<std::string>(name, [&to](const std::string& text) { to.push_back(text); }, help)->trigger_on_parse();
}

CLI::Option* add_ids(CLI::App& app, const std::string& name, std::optional<std::vector<token_id>>& to, const std::string& help) {
  return app.add_option_function<std::string>(name, [&to, name](const std::string& text) {
    std::vector<token_id> ids;
    for (std::size_t at = 0; at <= text.size();) {
      const std::size_t comma = (std::min)(text.find(',', at), text.size());
      token_id id = 0;
      const auto [end, code] = std::from_chars(text.data() + at, text.data() + comma, id);
      if (code != std::errc() || end != text.data() + comma) usage_error(name, "token ids like 1,2,3", text);
      ids.push_back(id);
      at = comma + 1;
    }
    to = std::move(ids);
  }, help)->type_name("1,2,3");
}

constexpr const char* format_names = "auto, f32, f16, bf16, int8[_g64, _g32, _row], int4[_g64, _g128], int4z[_g64, _g128]";

quena::format format_of(const std::string& name) {
  const std::optional<quena::format> f = quena::parse_format(name);
  if (!f) usage_error("--format", format_names, name);
  return *f;
}

void add_model_path(CLI::App& app, std::string& path) {
  app.add_option("-m,--model", path, "a Hugging Face folder or a .gguf file")->required()->type_name("PATH");
}

void add_model_options(CLI::App& app, model_options& o) {
  add_model_path(app, o.path);
  app.add_option_function<std::string>("--format", [&o](const std::string& name) { o.format = format_of(name); },
                                       "weights in memory: auto (the file's own), f32, f16, bf16, int8[_g64, _g32, _row], int4[_g64, _g128], int4z[_g64, _g128]")->type_name("X");
  add_number(app, "--threads", o.threads, 1, 4096, "threads (one per core)")->type_name("N");
  add_number(app, "--ctx", o.context, 1, std::int64_t{1} << 31, "longest text in tokens (the model's, 4096 at most)")->type_name("N");
  app.add_option_function<std::string>("--kv-type", [&o](const std::string& name) {
    for (const auto& [known, d] : {std::pair{"f32", quena::dtype::f32}, {"f16", quena::dtype::f16}, {"bf16", quena::dtype::bf16}, {"int8", quena::dtype::i8}})
      if (name == known) return void(o.kv = d);
    usage_error("--kv-type", "f32, f16, bf16 or int8", name);
  }, "keys and values in memory: f32, f16, bf16, int8")->type_name("X");
  app.add_option_function<std::string>("--lora", [&o](const std::string& text) {
    const std::size_t colon = text.rfind(':');
    double scale = 1;
    if (colon != text.npos) {
      const auto [end, code] = std::from_chars(text.data() + colon + 1, text.data() + text.size(), scale);
      if (code == std::errc() && end == text.data() + text.size() && std::isfinite(scale)) return void(o.adapters.emplace_back(text.substr(0, colon), scale));
    }
    o.adapters.emplace_back(text, 1);  // a colon of the path
  }, "a low-rank adapter's folder (PEFT), and how strongly it is added to the weights; again for more")->type_name("DIR[:SCALE]")->trigger_on_parse();
  app.add_option_function<std::string>("--backend", [&o](const std::string& name) {
    if (name == "cuda") not_yet("--backend cuda: expected cpu or reference: this version has no CUDA backend");
    if (name != "cpu" && name != "reference") usage_error("--backend", "cpu or reference", name);
    o.backend = name;
  }, "cpu, or reference (plain loops)")->type_name("X");
  app.add_flag("--json", o.json, "print JSON");
}

void add_ids_options(CLI::App& app, ids_options& o) {
  CLI::Option* ids = add_ids(app, "--ids", o.ids, "token ids");
  app.add_option("--ids-file", o.file, "a JSON array of token ids")->type_name("FILE")->excludes(ids);
}

void ids_options::check() const {
  if (!ids && file.empty()) throw CLI::RequiredError("--ids or --ids-file");
}

std::vector<token_id> ids_options::read() const { return ids ? *ids : ids_from_json(read_file(file), "cli", file); }

std::vector<token_id> ids_from_json(std::string_view text, std::string_view where, const std::string& file) {
  const nlohmann::json list = quena::parse_json(text, where, file);
  const auto is_id = [](const nlohmann::json& x) {
    return x.is_number_integer() && x.get<std::int64_t>() >= 0 && x.get<std::int64_t>() <= (std::numeric_limits<token_id>::max)();
  };
  if (!list.is_array() || !std::all_of(list.begin(), list.end(), is_id))
    quena::fail(quena::errc::malformed, where, "expected a JSON array of token ids, got something else", file);
  return list.get<std::vector<token_id>>();
}

// ---- input and output

void prepare_streams() {
#ifdef _WIN32
  _setmode(_fileno(stdin), _O_BINARY);
  _setmode(_fileno(stdout), _O_BINARY);
#else
  std::signal(SIGPIPE, SIG_IGN);
#endif
  std::ios::sync_with_stdio(false);
}

namespace {

void check_output(bool good) {
  if (good) return;
  const int code = errno;
  quena::fail(quena::errc::io, "cli", "cannot write to standard output: " + std::generic_category().message(code));
}

}  // namespace

void write(std::string_view bytes) { check_output(std::fwrite(bytes.data(), 1, bytes.size(), stdout) == bytes.size()); }
void flush() { check_output(std::fflush(stdout) == 0); }

void write_json(const ordered_json& value, bool pretty) {
  write(value.dump(pretty ? 2 : -1, ' ', false, ordered_json::error_handler_t::replace));
  write("\n");
}

void note(std::string_view line) {
  std::string s(line);
  for (char& c : s)  // one line, whatever a name contains
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  s += '\n';
  std::fflush(stdout);
  std::fwrite(s.data(), 1, s.size(), stderr);
}

bool is_terminal(int fd) {
#ifdef _WIN32
  return _isatty(fd) != 0;
#else
  return ::isatty(fd) != 0;
#endif
}

std::string read_file(const std::string& path) {
  if (path == "-") {
    std::string bytes;
    for (std::string part(std::size_t{1} << 16, '\0'); std::cin.read(part.data(), static_cast<std::streamsize>(part.size())) || std::cin.gcount() != 0;)
      bytes.append(part, 0, static_cast<std::size_t>(std::cin.gcount()));
    if (std::cin.bad()) quena::fail(quena::errc::io, "cli", "cannot read standard input");
    return bytes;
  }
  const std::filesystem::path name(std::u8string(path.begin(), path.end()));
  std::error_code ignored;
  if (std::filesystem::is_directory(name, ignored)) quena::fail(quena::errc::io, "cli", "expected a file, got a folder", path);
  errno = 0;
  std::ifstream in(name, std::ios::binary);
  if (!in) quena::fail(quena::errc::io, "cli", "cannot open: " + std::generic_category().message(errno), path);
  std::string bytes(std::istreambuf_iterator<char>(in), {});
  if (in.bad()) quena::fail(quena::errc::io, "cli", "cannot read", path);
  return bytes;
}

void for_each_line(const std::function<void(std::string_view line, const std::string& place)>& each) {
  std::size_t number = 0;
  for (std::string line; std::getline(std::cin, line);) {
    each(line, "standard input, line " + std::to_string(++number));
    if (std::cin.rdbuf()->in_avail() <= 0) flush();
  }
  if (std::cin.bad()) quena::fail(quena::errc::io, "cli", "cannot read standard input");
}

progress_bar::progress_bar(std::string_view what) : what_(what), start_(std::chrono::steady_clock::now()), terminal_(is_terminal(2)) {}

progress_bar::~progress_bar() {
  if (shown_) std::fputs("\r\033[K", stderr);
}

void progress_bar::operator()(double fraction) {
  const int percent = std::clamp(static_cast<int>(fraction * 100), 0, 100);
  if (!terminal_ || percent == percent_ || (!shown_ && seconds_since(start_) < 0.5)) return;
  percent_ = percent;
  shown_ = true;
  constexpr std::size_t width = 30;
  const std::size_t done = width * static_cast<std::size_t>(percent) / 100;
  const std::string line = "\r" + what_ + " [" + std::string(done, '#') + std::string(width - done, ' ') + "] " + std::to_string(percent) + " %";
  std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
}

// ---- measuring

std::size_t peak_rss_bytes() {
#ifdef _WIN32
  quena_process_memory memory{};
  memory.size = sizeof memory;
  return K32GetProcessMemoryInfo(GetCurrentProcess(), &memory, sizeof memory) != 0 ? memory.peak_working_set : 0;
#else
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) != 0) return 0;
#ifdef __APPLE__
  return static_cast<std::size_t>(usage.ru_maxrss);
#else
  return static_cast<std::size_t>(usage.ru_maxrss) * 1024;
#endif
#endif
}

std::string fixed(double value, int digits) {
  char text[64];
  const auto end = std::to_chars(text, text + sizeof text, value, std::chars_format::fixed, digits);
  return end.ec == std::errc() ? std::string(text, end.ptr) : "?";
}

std::string readable_bytes(double n) {
  const char* unit = "B";
  for (const char* larger : {"KiB", "MiB", "GiB", "TiB"}) {
    if (n < 1024) break;
    n /= 1024;
    unit = larger;
  }
  return fixed(n, *unit == 'B' ? 0 : 1) + " " + unit;
}

// ---- models

bool has_tokenizer(const quena::checkpoint& files) {
  return files.is_gguf() ? files.gguf().find("tokenizer.ggml.model") != nullptr : files.text_file("tokenizer.json").has_value();
}

}  // namespace cli
