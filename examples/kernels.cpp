// SPDX-License-Identifier: MIT
// Single kernels without a model: compiled for any x86-64 or AArch64, they run on the best vector instructions of this machine.
#include <quena/backend/cpu/kernels.hpp>

#include <exception>
#include <iostream>
#include <vector>

int main() {
  try {
    const quena::cpu_kernels kernels;
    std::cout << "instruction set: " << quena::isa_name(kernels.level()) << '\n';

    // A matrix of 3 rows and 4 columns, stored as bf16, times one vector and times two: the same numbers, bit for bit.
    const std::vector<float> weights{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, x{1, 0, 0, 1, /* second row */ 0.5f, 0.5f, 0.5f, 0.5f};
    const quena::cpu_matrix w = kernels.pack({weights.data(), {3, 4}}, quena::format::bf16);
    quena::tensor<float, 2> one({1, 3}), two({2, 3});
    kernels.matmul(w, {x.data(), {1, 4}}, one);
    kernels.matmul(w, {x.data(), {2, 4}}, two);
    for (std::size_t r = 0; r < 3; ++r) std::cout << one(0, r) << ' ' << two(0, r) << ' ' << two(1, r) << '\n';

    std::vector<float> scores{1, 2, 3};
    kernels.softmax(scores);
    std::cout << "softmax: " << scores[0] << ' ' << scores[1] << ' ' << scores[2] << '\n';

    const std::vector<float> gain(3, 1.0f);
    std::vector<float> normed(3);
    kernels.rmsnorm(one.span(), gain, 1e-5f, normed);
    std::cout << "rmsnorm: " << normed[0] << ' ' << normed[1] << ' ' << normed[2] << '\n';
  } catch (const std::exception& e) {
    std::cerr << e.what() << '\n';
    return 1;
  }
}
