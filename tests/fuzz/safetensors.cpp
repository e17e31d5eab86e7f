// SPDX-License-Identifier: MIT
// Any bytes as a safetensors file: either a quena::error, or tensors that lie inside the bytes and cover them.
#include <quena/io/safetensors.hpp>

#include <cstdint>
#include <cstdlib>
#include <span>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  try {
    const quena::safetensors_file f = quena::safetensors_file::from_memory(bytes, "fuzz");
    std::size_t total = 0;
    for (const quena::safetensors_tensor& t : f.tensors()) {
      if (t.data.size() != 0 && (t.data.data() < bytes.data() || t.data.data() + t.data.size() > bytes.data() + size)) std::abort();
      std::size_t n = 1;
      for (const std::size_t d : t.shape) n *= d;
      if (quena::n_bytes(t.type, n) != t.data.size() || f.find(t.name) != &t) std::abort();
      total += t.data.size();
    }
    if (total > size) std::abort();
  } catch (const quena::error&) {
  }
  return 0;
}
