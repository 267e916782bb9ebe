// SPDX-License-Identifier: Apache-2.0

// mpirun -np N mpi_tests CASE

#include <cstdio>

#include "harness.hpp"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  return sparsecast::mpi_test::run_case(argc == 2 ? argv[1] : "");
}
