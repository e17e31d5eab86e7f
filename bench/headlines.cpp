// SPDX-License-Identifier: MIT
// The claims that people know, on one machine, in one run: weights of 16, 8 and 4 bits against f32 in memory, decode and prefill; a
// fine-tuned model against the original and against its artifact; the second start against the first.
//   bench_headlines MODEL [FINE_TUNED] [--rounds N] [--prefill N] [--decode N] [--threads N]
// All models take turns, so that each sees the same moods of the machine; the figures are medians of ratios within a round.
#include <quena/load.hpp>
#include <quena/model/artifact.hpp>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ceilings.hpp"
#include "speed.hpp"

namespace {

using quena_bench::seconds_since, quena_bench::spread, quena_bench::spread_of;

struct options {
  std::string model, fine_tuned;
  std::size_t rounds = 7, prefill = 512, decode = 16, threads = 0;
};

/// A folder that goes away.
struct scratch_folder {
  std::filesystem::path path = std::filesystem::temp_directory_path() / ("quena_headlines_" + std::to_string(quena::detail::process_id()));
  scratch_folder() { std::filesystem::create_directories(path); }
  scratch_folder(const scratch_folder&) = delete;
  scratch_folder& operator=(const scratch_folder&) = delete;
  ~scratch_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

/// One model that takes its turn.
class runner {
 public:
  runner(std::string what, const std::string& path, quena::format f, const options& o)
      : name(std::move(what)),
        model_(quena::checkpoint::open(path), quena::cpu(quena::cpu_options{.threads = static_cast<int>(o.threads)}), {.format = f, .context = o.prefill + 64, .progress = {}}),
        session_(model_, {.max_positions = o.prefill + 64}) {}

  void round(const options& o) {
    decode.push_back(quena_bench::decode_speed(session_, o.decode));
    prefill.push_back(quena_bench::prefill_speed(session_, o.prefill));
  }
  [[nodiscard]] const quena::llama<quena::cpu>& model() const { return model_; }
  [[nodiscard]] double gb() const { return static_cast<double>(model_.weights().n_bytes()) * 1e-9; }

  std::string name;
  std::vector<double> decode, prefill;

 private:
  quena::llama<quena::cpu> model_;
  quena::session<quena::cpu> session_;
};

using runners = std::vector<std::unique_ptr<runner>>;

/// Medians of speeds and of their ratio to the first one's in the same round, but for round 0, which warms up.
void print_turns(const runners& all, const options& o) {
  for (std::size_t r = 0; r <= o.rounds; ++r)
    for (const auto& one : all) one->round(o);
  for (const auto& one : all) {
    const auto figure = [&](const std::vector<double>& mine, const std::vector<double>& first) {
      std::vector<double> ratios;
      for (std::size_t r = 1; r < mine.size(); ++r) ratios.push_back(mine[r] / first[r]);
      const spread ratio = spread_of(ratios);
      std::printf("%9.1f tokens/s %6.2f x (%.2f to %.2f)", spread_of({mine.begin() + 1, mine.end()}).median, ratio.median, ratio.lowest, ratio.highest);
    };
    std::printf("%-14s%8.3f GB %6.3f x   decode", one->name.c_str(), one->gb(), one->gb() / all.front()->gb());
    figure(one->decode, all.front()->decode);
    std::printf("   prefill");
    figure(one->prefill, all.front()->prefill);
    std::printf("\n");
  }
}

/// Starts from nothing: from a path to a model that can run, and to the first token.
void print_starts(const options& o, const std::string& cache_dir) {
  std::vector<double> loads, tokens;
  for (std::size_t r = 0; r < 4; ++r) {
    const auto start = std::chrono::steady_clock::now();
    const auto llm = quena::load(o.model, {.format = quena::format::int4, .threads = static_cast<int>(o.threads), .cache_dir = cache_dir, .progress = {}, .log = {}});
    loads.push_back(seconds_since(start));
    quena::session<quena::cpu> s(llm.model, {.max_positions = 64});
    static_cast<void>(s.feed(quena_bench::some_tokens(1, llm.model.config().vocab_size)));
    tokens.push_back(seconds_since(start));
  }
  const spread second = spread_of({loads.begin() + 1, loads.end()}), token = spread_of({tokens.begin() + 1, tokens.end()});
  std::printf("first start   %8.2f s, first token after %.2f s (writes the artifact)\n", loads[0], tokens[0]);
  std::printf("next starts   %8.2f s (%.2f to %.2f), first token after %.2f s: %.1f x as fast\n", second.median, second.lowest, second.highest, token.median, loads[0] / second.median);
}

void print_headlines(const options& o) {
  std::printf("%s\n", quena_bench::facts_line(static_cast<int>(o.threads)).c_str());
  const scratch_folder folder;
  const std::string artifact = (folder.path / "artifact.quena").string();
  {
    std::printf("\nFormats, against f32: %zu tokens of prompt, %zu of answer, medians of %zu rounds (lowest to highest)\n", o.prefill, o.decode, o.rounds);
    runners all;
    for (const quena::format f : {quena::format::f32, quena::format::bf16, quena::format::int8, quena::format::int4})
      all.push_back(std::make_unique<runner>(std::string(quena::format_name(f)), o.model, f, o));
    print_turns(all, o);
    quena::output_file out(artifact);
    quena::write_artifact(quena::checkpoint::open(o.model), all.back()->model(), [&](std::span<const std::byte> bytes) { out.write(bytes); });
    out.finish();
  }
  {
    std::printf("\nAny weights of an architecture, in int4, against the original\n");
    runners all;
    all.push_back(std::make_unique<runner>("original", o.model, quena::format::int4, o));
    if (!o.fine_tuned.empty()) all.push_back(std::make_unique<runner>("fine-tuned", o.fine_tuned, quena::format::int4, o));
    all.push_back(std::make_unique<runner>("artifact", artifact, quena::format::automatic, o));
    print_turns(all, o);
  }
  std::printf("\nStarts, in int4, with a cache folder\n");
  print_starts(o, (folder.path / "cache").string());
}

options parse(int argc, char** argv) {
  options o;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto number = [&](std::size_t& to) {
      const char* text = ++i < argc ? argv[i] : "";
      if (std::from_chars(text, text + std::strlen(text), to).ptr != text + std::strlen(text) || *text == 0) quena::fail(quena::errc::invalid_argument, word, "expected a number");
    };
    if (word == "--rounds") number(o.rounds);
    else if (word == "--prefill") number(o.prefill);
    else if (word == "--decode") number(o.decode);
    else if (word == "--threads") number(o.threads);
    else if (o.model.empty()) o.model = word;
    else if (o.fine_tuned.empty()) o.fine_tuned = word;
    else quena::fail(quena::errc::invalid_argument, "bench_headlines", {"unexpected ", word});
  }
  if (o.threads == 0) o.threads = (std::max)(std::thread::hardware_concurrency(), 1u);
  if (o.model.empty() || o.rounds == 0 || o.prefill == 0 || o.decode == 0 || o.decode > o.prefill)
    quena::fail(quena::errc::invalid_argument, "bench_headlines", "usage: bench_headlines MODEL [FINE_TUNED] [--rounds N] [--prefill N] [--decode N] [--threads N]");
  return o;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    print_headlines(parse(argc, argv));
  } catch (const std::exception& e) {
    return std::fprintf(stderr, "bench_headlines: %s\n", e.what()), 1;
  }
}
