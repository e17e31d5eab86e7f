// SPDX-License-Identifier: MIT
// Any bytes as a GGUF checkpoint: either a quena::error, or everything that can be asked of it stays inside the bytes.
#include <quena/model/config.hpp>
#include <quena/model/weights.hpp>

#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

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
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  attempt([&] {
    const quena::gguf_file g = quena::gguf_file::from_memory(bytes, "fuzz");
    std::size_t read = 0;
    for (const quena::gguf_value& v : g.values()) {
      if (g.find(v.key) != &v) std::abort();
      attempt([&] { read += g.get_u64(v.key) != 0; });
      attempt([&] { read += g.get_i64(v.key) != 0; });
      attempt([&] { read += g.get_f64(v.key) != 0; });
      attempt([&] { read += g.get_bool(v.key); });
      attempt([&] { read += g.get_string(v.key).size(); });
      attempt([&] {
        for (const std::string_view s : g.strings(v.key)) read += s.empty() ? 0 : static_cast<unsigned char>(s.back());
      });
      attempt([&] { read += g.f32s(v.key).size(); });
      attempt([&] { read += g.i32s(v.key).size(); });
    }
    for (const quena::gguf_tensor& t : g.tensors()) {
      if (t.data.size() != 0 && (t.data.data() < bytes.data() || t.data.data() + t.data.size() > bytes.data() + size)) std::abort();
      if (!quena::is_weight_type(t.type)) continue;
      std::vector<float> row(t.data.size() / quena::block_bytes(t.type) * quena::block_elements(t.type));
      quena::dequantize_row(t.type, t.data.data(), row.data(), row.size());
    }
  });
  attempt([&] {
    const quena::checkpoint c = quena::checkpoint::from_memory(bytes, "fuzz");
    const quena::llama_config config = quena::read_config(c);
    if (config.n_kv_heads == 0 || config.n_heads % config.n_kv_heads != 0 || config.head_dim % 2 != 0) std::abort();
    quena::check_tensors(c, config);
    quena::check_finite(c, {.every_value = true});
  });
  return 0;
}
