#pragma once

#include <cstddef>

namespace sparsecast::mpi_test {

/// What this process has taken by `new` since the last reset: the largest piece, and the most at a time beyond what was
/// there at the reset. MPI's own memory is not counted.
struct Allocations {
  std::size_t largest = 0;
  std::size_t peak = 0;
};
void reset_allocations();
Allocations allocations();

}  // namespace sparsecast::mpi_test
