#!/bin/sh
# SPDX-License-Identifier: MIT
# Installs what is missing, builds and runs all tests, the quick ones first.
#   sh tests/run.sh            everything (about half an hour on two cores)
#   sh tests/run.sh --quick    the unit tests in one build
#   sh tests/run.sh NAME...    these stages only (see the end of this file)
#   --within=SECONDS           begins no stage after so much time: a slow machine skips what comes late, and says so
# Each stage's output goes to build/log/NAME.log and is shown if it fails. The last line counts stages: 'N passed, N failed'.
set -u
cd "$(dirname "$0")/.."
export CTEST_OUTPUT_ON_FAILURE=1
export CCACHE_BASEDIR="$PWD"
export CCACHE_NOHASHDIR=1
jobs=$(nproc 2>/dev/null || echo 2)
log=build/log
passed=0 failed=0 skipped=0 within=
began=$(date +%s)
mkdir -p "$log"

# stage NAME COMMAND...: runs it unless only others were asked for; counts how it went.
stage() {
  stage_name=$1
  shift
  case " $chosen " in
    "  " | *" $stage_name "*) ;;
    *) return 0 ;;
  esac
  stage_start=$(date +%s)
  if [ -n "$within" ] && [ $((stage_start - began)) -gt "$within" ]; then
    skipped=$((skipped + 1))
    printf '%-7s %-18s %d s are over\n' skipped "$stage_name" "$within"
    return 0
  fi
  if "$@" >"$log/$stage_name.log" 2>&1; then
    passed=$((passed + 1)) word=ok
  else
    failed=$((failed + 1)) word=FAILED
    grep -avE '^\[[0-9]+/[0-9]+\] (Building|Linking)|^ninja: |^-- ' "$log/$stage_name.log" | tail -n 60
  fi
  detail=$(grep -ahE 'test cases: |tests passed' "$log/$stage_name.log" | tail -n 1 | sed 's/^\[doctest\] //; s/  */ /g')
  printf '%-7s %-18s %4d s  %s\n' "$word" "$stage_name" $(($(date +%s) - stage_start)) "$detail"
}

# have COMMAND NAME...: whether a command is there; if not, the stages NAME are skipped.
have() {
  command -v "$1" >/dev/null 2>&1 && return 0
  missing_command=$1
  shift
  for name in "$@"; do
    case " $chosen " in
      "  " | *" $name "*)
        skipped=$((skipped + 1))
        printf '%-7s %-18s no %s\n' skipped "$name" "$missing_command"
        ;;
    esac
  done
  return 1
}

build() { # PRESET: configures and builds, going on after an error so that the log shows them all
  cmake --preset "$1" && cmake --build --preset "$1" -j "$jobs" -- -k 0
}
build_and_test() { # PRESET [CTEST OPTIONS]
  preset=$1
  shift
  build "$preset" && ctest --preset "$preset" --no-tests=error "$@"
}
each_header_alone() { cmake --build --preset dev -j "$jobs" --target all_verify_interface_header_sets -- -k 0; }
unit_tests="build/dev/tests/quena_tests --test-case-exclude=*[slow]*"
with_isa() { # ISA: the kernels may use no more than this
  # shellcheck disable=SC2086
  QUENA_ISA=$1 $unit_tests
}
emulated() { # CPU [OPTIONS OF THE TESTS]
  cpu=$1
  shift
  # shellcheck disable=SC2086
  qemu-x86_64 -cpu "$cpu" $unit_tests "$@"
}

# Reference data that is not part of the repository, where it lies beside it.
conformance=${QUENA_FIXTURES:-../shared/fixtures}/../tools/conformance.py
conforms() {
  /usr/bin/python3 "$conformance" build/release/quena "${QUENA_FIXTURES:-../shared/fixtures}" \
    --only logits,greedy,gguf,template,config,malformed,determinism,lora  # tokenizer needs a download
}

chosen=
quick=no
for word in "$@"; do
  case $word in
    --quick) quick=yes ;;
    --within=*[!0-9]* | --within=) sed -n '3,8s/^# //p' "$0"; exit 2 ;;
    --within=*) within=${word#*=} ;;
    -*) sed -n '3,8s/^# //p' "$0"; exit 2 ;;
    *) chosen="$chosen $word" ;;
  esac
done
chosen=${chosen# }

if ! sh cmake/packages.sh test; then
  echo "0 passed, 1 failed"
  exit 1
fi

stage dev build_and_test dev -L fast
if [ "$quick" = no ]; then
  stage slow ctest --preset dev -L slow
  if [ "$(uname -m)" = x86_64 ]; then for isa in portable avx2 avx512; do stage "isa-$isa" with_isa "$isa"; done; fi
  have g++ release && stage release build release
  if [ -f "$conformance" ] && /usr/bin/python3 -c 'import numpy' 2>/dev/null; then stage conformance conforms; fi
  stage headers each_header_alone
  stage meta ctest --preset dev -L meta -j "$jobs"
  have clang++ clang && stage clang build_and_test clang -L 'fast|slow'
  if [ "$(uname -m)" = x86_64 ]; then
    have qemu-x86_64 nehalem-kernels nehalem haswell && {
      [ -n "$chosen" ] && stage nehalem-kernels emulated Nehalem '--source-file=*tests/backend/*,*tests/core/*,*tests/quant/*'  # a part of the next
      stage nehalem emulated Nehalem
      stage haswell emulated Haswell
    }
  fi
  stage asan build_and_test asan -L fast
  stage asan-slow ctest --preset asan -L slow
  stage tsan build_and_test tsan -L fast
  have aarch64-linux-gnu-g++ aarch64 && have qemu-aarch64 aarch64 && stage aarch64 build_and_test aarch64 -L fast
  have x86_64-w64-mingw32-g++-posix mingw && stage mingw build mingw
  have clang++ fuzz && stage fuzz build_and_test fuzz -L fuzz -j "$jobs"
fi

[ "$skipped" = 0 ] && echo "$passed passed, $failed failed" || echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ] && [ "$passed" != 0 ]
