// SPDX-License-Identifier: MIT
// A tensor is not copied by accident, only by clone().
// error: deleted
#include <quena/core/tensor.hpp>

quena::tensor<float, 2> twice(const quena::tensor<float, 2>& t) {
#ifdef QUENA_WRONG
  quena::tensor<float, 2> copy = t;
#else
  quena::tensor<float, 2> copy = t.clone();
#endif
  return copy;
}
