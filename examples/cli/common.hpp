// SPDX-License-Identifier: MIT
// What the commands share: options, input and output, how a model is opened.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/App.hpp>
#include <quena/core/dtype.hpp>
#include <quena/core/error.hpp>
#include <quena/core/format.hpp>
#include <quena/io/checkpoint.hpp>

namespace cli {

using token_id = std::int32_t;
using ordered_json = nlohmann::ordered_json;  // fields come out in the order in which they are documented

// ---- options

/// Options of every command that runs a model.
struct model_options {
  std::string path;
  quena::format format = quena::format::automatic;
  int threads = 0;          // 0: one per core
  std::size_t context = 0;  // 0: the model's
  std::string backend = "cpu";
  std::optional<quena::dtype> kv;
  std::vector<std::pair<std::string, double>> adapters;  // folders and scales
  bool json = false;
};

/// -m, for commands that need no weights.
void add_model_path(CLI::App& app, std::string& path);
/// -m, --format, --threads, --ctx, --lora, --backend, --kv-type, --json.
void add_model_options(CLI::App& app, model_options& o);

/// Throws CLI11's usage error unless `text` is a whole number in [low, high].
std::int64_t parse_number(const std::string& option, std::string_view text, std::int64_t low, std::int64_t high);

/// A whole number in [low, high]; anything else is a usage error. (CLI11's own conversion lets "-1" through as 2^64 - 1.)
template <class T>
CLI::Option* add_number(CLI::App& app, const std::string& name, T& to, std::int64_t low, std::int64_t high, const std::string& help) {
  return app.add_option_function<std::string>(name, [&to, name, low, high](const std::string& s) { to = static_cast<T>(parse_number(name, s, low, high)); }, help);
}
/// A decimal number, read the same in every locale; the library checks its range.
CLI::Option* add_real(CLI::App& app, const std::string& name, std::optional<float>& to, const std::string& help);
/// A text that may be given again and again, taken as it is. (CLI11's own lists would split "[a,b]".)
CLI::Option* add_texts(CLI::App& app, const std::string& name, std::vector<std::string>& to, const std::string& help);
/// Token ids, 1,2,3.
CLI::Option* add_ids(CLI::App& app, const std::string& name, std::optional<std::vector<token_id>>& to, const std::string& help);
quena::format format_of(const std::string& name);

/// A JSON array of token ids.  Errors   malformed, with `where` and `file`.
std::vector<token_id> ids_from_json(std::string_view text, std::string_view where, const std::string& file);

/// Where token ids come from: --ids or --ids-file.
struct ids_options {
  std::optional<std::vector<token_id>> ids;
  std::string file;
  void check() const;
  [[nodiscard]] std::vector<token_id> read() const;
};
void add_ids_options(CLI::App& app, ids_options& o);

// ---- input and output

/// Standard input and output pass bytes unchanged; a closed pipe is an error and not the end of the program.
void prepare_streams();
/// To standard output.  Errors   io: a closed pipe, a full disk.
void write(std::string_view bytes);
void flush();
/// One JSON value and a newline. Bytes that are not UTF-8 come out as U+FFFD.
void write_json(const ordered_json& value, bool pretty = false);
/// A line on standard error.
void note(std::string_view line);
[[nodiscard]] bool is_terminal(int fd);

/// A whole file as bytes; "-" is standard input.
std::string read_file(const std::string& path);
/// Calls each(line, "standard input, line n") for every line of standard input; what was written is flushed whenever no more
/// input is waiting, so that two programs can talk in turns.
void for_each_line(const std::function<void(std::string_view line, const std::string& place)>& each);

/// A bar on standard error when it is a terminal, from the second half second on; it goes when the work is done.
class progress_bar {
 public:
  explicit progress_bar(std::string_view what);
  ~progress_bar();
  progress_bar(const progress_bar&) = delete;
  progress_bar& operator=(const progress_bar&) = delete;
  void operator()(double fraction);

 private:
  std::string what_;
  std::chrono::steady_clock::time_point start_;
  bool terminal_, shown_ = false;
  int percent_ = -1;
};

// ---- measuring

[[nodiscard]] inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}
/// The most memory that this process has held so far.
[[nodiscard]] std::size_t peak_rss_bytes();
/// 1536 -> "1.5 KiB".
[[nodiscard]] std::string readable_bytes(double n);
/// 12.3456 -> "12.3".
[[nodiscard]] std::string fixed(double value, int digits);

// ---- models

/// True if the files hold a tokenizer, whether or not it is a good one.
[[nodiscard]] bool has_tokenizer(const quena::checkpoint& files);

}  // namespace cli
