// SPDX-License-Identifier: MIT
// main() of the two-unit program:   program baseline|wide MODEL
#include <cstdio>
#include <cstring>
#include <string>

std::string run_baseline(const char* model);
std::string run_wide(const char* model);

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string out = std::strcmp(argv[1], "wide") == 0 ? run_wide(argv[2]) : run_baseline(argv[2]);
  std::puts(out.c_str());
}
