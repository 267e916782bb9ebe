// SPDX-License-Identifier: Apache-2.0
#pragma once

// Provides the language extensions that the kernels use: from the CUDA toolkit and CUB under nvcc, and under g++, for
// tests, from the emulation of the execution model in tests/cuda_emulation.

#if defined(SPARSECAST_CUDA_EMULATION)

#include "cuda_emulation/cuda_emulation.hpp"

/// Declares the only shared-memory variable of a kernel, with this type and name.
#define SPARSECAST_SHARED(Type, name)                          \
  static ::sparsecast::emulation::Shared<Type> name##_storage; \
  Type& name = name##_storage.value()
/// Last parameter of a function that has a barrier. Through this parameter, the emulation counts the barrier as a
/// barrier of the function's caller.
#define SPARSECAST_CALLED_FROM const std::source_location& caller = std::source_location::current()
#define SPARSECAST_CALLER caller
#define SPARSECAST_UNROLL
#define SPARSECAST_UNROLL_FOR(Threads)

#else

#include <cuda_pipeline.h>
#include <cuda_runtime.h>

#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/warp/warp_scan.cuh>

// An array of bytes, because shared memory does not allow member initializers.
#define SPARSECAST_SHARED(Type, name)                                  \
  __shared__ alignas(Type) unsigned char name##_storage[sizeof(Type)]; \
  Type& name = *reinterpret_cast<Type*>(name##_storage)
#define SPARSECAST_CALLED_FROM
#define SPARSECAST_CALLER
#define SPARSECAST_UNROLL _Pragma("unroll")
/// Is written before a loop over the entries of a thread, and unrolls the loop Threads::kUnroll times
/// (coding_threads.cuh).
#define SPARSECAST_UNROLL_FOR(Threads) _Pragma("unroll Threads::kUnroll")

#endif

namespace sparsecast::cuda {

/// Returns `at`, which must point to global memory. It tells the compiler that it can use global loads and stores,
/// which are faster than generic ones.
template <class T>
__device__ T* in_global(T* at) {
#if defined(__CUDA_ARCH__)
  __builtin_assume(__isGlobal(at));
#endif
  return at;
}

}  // namespace sparsecast::cuda
