// SPDX-License-Identifier: MIT
// Rows of weights rounded to a type of tensor files.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "../core/dtype.hpp"
#include "../core/error.hpp"
#include "../core/float16.hpp"
#include "codes.hpp"

namespace quena::inline QUENA_ABI {

/// The types that encode_row() writes.
[[nodiscard]] constexpr bool is_encodable(dtype d) noexcept { return d == dtype::f32 || d == dtype::f16 || d == dtype::bf16 || d == dtype::q8_0 || d == dtype::q4_0; }

/// n finite weights as type f32, f16, bf16, q8_0 or q4_0, each rounded to nearest (encode_block says how the scales are chosen).
/// Shapes   w: [n], n a whole number of blocks; to: [n_bytes(type, n)], any alignment
/// Errors   unsupported: another type; invalid_argument: not whole blocks.
/// Cost     one pass.
inline void encode_row(dtype type, const float* w, std::size_t n, std::byte* to) {
  if (!is_encodable(type)) fail(errc::unsupported, "quantize", {"expected f32, f16, bf16, q8_0 or q4_0, got ", dtype_name(type)});
  if (n % block_elements(type) != 0) fail(errc::invalid_argument, "quantize", {"expected a multiple of ", block_elements(type), " weights of ", dtype_name(type), ", got ", n});
  const auto put = [&](auto value) {
    std::memcpy(to, &value, sizeof value);
    to += sizeof value;
  };
  if (!is_block_type(type)) {
    for (std::size_t i = 0; i < n; ++i) {
      if (type == dtype::f32) put(w[i]);
      else if (type == dtype::f16) put(f16(w[i]));
      else put(bf16(w[i]));
    }
    return;
  }
  const code_format f = *codes_of(type);
  code_block b;
  for (std::size_t i = 0; i < n; i += 32) {
    encode_block(f, w + i, 32, 0, b);
    if (type == dtype::q8_0) {
      q8_0_block out{b.scale[0], {}};
      for (std::size_t j = 0; j < 32; ++j) out.q[j] = static_cast<std::int8_t>(b.codes[j] - 128);
      put(out);
    } else {
      q4_0_block out{b.scale[0], {}};
      for (std::size_t j = 0; j < 16; ++j) out.q[j] = static_cast<std::uint8_t>(b.codes[j] | b.codes[j + 16] << 4);
      put(out);
    }
  }
}

}  // namespace quena::inline QUENA_ABI
