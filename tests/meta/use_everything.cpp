// SPDX-License-Identifier: MIT
// A unit that includes the umbrella and makes the compiler write out the main parts of the library.
#include <quena/quena.hpp>

#include <string>
#include <vector>

std::string use_everything(const char* path, const char* prompt);

std::string use_everything(const char* path, const char* prompt) {
  quena::tensor<float, 2> t({2, 3});
  t(0, 0) = static_cast<float>(quena::f16(1.5f)) + static_cast<float>(quena::bf16(2.5f));
  const auto part = t.view().slice(1, 0, 2).transposed();
  const quena::json parsed = quena::parse_json("[1, 2.5]", "use_everything");
  std::string out = parsed.dump() + std::to_string(part.at(0, 0));

  auto llm = quena::load(path);
  for (std::string_view piece : quena::generate(llm, prompt, {.max_tokens = 10})) out += piece;
  auto plain = quena::load(path, {.format = quena::format::f32}, quena::reference{});
  for (std::string_view piece : quena::generate(plain, prompt, {.max_tokens = 10})) out += piece;
  return out;
}
