// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/common/runtime.hpp"

namespace sparsecast::cuda {

/// Returns the address of the driver's function `name`, in the version that CUDA 12.0 declares. Returns null if the
/// driver has no such function.
template <class Function>
Function* driver_function(const char* name) noexcept {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found);
#else
  const cudaError_t error = cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &found);
#endif
  if (error == cudaSuccess) return reinterpret_cast<Function*>(function);
  static_cast<void>(cudaGetLastError());
  return nullptr;
}

}  // namespace sparsecast::cuda
