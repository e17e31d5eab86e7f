// SPDX-License-Identifier: MIT
// Prints what this machine can do at best, one thread and all threads.   bench_ceilings [--json] [--threads N] [--seconds S]
#include "ceilings.hpp"

#include <cstdio>
#include <cstdlib>
#include <set>
#include <string_view>

namespace {

void print_row(const char* what, std::string_view how, int n_threads, const quena_bench::figure& f, const char* unit) {
  std::printf("%-12s %-36.*s %7d %10.1f %10.1f %10.1f  %s\n", what, static_cast<int>(how.size()), how.data(), n_threads, f.median,
              f.lowest, f.highest, unit);
}

void print_json(const char* name, const quena_bench::figure& f, const char* end) {
  std::printf("\"%s\": {\"median\": %.3f, \"lowest\": %.3f, \"highest\": %.3f}%s", name, f.median, f.lowest, f.highest, end);
}

}  // namespace

int main(int argc, char** argv) {
  bool as_json = false;
  int n_threads = static_cast<int>(std::thread::hardware_concurrency());
  double seconds = 1.0;
  for (int i = 1; i < argc; ++i) {
    const std::string_view option = argv[i];
    if (option == "--json") as_json = true;
    else if (option == "--threads" && i + 1 < argc) n_threads = std::atoi(argv[++i]);
    else if (option == "--seconds" && i + 1 < argc) seconds = std::atof(argv[++i]);
    else return std::fprintf(stderr, "usage: bench_ceilings [--json] [--threads N] [--seconds S]\n"), 2;
  }
  if (n_threads < 1) n_threads = 1;

  if (as_json) {
    const quena_bench::ceilings c = quena_bench::measure_ceilings(n_threads, seconds);
    std::printf("{\"machine\": \"%s\", \"threads\": %d, ", quena_bench::facts_line(n_threads).c_str(), c.n_threads);
    print_json("read_gb_s", c.read_gb_s, ", ");
    print_json("fp32_gmac_s", c.fp32_gmac_s, ", ");
    print_json("int8_gmac_s", c.int8_gmac_s, "}\n");
    return 0;
  }
  std::printf("%s\n", quena_bench::facts_line(n_threads).c_str());
  std::printf("%-12s %-36s %7s %10s %10s %10s\n", "ceiling", "with", "threads", "median", "lowest", "highest");
  for (const int n : std::set<int>{1, n_threads}) {
    const quena_bench::ceilings c = quena_bench::measure_ceilings(n, seconds);
    print_row("memory read", c.read_instruction, n, c.read_gb_s, "GB/s");
    print_row("fp32", c.fp32_instruction, n, c.fp32_gmac_s, "GMAC/s");
    print_row("int8", c.int8_instruction, n, c.int8_gmac_s, "GMAC/s");
  }
}
