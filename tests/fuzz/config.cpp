// SPDX-License-Identifier: MIT
// Any text as JSON, as config.json, as generation_config.json and as a shard index: either a quena::error, or values in range.
#include <quena/model/config.hpp>
#include <quena/model/generation_config.hpp>
#include <quena/model/weights.hpp>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>

namespace {

template <class F>
void attempt(F&& f) {
  try {
    f();
  } catch (const quena::error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  attempt([&] {
    const quena::json value = quena::parse_json(text, "fuzz");
    if (quena::parse_json(value.dump(), "fuzz") != value) std::abort();
    const quena::llama_config c = quena::parse_config(value, "fuzz");
    if (c.n_heads == 0 || c.n_kv_heads == 0 || c.n_heads % c.n_kv_heads != 0 || c.head_dim % 2 != 0 || !(c.rms_norm_eps > 0)) std::abort();
    for (const std::uint64_t context : {std::uint64_t{0}, std::uint64_t{1} << 20})
      for (const double f : quena::inv_freq(c.rope, c.head_dim, context))
        if (!std::isfinite(f) || f < 0) std::abort();
    if (!std::isfinite(quena::rope_attention_factor(c.rope))) std::abort();
  });
  const auto bytes = std::as_bytes(std::span(data, size));
  static constexpr std::string_view config = "{\"model_type\":\"llama\"}";
  const auto config_bytes = std::as_bytes(std::span(config.data(), config.size()));
  attempt([&] {
    const quena::memory_file files[] = {{"config.json", config_bytes}, {"generation_config.json", bytes}};
    const quena::generation_defaults d = quena::read_generation_defaults(quena::checkpoint::from_memory(files, "fuzz", {.weights = false}));
    if (d.top_p && !(*d.top_p >= 0 && *d.top_p <= 1)) std::abort();
  });
  attempt([&] {
    const quena::memory_file files[] = {{"config.json", config_bytes}, {"model.safetensors.index.json", bytes}};
    (void)quena::checkpoint::from_memory(files, "fuzz");
  });
  return 0;
}
