// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/common/hashed_weights.hpp"

namespace sparsecast::test {

using bench::HashedWeights;
using bench::LocalStorage;
using bench::refs_of;

}  // namespace sparsecast::test
