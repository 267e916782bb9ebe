#pragma once

// Launching a kernel, and the errors of the runtime's calls as Error.

#include <string>
#include <utility>

#include "device_api.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast::cuda {

/// Throws Error naming `call` unless it succeeded: kUnsupported when the device or its memory does not suffice, so that
/// a caller may fall back to the CPU, else kIo.
inline void check(cudaError_t result, const char* call) {
  if (result == cudaSuccess) return;
  ErrorCode code = result == cudaErrorMemoryAllocation ? ErrorCode::kUnsupported : ErrorCode::kIo;
#if !defined(SPARSECAST_CUDA_EMULATION)
  if (result == cudaErrorNoDevice || result == cudaErrorInsufficientDriver || result == cudaErrorNoKernelImageForDevice) {
    code = ErrorCode::kUnsupported;
  }
#endif
  throw Error(code, std::string(call) + ": " + cudaGetErrorName(result) + " (" + cudaGetErrorString(result) + ")");
}

/// Enqueues `kernel` on a grid of `blocks` blocks of `threads` threads.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), unsigned blocks, unsigned threads, cudaStream_t stream,
            Arguments&&... arguments) {
#if defined(SPARSECAST_CUDA_EMULATION)
  static_cast<void>(stream);
  emulation::run_grid(blocks, threads, [&] { kernel(arguments...); });
#else
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.stream = stream;
  check(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...), "cudaLaunchKernelEx");
#endif
}

}  // namespace sparsecast::cuda
