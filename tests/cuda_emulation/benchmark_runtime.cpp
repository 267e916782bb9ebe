// SPDX-License-Identifier: Apache-2.0

// The calls of the runtime that only benchmarks make.

#include <cstring>

#include "cuda_emulation/runtime.hpp"

namespace {

constexpr int kVersion = 13000;

}  // namespace

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = kVersion;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = kVersion;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {"emulated", {}, std::size_t{1} << 30, 9, 0, 2, 1 << 20};
  return cudaSuccess;
}
cudaError_t cudaDeviceSetLimit(cudaLimit, std::size_t) { return cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
  // As on a real device, both events must have been recorded.
  if (begin->records == 0 || end->records == 0) return cudaErrorInvalidResourceHandle;
  *ms = 1;
  return cudaSuccess;
}
