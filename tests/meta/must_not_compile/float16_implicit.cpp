// SPDX-License-Identifier: MIT
// 16-bit types store; arithmetic on them must say where it becomes float.
// error: no match for|invalid operands
#include <quena/core/float16.hpp>

float sum(quena::bf16 a, quena::bf16 b) {
#ifdef QUENA_WRONG
  return a + b;
#else
  return static_cast<float>(a) + static_cast<float>(b);
#endif
}
