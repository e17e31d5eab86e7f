// SPDX-License-Identifier: MIT
#include <quena/io/gguf.hpp>

#include "../support.hpp"

using namespace quena;

TEST_CASE("gguf: fixture") {
  QUENA_NEEDS_FIXTURES(dir);
  const gguf_file g = gguf_file::open(dir + "/gguf/stories260K/stories260K-q4_k_m.gguf");
  CHECK(g.version() == 3);
  CHECK(g.get_string("general.architecture") == "llama");
  CHECK(g.get_u64("llama.block_count") == 5);
  CHECK(g.get_f64("llama.rope.freq_base") == 10000.0);
  CHECK(g.get_bool("tokenizer.ggml.add_bos_token"));
  CHECK(g.strings("tokenizer.ggml.tokens").at(1) == "<s>");
}
