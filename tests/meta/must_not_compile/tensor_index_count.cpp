// SPDX-License-Identifier: MIT
// A tensor takes as many indices as it has dimensions.
// error: no match|no matching
#include <quena/core/tensor.hpp>

float element(const quena::tensor<float, 2>& t) {
#ifdef QUENA_WRONG
  return t(1);
#else
  return t(1, 0);
#endif
}
