// SPDX-License-Identifier: MIT
// main() of quena_tests: doctest's.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
