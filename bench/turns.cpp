// SPDX-License-Identifier: MIT
// Our side of a comparison in turns (bench/peers/compare.py): loads a model once, then measures one thing for each line of standard input.
//   bench_turns MODEL [FORMAT] [THREADS]
//   prefill N   tokens per second of a prompt of N tokens       decode N   of N tokens after the first
//   read        GB/s that this machine reads now                int8, fp32 its GMAC/s now
//   info        a line of JSON about the program and the model
// Answers each line with a number; says "ready" once the model is loaded.
#include <charconv>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>

#include <quena/backend/cpu/cpu.hpp>
#include <quena/model/session.hpp>

#include "ceilings.hpp"
#include "speed.hpp"

namespace {

double measure(const std::string& what, std::size_t n, quena::session<quena::cpu>& s, const quena::llama<quena::cpu>& model) {
  const int threads = static_cast<int>(model.backend().concurrency());
  if (what == "read" || what == "int8" || what == "fp32") {
    const quena_bench::ceilings c = quena_bench::measure_ceilings(threads, 0.15);
    return (what == "read" ? c.read_gb_s : what == "int8" ? c.int8_gmac_s : c.fp32_gmac_s).median;
  }
  return what == "prefill" ? quena_bench::prefill_speed(s, n) : quena_bench::decode_speed(s, n);
}

int run(int argc, char** argv) {
  if (argc < 2) return std::cerr << "usage: bench_turns MODEL [FORMAT] [THREADS]\n", 2;
  const auto format = argc > 2 ? quena::parse_format(argv[2]) : quena::format::automatic;
  if (!format) return std::cerr << "bench_turns: no format " << argv[2] << '\n', 2;
  const std::string threads = argc > 3 ? argv[3] : "0";
  quena::cpu_options options;
  std::from_chars(threads.data(), threads.data() + threads.size(), options.threads);
  const auto start = std::chrono::steady_clock::now();
  const quena::llama<quena::cpu> model(quena::checkpoint::open(argv[1]), quena::cpu(options), {.format = *format, .context = 1024, .progress = {}});
  const double load_s = quena_bench::seconds_since(start);
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
