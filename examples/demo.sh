#!/bin/sh
# SPDX-License-Identifier: MIT
# Installs what is missing, builds the quena command, and writes a story with the small model in examples/data.
#   sh examples/demo.sh [PROMPT]
set -eu
cd "$(dirname "$0")/.."
sh cmake/packages.sh run
mkdir -p build
echo "building build/release/quena (a minute or so the first time) ..."
if ! { cmake --preset release && cmake --build --preset release --target quena_command; } >build/demo.log 2>&1; then
  tail -n 40 build/demo.log
  echo "the build failed: see build/demo.log" >&2
  exit 1
fi
prompt=${1:-Once upon a time}
printf "%s" "$prompt"
build/release/quena generate -m examples/data/stories260K -p "$prompt" -n 200 --temp 0 --stats
