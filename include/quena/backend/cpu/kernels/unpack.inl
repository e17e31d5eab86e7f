// SPDX-License-Identifier: MIT
// Codes of 4, 5 or 6 bits as bytes. Written with the compilers' vector types, which do this well for every instruction set.

/// `from`: units as in code_layout.hpp.   to: [n_units * 8 steps][32][4]
inline void unpack_codes(unsigned bits, const std::byte* from, std::size_t n_units, std::size_t ahead, std::uint8_t* to) noexcept {
  using words = std::uint16_t __attribute__((vector_size(4 * lanes)));  // one register: two codes in each element
  constexpr std::size_t step_bytes = 4 * panel_rows;
  for (std::size_t unit = 0; unit < n_units; ++unit, from += unit_bytes(bits), to += 8 * step_bytes)
    for (std::size_t i = 0; i < 4; ++i)
      for (std::size_t part = 0; part < step_bytes; part += sizeof(words)) {
        const std::byte* const high = from + 4 * step_bytes + part;
        words pairs, bits_of_low, bits_of_top;
        __builtin_memcpy(&pairs, from + i * step_bytes + part, sizeof pairs);
        __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(from) + ahead + i * step_bytes + part));
        words low = pairs & 0x0f0f, top = pairs >> 4 & 0x0f0f;
        if (bits == 5) {
          __builtin_memcpy(&bits_of_low, high, sizeof bits_of_low);
          low |= (bits_of_low >> static_cast<int>(i) & 0x0101) << 4;
          top |= (bits_of_low >> static_cast<int>(i + 4) & 0x0101) << 4;
        } else if (bits == 6) {
          __builtin_memcpy(&bits_of_low, high, sizeof bits_of_low);
          __builtin_memcpy(&bits_of_top, high + step_bytes, sizeof bits_of_top);
          low |= (bits_of_low >> static_cast<int>(2 * i) & 0x0303) << 4;
          top |= (bits_of_top >> static_cast<int>(2 * i) & 0x0303) << 4;
        }
        __builtin_memcpy(to + i * step_bytes + part, &low, sizeof low);
        __builtin_memcpy(to + (i + 4) * step_bytes + part, &top, sizeof top);
      }
}
