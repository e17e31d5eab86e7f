#!/bin/sh
# SPDX-License-Identifier: MIT
# Makes sure that what quena's builds need is installed.   sh cmake/packages.sh run|test
# Each line of the lists: how to see that it is there (a command, or a header in angle brackets), and Debian's package for it.
# Missing ones are installed where apt and the right to use it exist; otherwise they are named. Exit status 1: something of the
# `run` list is missing. What only the wider tests need (cross compilers, emulators) may be missing: those tests are skipped.
set -eu

needed='
g++ g++
cmake cmake
ninja ninja-build
<xsimd/xsimd.hpp> libxsimd-dev
<Eigen/Core> libeigen3-dev
<nlohmann/json.hpp> nlohmann-json3-dev
<CLI/CLI.hpp> libcli11-dev
'
needed_for_tests='
<doctest/doctest.h> doctest-dev
python3 python3
pkg-config pkg-config
make make
'
wider_tests='
ccache ccache
clang++ clang
import:numpy python3-numpy
clang++:-fopenmp libomp-dev
clang++:-fsanitize=fuzzer libclang-rt-dev
qemu-x86_64 qemu-user
aarch64-linux-gnu-g++ g++-aarch64-linux-gnu
x86_64-w64-mingw32-g++-posix g++-mingw-w64-x86-64-posix
'

# Whether a probe succeeds: <header>, import:module of the system's Python, compiler:flag, or a command.
there() {
  case $1 in
    '<'*) printf '#include %s\n' "$1" | g++ -std=c++20 -I/usr/include/eigen3 -fsyntax-only -x c++ - 2>/dev/null ;;
    import:*) /usr/bin/python3 -c "import ${1#import:}" 2>/dev/null ;;
    *:*) printf 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }\nint f() { return 0; }\n%s\n' \
           "$(case $1 in *fuzzer*) ;; *) echo 'int main() {}' ;; esac)" | "${1%%:*}" "${1#*:}" -x c++ -o /dev/null - 2>/dev/null ;;
    *) command -v "$1" >/dev/null 2>&1 ;;
  esac
}

missing() {
  printf '%s\n' "$1" | while read -r probe package; do
    [ -z "$probe" ] || there "$probe" || printf ' %s' "$package"
  done
}

must=$needed
may=
if [ "${1:-run}" = test ]; then
  must="$needed$needed_for_tests"
  may=$wider_tests
fi

# The compiler comes first: without it no header can be looked for.
lacking="$(missing "$must")$(missing "$may")"
[ -n "$lacking" ] || exit 0

if command -v apt-get >/dev/null 2>&1 && { [ "$(id -u)" = 0 ] || command -v sudo >/dev/null 2>&1; }; then
  as_root=
  [ "$(id -u)" = 0 ] || as_root=sudo
  echo "installing:$lacking"
  $as_root apt-get update -q >/dev/null || true
  # shellcheck disable=SC2086  # words on purpose
  if ! $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $lacking >/dev/null; then
    # One package that this release does not have must not keep the others away.
    for package in $lacking; do
      $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$package" >/dev/null ||
        echo "could not install $package" >&2
    done
  fi
fi

lacking=$(missing "$may")
[ -z "$lacking" ] || echo "Not installed, so some tests are skipped:$lacking" >&2
lacking=$(missing "$must")
[ -n "$lacking" ] || exit 0
echo "These packages (Debian's names) are needed and missing:$lacking" >&2
echo "Install them and run this again. On Debian or Ubuntu: sudo apt-get install$lacking" >&2
exit 1
