// SPDX-License-Identifier: MIT
// What the build knows of itself; apart, so that a new commit compiles one small file anew.
#pragma once

namespace cli {

const char* build_flags();
const char* build_commit();

}  // namespace cli
