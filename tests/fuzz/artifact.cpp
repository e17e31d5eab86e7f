// SPDX-License-Identifier: MIT
// Artifacts. The first byte says what the rest is: the whole file; or the manifest of a tiny model, with hashes that are right, since
// no fuzzer guesses those. A model that opens must answer.
#include <quena/backend/cpu/cpu.hpp>
#include <quena/model/artifact.hpp>
#include <quena/model/session.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "../synthetic_model.hpp"

namespace {

using bytes = std::vector<std::byte>;

bytes tiny() {
  const quena_test::synthetic_model source({.hidden_size = 32, .intermediate_size = 32, .n_layers = 1, .n_heads = 2, .n_kv_heads = 1, .vocab_size = 64, .biases = true, .rope_scaling = "null"});
  const quena::checkpoint files = source.open();
  bytes out;
  quena::write_artifact(files, quena::llama<quena::cpu>(files, quena::cpu({.threads = 1}), {.format = quena::format::int4}),
                        [&](std::span<const std::byte> b) { out.insert(out.end(), b.begin(), b.end()); });
  return out;
}

bytes with_manifest(std::span<const std::byte> manifest) {
  static const bytes original = tiny();
  static const quena::safetensors_file file = quena::safetensors_file::from_memory(original);
  quena::artifact_writer writer;
  for (const quena::safetensors_tensor& t : file.tensors())
    if (t.name == "manifest.json") writer.add(t.name, manifest);
    else if (!t.name.starts_with("padding/")) writer.add(t.name, t.type, t.shape, t.data, !t.name.starts_with("packed/"));
  bytes out;
  writer.write([&](std::span<const std::byte> b) { out.insert(out.end(), b.begin(), b.end()); });
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::span<const std::byte> rest(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
  try {
    const bytes file = data[0] == '{' ? with_manifest({reinterpret_cast<const std::byte*>(data), size}) : bytes(rest.begin(), rest.end());
    const quena::llama<quena::cpu> model(quena::checkpoint::from_memory(std::span<const std::byte>(file)), quena::cpu({.threads = 1}));
    quena::session<quena::cpu> s(model, {.max_positions = 4});
    (void)s.feed(std::vector<quena::token_id>{1, 2});
  } catch (const quena::error&) {
  }
  return 0;
}
