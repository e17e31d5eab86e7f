// SPDX-License-Identifier: MIT
#include <quena/model/gguf_export.hpp>

#include <quena/backend/cpu/cpu.hpp>
#include <quena/model/session.hpp>

#include <cmath>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "../support.hpp"

using namespace quena;

namespace {

std::vector<std::byte> exported(const checkpoint& files, dtype type) {
  std::vector<std::byte> out;
  write_gguf(gguf_source_of(files), {type}, [&](std::span<const std::byte> b) { out.insert(out.end(), b.begin(), b.end()); });
  return out;
}

std::vector<float> logits(const checkpoint& files, std::span<const token_id> ids) {
  const llama<cpu> model(files, cpu(cpu_options{.threads = 1}));
  session<cpu> s(model, {.max_positions = 256});
  const auto last = s.feed(ids);
  return {last.begin(), last.end()};
}

}  // namespace

TEST_CASE("gguf export: a Hugging Face folder and the file made of it are one model") {
  QUENA_NEEDS_FIXTURES(fixtures);
  for (const char* name : {"psalter-1m", "models/k256-bf16", "models/t31-gqa4-bf16", "models/linear-rope-f32", "models/bias-sharded-f32"}) {
    const std::string path = fixtures + "/" + name;
    CAPTURE(name);
    const checkpoint folder = checkpoint::open(path);
    const llama_config want = read_config(folder);
    const std::vector<std::byte> bytes = exported(folder, want.dtype == "bfloat16" ? dtype::bf16 : dtype::f32);
    const checkpoint file = checkpoint::from_memory(bytes);
    const llama_config got = read_config(file);
    CHECK(got.hidden_size == want.hidden_size);
    CHECK(got.head_dim == want.head_dim);
    CHECK(got.n_kv_heads == want.n_kv_heads);
    CHECK(got.vocab_size == want.vocab_size);
    CHECK(got.tie_word_embeddings == want.tie_word_embeddings);
    CHECK(got.rms_norm_eps == want.rms_norm_eps);
    check_tensors(file, got);
    const std::vector<double> f = inv_freq(want.rope, want.head_dim), g = inv_freq(got.rope, got.head_dim);
    for (std::size_t i = 0; i < f.size(); ++i) CHECK(g[i] == doctest::Approx(f[i]).epsilon(1e-6));

    const tokenizer a = tokenizer::open(folder), b = tokenizer::open(file);
    for (const char* text : {"The LORD is my shepherd; I shall not want.", "x != y  and\n\n a.b == c 12345 \xC3\xA9\xE2\x82\xAC\xF0\x9F\x99\x82"}) CHECK(a.encode(text) == b.encode(text));
    CHECK(a.bos_id() == b.bos_id());
    CHECK(read_chat_template(folder) == read_chat_template(file));

    std::vector<token_id> ids;
    for (std::size_t i = 0; i < 20; ++i) ids.push_back(static_cast<token_id>(i * 7 % want.vocab_size));
    const std::vector<float> x = logits(folder, ids), y = logits(file, ids);
    for (std::size_t i = 0; i < x.size(); ++i) CHECK(y[i] == doctest::Approx(x[i]).epsilon(1e-4));
  }
}

TEST_CASE("gguf export: what a GGUF file cannot say is refused") {
  QUENA_NEEDS_FIXTURES(fixtures);
  CHECK(quena_test::code_of([&] { static_cast<void>(gguf_source_of(checkpoint::open(fixtures + "/models/stories260K"))); }) == errc::unsupported);
}
