// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace sparsecast::mpi_test {

/// Memory that this process has allocated by `new` since the last reset: the largest allocation, and the peak beyond
/// what was allocated at the reset. Memory of MPI itself is not counted.
struct Allocations {
  std::size_t largest = 0;
  std::size_t peak = 0;
};
void reset_allocations();
Allocations allocations();

}  // namespace sparsecast::mpi_test
