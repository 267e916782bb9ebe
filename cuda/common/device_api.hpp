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
/// Parameter and argument that make a barrier inside a function count as one of its caller's.
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

// Bytes, because shared memory takes no initializers of members.
#define SPARSECAST_SHARED(Type, name)                                  \
  __shared__ alignas(Type) unsigned char name##_storage[sizeof(Type)]; \
  Type& name = *reinterpret_cast<Type*>(name##_storage)
#define SPARSECAST_CALLED_FROM
#define SPARSECAST_CALLER
#define SPARSECAST_UNROLL _Pragma("unroll")
/// Before a loop over the entries of a thread (coding_threads.cuh).
#define SPARSECAST_UNROLL_FOR(Threads) _Pragma("unroll Threads::kUnroll")

#endif

namespace sparsecast::cuda {

/// Returns `at`, which must point to global memory: the compiler then loads without looking up where it points to.
template <class T>
__device__ T* in_global(T* at) {
#if defined(__CUDA_ARCH__)
  __builtin_assume(__isGlobal(at));
#endif
  return at;
}

}  // namespace sparsecast::cuda
