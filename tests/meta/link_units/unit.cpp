// SPDX-License-Identifier: MIT
// One of two units of a program that include the library under different -m flags. QUENA_UNIT names this unit's function,
// which does some of everything and says what came out; both units must say the same.
#include <quena/quena.hpp>

#include <cstdint>
#include <string>

std::string QUENA_UNIT(const char* model);

std::string QUENA_UNIT(const char* model) {
  quena::tensor<float, 2> t({5, 7});
  float sum = 0;
  for (std::size_t i = 0; i < 5; ++i)
    for (std::size_t j = 0; j < 7; ++j) t(i, j) = static_cast<float>(i) * 0.37f - static_cast<float>(j) * 1.01f;
  for (const float x : t.span()) sum += static_cast<float>(quena::f16(x)) + static_cast<float>(quena::bf16(x));
  const quena::json parsed = quena::parse_json("{\"numbers\": [1, 2.5, -3e-5], \"text\": \"a\\u00e9\"}", "unit");
  std::string out = std::to_string(static_cast<double>(sum)) + ' ' + parsed.dump() + ' ';
  auto llm = quena::load(model);
  for (std::string_view piece : quena::generate(llm, "Once upon a time", {.max_tokens = 20})) out += piece;
  return out;
}
