// SPDX-License-Identifier: Apache-2.0
#pragma once

// The CUDA runtime for host code, with its errors as Error.

#include <string>

#include "sparsecast/error.hpp"

#if defined(SPARSECAST_CUDA_EMULATION)
#include "cuda_emulation/runtime.hpp"
#else
#include <cuda_runtime_api.h>
#endif

namespace sparsecast::cuda {

/// Throws an Error that names `call` unless it succeeded: kUnsupported if the device or its memory does not suffice, so
/// that a caller may fall back to the CPU, otherwise kDevice.
inline void check(cudaError_t result, const char* call) {
  if (result == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // Clears the error, so that the next caller does not find it.
  const bool lacking = result == cudaErrorMemoryAllocation || result == cudaErrorNoDevice ||
                       result == cudaErrorInsufficientDriver || result == cudaErrorNoKernelImageForDevice;
  throw Error(lacking ? ErrorCode::kUnsupported : ErrorCode::kDevice,
              std::string(call) + ": " + cudaGetErrorName(result) + " (" + cudaGetErrorString(result) + ")");
}

}  // namespace sparsecast::cuda
