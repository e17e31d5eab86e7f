// SPDX-License-Identifier: MIT
// A unit that includes the umbrella and makes the compiler write out the main parts of the library.
#include <quena/quena.hpp>

#include <string>

std::string use_everything(const char* text);

std::string use_everything(const char* text) {
  quena::tensor<float, 2> t({2, 3});
  t(0, 0) = static_cast<float>(quena::f16(1.5f)) + static_cast<float>(quena::bf16(2.5f));
  const auto part = t.view().slice(1, 0, 2).transposed();
  const quena::json parsed = quena::parse_json(text, "use_everything");
  return parsed.dump() + std::to_string(part.at(0, 0));
}
