// SPDX-License-Identifier: MIT
// The program of every consumer project: continues a text with the model in its argument.
#include <quena/quena.hpp>

#include <iostream>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    auto llm = quena::load(argv[1]);
    for (std::string_view piece : quena::generate(llm, "Once upon a time", {.max_tokens = 20})) std::cout << piece;
    std::cout << '\n';
  } catch (const quena::error& e) {
    std::cerr << e.what() << '\n';
    return 1;
  }
}
