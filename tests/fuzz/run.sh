#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs one fuzzer from its seeds.   sh tests/fuzz/run.sh PATH/fuzz_NAME [SECONDS]
# Seeds: tests/fuzz/seeds/NAME/*, what tests/data and the fixtures ($QUENA_FIXTURES) have of the kind, and what earlier runs in
# this build folder found (PROGRAM.corpus). A finding is left beside the program and makes the exit status non-zero.
set -eu
program=$1
seconds=${2:-10}
root=$(cd "$(dirname "$0")/../.." && pwd)
name=$(basename "$program")
name=${name#fuzz_}
fixtures=${QUENA_FIXTURES:-$root/../shared/fixtures}
corpus=$program.corpus
seeds=$program.seeds
mkdir -p "$corpus"
rm -rf "$seeds"
mkdir -p "$seeds"

# Copies files of at most 64 KiB whose names match, each under a name of its own. Large seeds only make a fuzzer slow.
n=0
gather() {
  for folder in "$root/tests/data" "$root/examples/data" "$fixtures"; do
    [ -d "$folder" ] || continue
    find "$folder" -type f -name "$1" -size -65k >"$seeds.list"
    while read -r file; do
      n=$((n + 1))
      cp "$file" "$seeds/$n" && chmod u+w "$seeds/$n"
    done <"$seeds.list"
    rm -f "$seeds.list"
  done
}
case $name in
  *safetensors*) gather '*.safetensors' ;;
  *gguf*) gather '*.gguf' ;;
  *template*|*jinja*) gather '*.jinja'; gather '*template*.txt' ;;
  *tokenizer*) gather 'tokenizer.json' ;;
  *config*|*json*) gather 'config.json'; gather 'generation_config.json' ;;
esac
own=$root/tests/fuzz/seeds/$name
[ -d "$own" ] || own=$seeds

exec "$program" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -malloc_limit_mb=1024 -print_final_stats=1 -verbosity=0 \
  -artifact_prefix="$program." "$corpus" "$seeds" "$own"
