// SPDX-License-Identifier: Apache-2.0
#pragma once

// Language extensions that the kernels use: the CUDA toolkit and CUB under nvcc; under g++, for tests, the emulation of
// the execution model in tests/cuda_emulation.

#if defined(SPARSECAST_CUDA_EMULATION)

#include "cuda_emulation/cuda_emulation.hpp"

/// Declares the one variable of a kernel that its CTA shares.
#define SPARSECAST_SHARED(Type, name)                          \
  static ::sparsecast::emulation::Shared<Type> name##_storage; \
  Type& name = name##_storage.value()
#define SPARSECAST_UNROLL

#else

#include <cuda_runtime.h>

#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>

#define SPARSECAST_SHARED(Type, name) __shared__ Type name
#define SPARSECAST_UNROLL _Pragma("unroll")

#endif
