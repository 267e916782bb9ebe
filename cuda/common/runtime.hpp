#pragma once

// The CUDA runtime's calls, for host code, and their errors as Error.

#include <string>

#include "sparsecast/error.hpp"

#if defined(SPARSECAST_CUDA_EMULATION)
#include "cuda_emulation/runtime.hpp"
#else
#include <cuda_runtime_api.h>
#endif

namespace sparsecast::cuda {

/// Throws Error naming `call` unless it succeeded: kUnsupported when the device or its memory does not suffice, so that
/// a caller may fall back to the CPU, else kDevice.
inline void check(cudaError_t result, const char* call) {
  if (result == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // Not for the next caller to find.
  const bool lacking = result == cudaErrorMemoryAllocation || result == cudaErrorNoDevice ||
                       result == cudaErrorInsufficientDriver || result == cudaErrorNoKernelImageForDevice;
  throw Error(lacking ? ErrorCode::kUnsupported : ErrorCode::kDevice,
              std::string(call) + ": " + cudaGetErrorName(result) + " (" + cudaGetErrorString(result) + ")");
}

}  // namespace sparsecast::cuda
