#include "cuda_emulation/runtime.hpp"

#include <cstdlib>
#include <cstring>

namespace {

sparsecast::emulation::RuntimeCounts counts;
int successes_left = -1;

cudaError_t allocate(void** at, std::size_t bytes) {
  if (successes_left == 0) return cudaErrorMemoryAllocation;
  if (successes_left > 0) --successes_left;
  constexpr std::size_t kAlignment = 256;
  *at = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  if (*at == nullptr) return cudaErrorMemoryAllocation;
  std::memset(*at, 0xC7, bytes);
  ++counts.allocations;
  ++counts.live_allocations;
  return cudaSuccess;
}

cudaError_t release(void* at) {
  if (at != nullptr) --counts.live_allocations;
  std::free(at);
  return cudaSuccess;
}

}  // namespace

namespace sparsecast::emulation {

RuntimeCounts runtime_counts() { return counts; }
void fail_allocation_after(int successes) { successes_left = successes; }

}  // namespace sparsecast::emulation

const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaErrorInvalidValue";
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "invalid argument";
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 2;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** at, std::size_t bytes) { return allocate(at, bytes); }
cudaError_t cudaFree(void* at) { return release(at); }
cudaError_t cudaMallocHost(void** at, std::size_t bytes) { return allocate(at, bytes); }
cudaError_t cudaFreeHost(void* at) { return release(at); }
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t) {
  if (bytes != 0) std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* at, int value, std::size_t bytes, cudaStream_t) {
  if (bytes != 0) std::memset(at, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t) {
  ++counts.stream_queries;
  return cudaSuccess;
}
