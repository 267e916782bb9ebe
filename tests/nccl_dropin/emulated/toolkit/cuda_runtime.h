// SPDX-License-Identifier: Apache-2.0
#pragma once

// What stands in for the toolkit's headers that nccl.h includes, in a program over the emulated runtime.

#include "cuda_emulation/runtime.hpp"
