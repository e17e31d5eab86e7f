// SPDX-License-Identifier: MIT
// A float does not lose its bits without a cast.
// error: could not convert|cannot convert|conversion from|no viable conversion
#include <quena/core/float16.hpp>

quena::f16 half(float value) {
#ifdef QUENA_WRONG
  return value / 2;
#else
  return quena::f16(value / 2);
#endif
}
