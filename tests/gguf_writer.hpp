// SPDX-License-Identifier: MIT
// Writes GGUF bytes for tests, good ones or bad ones: nothing is checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quena_test {

struct gguf_writer {
  std::string bytes;

  template <class T>
  gguf_writer& number(T value) {
    const char* p = reinterpret_cast<const char*>(&value);
    bytes.append(p, sizeof value);
    return *this;
  }
  gguf_writer& string(std::string_view s) { return number(static_cast<std::uint64_t>(s.size())).raw(s); }
  gguf_writer& raw(std::string_view s) {
    bytes.append(s);
    return *this;
  }
  gguf_writer& header(std::uint64_t n_tensors, std::uint64_t n_values, std::uint32_t version = 3) {
    return raw("GGUF").number(version).number(n_tensors).number(n_values);
  }
  gguf_writer& key(std::string_view k, std::uint32_t type) { return string(k).number(type); }
  gguf_writer& tensor(std::string_view name, const std::vector<std::uint64_t>& dims, std::uint32_t type, std::uint64_t offset) {
    string(name).number(static_cast<std::uint32_t>(dims.size()));
    for (const std::uint64_t d : dims) number(d);
    return number(type).number(offset);
  }
  gguf_writer& pad(std::size_t to) {
    while (bytes.size() % to != 0) bytes += '\0';
    return *this;
  }
  gguf_writer& data(std::size_t n) {
    bytes.append(n, '\1');
    return *this;
  }
};

}  // namespace quena_test
