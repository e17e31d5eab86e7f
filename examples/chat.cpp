// SPDX-License-Identifier: MIT
// A conversation, a line at a time.   example_chat MODEL [SYSTEM MESSAGE]
#include <quena/quena.hpp>

#include <exception>
#include <iostream>
#include <string>

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: example_chat MODEL [SYSTEM MESSAGE]\n";
    return 2;
  }
  try {
    auto llm = quena::load(argv[1]);
    quena::chat talk(llm, {.system = argc > 2 ? argv[2] : ""});
    for (std::string line; std::cout << "> " << std::flush && std::getline(std::cin, line);) {
      for (std::string_view piece : talk.send(line)) std::cout << piece << std::flush;
      std::cout << '\n';
    }
  } catch (const std::exception& e) {
    std::cerr << e.what() << '\n';
    return 1;
  }
}
