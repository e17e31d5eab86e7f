// SPDX-License-Identifier: MIT
// The umbrella: everything most programs need.
#pragma once

#include "core/error.hpp"
#include "core/float16.hpp"
#include "core/memory.hpp"
#include "core/tensor.hpp"
#include "io/json.hpp"
