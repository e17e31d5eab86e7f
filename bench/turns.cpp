// SPDX-License-Identifier: MIT
// Our side of a comparison in turns (bench/peers/compare.sh): loads a model once, then measures one thing for each line of standard input.
//   bench_turns MODEL [FORMAT] [THREADS]
//   prefill N   tokens per second of a prompt of N tokens       decode N   of N tokens after the first
//   read        GB/s that this machine reads now                int8, fp32 its GMAC/s now
//   info        a line of JSON about the program and the model
// Answers each line with a number; says "ready" once the model is loaded.
#include <charconv>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include <quena/backend/cpu/cpu.hpp>
#include <quena/model/session.hpp>

#include "ceilings.hpp"

namespace {

using clock_type = std::chrono::steady_clock;

double seconds_since(clock_type::time_point start) { return std::chrono::duration<double>(clock_type::now() - start).count(); }

/// The same ids as the peer's script uses.
std::vector<quena::token_id> some_tokens(std::size_t n, std::size_t vocab_size) {
  std::vector<quena::token_id> ids(n);
  for (std::size_t i = 0; i < n; ++i) ids[i] = static_cast<quena::token_id>((1000 + i * 37) % (vocab_size * 15 / 16));
  return ids;
}

double measure(const std::string& what, std::size_t n, quena::session<quena::cpu>& s, const quena::llama<quena::cpu>& model) {
  const int threads = static_cast<int>(model.backend().concurrency());
  if (what == "read" || what == "int8" || what == "fp32") {
    const quena_bench::ceilings c = quena_bench::measure_ceilings(threads, 0.15);
    return (what == "read" ? c.read_gb_s : what == "int8" ? c.int8_gmac_s : c.fp32_gmac_s).median;
  }
  const std::size_t vocab_size = model.config().vocab_size;
  s.rewind(0);
  auto start = clock_type::now();
  static_cast<void>(s.feed(some_tokens(what == "prefill" ? n : 1, vocab_size)));
  if (what == "prefill") return static_cast<double>(n) / seconds_since(start);
  const std::vector<quena::token_id> ids = some_tokens(n, vocab_size);
  start = clock_type::now();
  for (const quena::token_id& id : ids) static_cast<void>(s.feed(std::span(&id, 1)));
  return static_cast<double>(n) / seconds_since(start);
}

int run(int argc, char** argv) {
  if (argc < 2) return std::cerr << "usage: bench_turns MODEL [FORMAT] [THREADS]\n", 2;
  const auto format = argc > 2 ? quena::parse_format(argv[2]) : quena::format::automatic;
  if (!format) return std::cerr << "bench_turns: no format " << argv[2] << '\n', 2;
  const std::string threads = argc > 3 ? argv[3] : "0";
  quena::cpu_options options;
  std::from_chars(threads.data(), threads.data() + threads.size(), options.threads);
  const auto start = clock_type::now();
  const quena::llama<quena::cpu> model(quena::checkpoint::open(argv[1]), quena::cpu(options), {.format = *format, .context = 1024, .progress = {}});
  const double load_s = seconds_since(start);
  quena::session<quena::cpu> s(model, {.max_positions = 1024});
  std::cout << "ready" << std::endl;
  for (std::string line, what; std::getline(std::cin, line);) {
    std::size_t n = 0;
    std::istringstream(line) >> what >> n;
    if (what == "info")
      std::cout << "{\"machine\": \"" << quena_bench::facts_line(static_cast<int>(model.backend().concurrency())) << "\", \"load_s\": " << load_s
                << ", \"decode_bytes\": " << model.weights().decode_bytes() << "}" << std::endl;
    else
      std::cout << measure(what, n, s, model) << std::endl;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const quena::error& e) {
    return std::cerr << "bench_turns: " << e.what() << '\n', 1;
  }
}
