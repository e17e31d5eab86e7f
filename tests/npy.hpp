// SPDX-License-Identifier: MIT
// Reads .npy files of the reference data: version 1.0, little-endian float32, C order, one or two dimensions.
#pragma once

#include <quena/core/tensor.hpp>

#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <string>

#include "support.hpp"

namespace quena_test {

/// A vector comes as one row.
inline quena::tensor<float, 2> read_npy(const std::string& path) {
  const std::string bytes = read_file(path);
  const auto bad = [&](const char* what) { throw std::runtime_error("test data " + path + ": " + what); };
  if (bytes.size() < 10 || bytes.compare(0, 8, std::string("\x93NUMPY\x01\x00", 8)) != 0) bad("not a .npy file of version 1.0");
  const std::size_t header_size = static_cast<unsigned char>(bytes[8]) | static_cast<std::size_t>(static_cast<unsigned char>(bytes[9])) << 8;
  const std::string header = bytes.substr(10, header_size);
  if (header.find("'<f4'") == header.npos || header.find("'fortran_order': False") == header.npos) bad("not float32 in C order");
  std::size_t at = header.find("'shape': ("), shape[2] = {1, 1}, rank = 0;
  if (at == header.npos) bad("no shape");
  for (at += 10; at < header.size() && header[at] != ')'; ++at) {
    if (header[at] < '0' || header[at] > '9') continue;
    if (rank == 2) bad("more than two dimensions");
    for (shape[rank] = 0; at < header.size() && header[at] >= '0' && header[at] <= '9'; ++at) shape[rank] = shape[rank] * 10 + static_cast<std::size_t>(header[at] - '0');
    ++rank;
    --at;
  }
  if (rank == 1) shape[1] = shape[0], shape[0] = 1;
  quena::tensor<float, 2> values({shape[0], shape[1]});
  if (bytes.size() != 10 + header_size + values.size() * sizeof(float)) bad("another size than its shape says");
  if (values.size() != 0) std::memcpy(values.data(), bytes.data() + 10 + header_size, values.size() * sizeof(float));
  return values;
}

}  // namespace quena_test
