// SPDX-License-Identifier: MIT
// A view of constants does not become a view that may write.
// error: could not convert|no matching function
#include <quena/core/tensor.hpp>

void fill(quena::tensor_view<float, 1> v);
void read(quena::tensor_view<const float, 1> v);

void use(const quena::tensor<float, 1>& t) {
#ifdef QUENA_WRONG
  fill(t);
#else
  read(t);
#endif
}
