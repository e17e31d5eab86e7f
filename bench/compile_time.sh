#!/bin/sh
# SPDX-License-Identifier: MIT
# What including quena costs a compiler: seconds of g++ -O2 for one unit, and the ratio to a unit that includes Eigen/Core, xsimd
# and nlohmann/json (quena's own dependencies).   sh bench/compile_time.sh [compiler] [unit.cpp ...]
set -eu
cd "$(dirname "$0")/.."
cxx=${1:-g++}
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- examples/generate.cpp
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

printf '#include <Eigen/Core>\n#include <xsimd/xsimd.hpp>\n#include <nlohmann/json.hpp>\n' > "$work/yardstick.cpp"
printf '#include <quena/quena.hpp>\n' > "$work/umbrella.cpp"

# Prints the median of three compilations, in seconds of processor time.
seconds() {
  for _ in 1 2 3; do
    ( "$cxx" -std=c++20 -O2 -fopenmp -Iinclude -isystem /usr/include/eigen3 -c "$1" -o "$work/out.o"; times ) | tail -n 1
  done | awk '{ split($1, u, "m"); split($2, s, "m"); print u[1] * 60 + u[2] + s[1] * 60 + s[2] }' | sort -n | sed -n 2p
}

echo "$("$cxx" --version | head -n 1), -O2"
base=$(seconds "$work/yardstick.cpp")
echo "Eigen/Core + xsimd + nlohmann/json: $base s"
for unit in "$work/umbrella.cpp" "$@"; do
  [ -f "$unit" ] || { echo "$unit: not there"; continue; }
  s=$(seconds "$unit")
  echo "$(basename "$unit"): $s s, $(awk "BEGIN { printf \"%.2f\", $s / $base }") times that"
done
