// SPDX-License-Identifier: MIT
#include "build_info.hpp"

#ifndef QUENA_BUILD_FLAGS
#define QUENA_BUILD_FLAGS "unknown"
#endif
#ifndef QUENA_BUILD_COMMIT
#define QUENA_BUILD_COMMIT "unknown"
#endif

namespace cli {

const char* build_flags() { return QUENA_BUILD_FLAGS; }
const char* build_commit() { return QUENA_BUILD_COMMIT; }

}  // namespace cli
