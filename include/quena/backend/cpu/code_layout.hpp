// SPDX-License-Identifier: MIT
// How integer weights lie in memory on the CPU, for every instruction set.
//
// A panel of 32 output rows is cut into blocks of 256 columns (the last one shorter, filled up with zero weights to a multiple of 32), and
// each block is one piece of memory, so that a product reads one contiguous stream:
//
//   scales   as quant/codes.hpp's scale_kind says, each [groups][32 rows] (d and dmin: [32])
//   codes    units of 32 columns, which are 8 steps of 4 columns:
//     8 bits  [8 steps][32 rows][4]
//     4 bits  [4][32 rows][4]: byte i of the first dimension holds step i in its low and step i + 4 in its high half
//     5 bits  as 4 bits, then [32 rows][4] bytes of fifth bits: bit s is that of step s
//     6 bits  as 4 bits, then [2][32 rows][4] bytes of upper bit pairs: pair i of byte h is that of step 4 h + i
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "../../quant/codes.hpp"
#include "kernel_table.hpp"

namespace quena::inline QUENA_ABI {
namespace detail {

/// Bytes of 32 columns of a panel.
constexpr std::size_t unit_bytes(unsigned bits) noexcept { return panel_rows * 4 * bits; }
/// Bytes of the scales of a block with so many groups.
constexpr std::size_t scale_bytes(const code_format& f, std::size_t n_groups) noexcept {
  switch (f.scales) {
    case scale_kind::scale: return n_groups * panel_rows * 2;
    case scale_kind::scale_zero: return n_groups * panel_rows * 3;
    case scale_kind::scale_min: return n_groups * panel_rows * 4;
    case scale_kind::sub_scale: return panel_rows * (2 + n_groups);
    case scale_kind::sub_scale_min: return panel_rows * (4 + 2 * n_groups);
  }
  return 0;
}
/// Bytes of a block of `cols` <= 256 columns.
constexpr std::size_t code_block_bytes(const code_format& f, std::size_t cols) noexcept {
  const std::size_t units = (cols + 31) / 32;
  return scale_bytes(f, (32 * units + f.group - 1) / f.group) + units * unit_bytes(f.bits);
}
constexpr std::size_t code_panel_bytes(const code_format& f, std::size_t cols) noexcept {
  const std::size_t tail = cols % code_block_cols;
  return cols / code_block_cols * code_block_bytes(f, code_block_cols) + (tail == 0 ? 0 : code_block_bytes(f, tail));
}

/// The arguments of a product whose rounded activations lie at `rounded`, [n_rows * code_row_bytes(cols)].
inline code_args rounded_args(const matmul_args& product, const code_format& f, std::size_t panel_bytes, std::byte* rounded) noexcept {
  code_args args{product, f, panel_bytes, reinterpret_cast<std::int32_t*>(rounded), nullptr, nullptr};
  args.x_starts = args.x_codes + product.n_rows * args.n_steps();
  args.x_scales = reinterpret_cast<float*>(args.x_starts + product.n_rows * args.n_groups());
  return args;
}

/// Where the four codes of step s of a row are, in bytes: of 8 bits in a unit, or of the lower halves (s < 4) or the upper (s - 4).
constexpr std::size_t step_at(std::size_t step, std::size_t lane) noexcept { return (step * panel_rows + lane) * 4; }
/// Where a row's upper bits are; of 6 bits, those of steps 4 to 7 are at step_at(5, lane).
constexpr std::size_t upper_at(std::size_t lane) noexcept { return step_at(4, lane); }

/// Puts one row's block into its place of a panel's block.   to: [code_block_bytes(f, cols)], zero where nothing was put
inline void put_codes(const code_format& f, const code_block& b, std::size_t cols, std::size_t lane, std::byte* to) noexcept {
  const std::size_t units = (cols + 31) / 32, n_groups = (32 * units + f.group - 1) / f.group, used = (cols + f.group - 1) / f.group;
  const auto half = [&](std::size_t index, f16 value) { std::memcpy(to + 2 * index, &value, 2); };
  const auto byte = [&](std::size_t at, std::uint8_t value) { to[at] = static_cast<std::byte>(value); };
  const bool sub = f.scales == scale_kind::sub_scale || f.scales == scale_kind::sub_scale_min;
  if (sub) half(lane, b.d);
  if (f.scales == scale_kind::sub_scale_min) half(panel_rows + lane, b.dmin);
  for (std::size_t g = 0; g < used; ++g) {
    const std::size_t at = g * panel_rows + lane;
    if (!sub) half(at, b.scale[g]);
    switch (f.scales) {
      case scale_kind::scale: break;
      case scale_kind::scale_zero: byte(2 * n_groups * panel_rows + at, b.zero[g]); break;
      case scale_kind::scale_min: half(n_groups * panel_rows + at, b.minimum[g]); break;
      case scale_kind::sub_scale: byte(2 * panel_rows + at, b.sub_scale[g]); break;
      case scale_kind::sub_scale_min:
        byte(4 * panel_rows + at, b.sub_scale[g]);
        byte((4 + n_groups) * panel_rows + at, b.sub_minimum[g]);
        break;
    }
  }
  std::byte* unit = to + scale_bytes(f, n_groups);
  std::uint8_t codes[code_block_cols];
  std::memcpy(codes, b.codes, cols);
  std::memset(codes + cols, f.offset, 32 * units - cols);
  const auto put = [&](std::size_t at, std::uint32_t four) { std::memcpy(unit + at, &four, 4); };
  for (const std::uint8_t *c = codes, *end = codes + 32 * units; c != end; c += 32, unit += unit_bytes(f.bits)) {
    std::uint32_t four[8];
    std::memcpy(four, c, sizeof four);
    if (f.bits == 8) {
      for (std::size_t s = 0; s < 8; ++s) put(step_at(s, lane), four[s]);
      continue;
    }
    for (std::size_t s = 0; s < 4; ++s) put(step_at(s, lane), (four[s] & 0x0f0f0f0fu) | (four[s + 4] & 0x0f0f0f0fu) << 4);
    std::uint32_t upper[2] = {};
    for (std::size_t s = 0; s < 8; ++s) {
      if (f.bits == 5) upper[0] |= (four[s] >> 4 & 0x01010101u) << s;
      if (f.bits == 6) upper[s / 4] |= (four[s] >> 4 & 0x03030303u) << (2 * (s % 4));
    }
    if (f.bits >= 5) put(upper_at(lane), upper[0]);
    if (f.bits == 6) put(step_at(5, lane), upper[1]);
  }
}

/// The inverse of put_codes.
inline void get_codes(const code_format& f, const std::byte* from, std::size_t cols, std::size_t lane, code_block& b) noexcept {
  const std::size_t units = (cols + 31) / 32, n_groups = (32 * units + f.group - 1) / f.group;
  const auto half = [&](std::size_t index) {
    f16 value;
    std::memcpy(&value, from + 2 * index, 2);
    return value;
  };
  const auto byte = [&](std::size_t at) { return static_cast<std::uint8_t>(from[at]); };
  b.d = half(lane), b.dmin = half(panel_rows + lane);
  for (std::size_t g = 0; g < n_groups; ++g) {
    const std::size_t at = g * panel_rows + lane;
    switch (f.scales) {
      case scale_kind::scale: b.scale[g] = half(at); break;
      case scale_kind::scale_zero: b.scale[g] = half(at), b.zero[g] = byte(2 * n_groups * panel_rows + at); break;
      case scale_kind::scale_min: b.scale[g] = half(at), b.minimum[g] = half(n_groups * panel_rows + at); break;
      case scale_kind::sub_scale: b.sub_scale[g] = byte(2 * panel_rows + at); break;
      case scale_kind::sub_scale_min: b.sub_scale[g] = byte(4 * panel_rows + at), b.sub_minimum[g] = byte((4 + n_groups) * panel_rows + at); break;
    }
  }
  const std::byte* unit = from + scale_bytes(f, n_groups);
  const auto get = [&](std::size_t at) {
    std::uint32_t four;
    std::memcpy(&four, unit + at, 4);
    return four;
  };
  std::uint8_t codes[code_block_cols];
  for (std::uint8_t *c = codes, *end = codes + 32 * units; c != end; c += 32, unit += unit_bytes(f.bits)) {
    std::uint32_t four[8];
    for (std::size_t s = 0; s < 8; ++s) {
      four[s] = f.bits == 8 ? get(step_at(s, lane)) : get(step_at(s % 4, lane)) >> (s / 4 * 4) & 0x0f0f0f0fu;
      if (f.bits == 5) four[s] |= (get(upper_at(lane)) >> s & 0x01010101u) << 4;
      if (f.bits == 6) four[s] |= (get(step_at(4 + s / 4, lane)) >> (2 * (s % 4)) & 0x03030303u) << 4;
    }
    std::memcpy(c, four, sizeof four);
  }
  std::memcpy(b.codes, codes, cols);
}

}  // namespace detail
}  // namespace quena::inline QUENA_ABI
