// SPDX-License-Identifier: MIT
// Continues a text.   example_generate MODEL [PROMPT]
#include <quena/quena.hpp>

#include <exception>
#include <iostream>

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: example_generate MODEL [PROMPT]\n";
    return 2;
  }
  try {
    auto llm = quena::load(argv[1]);  // a Hugging Face folder or a GGUF file
    const char* prompt = argc > 2 ? argv[2] : "Once upon a time";
    std::cout << prompt;
    for (std::string_view piece : quena::generate(llm, prompt, {.max_tokens = 200})) std::cout << piece << std::flush;
    std::cout << '\n';
  } catch (const std::exception& e) {  // quena::error says where, what was expected and what came
    std::cerr << e.what() << '\n';
    return 1;
  }
}
