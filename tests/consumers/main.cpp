// SPDX-License-Identifier: MIT
// The program of every consumer project: a tensor, some JSON, an error.
#include <quena/quena.hpp>

#include <iostream>

int main() {
  quena::tensor<float, 2> t({2, 3});
  t(1, 2) = static_cast<float>(quena::bf16(1.5f));
  if (quena::parse_json("{\"answer\": 42}", "consumer").at("answer") != 42 || t.view()[1][2] != 1.5f) return 1;
  try {
    static_cast<void>(t.view().at(2, 0));
    return 1;
  } catch (const quena::error& e) {
    std::cout << "consumer works: " << e.what() << '\n';
  }
}
