#include "cuda_emulation/runtime.hpp"

#include "cuda_emulation/events.hpp"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

/// Something to point to.
struct CUstream_st {};

namespace {

struct {
  std::atomic<std::size_t> allocations{0}, live_allocations{0}, objects{0}, copied_bytes{0}, stream_queries{0};
} counts;
std::atomic<int> successes_left = -1;
thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;
thread_local int busy_questions = 0;
thread_local bool deferring = false;
thread_local std::vector<std::function<void()>> deferred;
constexpr int kDevices = 2;

void enqueue(std::function<void()> copy) {
  if (!deferring) return copy();
  deferred.push_back(std::move(copy));
}

cudaError_t kept(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

cudaError_t allocate(void** at, std::size_t bytes) {
  if (successes_left == 0) return kept(cudaErrorMemoryAllocation);
  if (successes_left > 0) --successes_left;
  constexpr std::size_t kAlignment = 256;
  *at = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  if (*at == nullptr) return kept(cudaErrorMemoryAllocation);
  std::memset(*at, 0xC7, bytes);
  ++counts.allocations;
  ++counts.live_allocations;
  return cudaSuccess;
}

cudaError_t release(void* at) {
  sparsecast::emulation::finish_copies();
  if (at != nullptr) --counts.live_allocations;
  std::free(at);
  return cudaSuccess;
}

}  // namespace

namespace sparsecast::emulation {

RuntimeCounts runtime_counts() {
  return {counts.allocations, counts.live_allocations, counts.objects, counts.copied_bytes, counts.stream_queries};
}
void defer_copies(bool defer) {
  finish_copies();
  deferring = defer;
}
void finish_copies() {
  for (const std::function<void()>& copy : std::exchange(deferred, {})) copy();
}
void be_busy(int questions) { busy_questions = questions; }
void fail_allocation_after(int successes) { successes_left = successes; }

TestEvent::TestEvent() : event_(new CUevent_st) {}
TestEvent::~TestEvent() { delete event_; }
int TestEvent::records() const { return event_->records; }
int TestEvent::waits() const { return event_->waits; }

}  // namespace sparsecast::emulation

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaErrorInvalidValue";
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "invalid argument";
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = kDevices;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= kDevices) return kept(cudaErrorInvalidDevice);
  current_device = device;
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
  counts.copied_bytes += bytes;
  enqueue([=] {
    if (bytes != 0) std::memcpy(to, from, bytes);
  });
  return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                              std::size_t width, std::size_t height, cudaMemcpyKind, cudaStream_t) {
  constexpr std::size_t kMostPitch = (std::size_t{1} << 31) - 1;
  if (to_pitch < width || from_pitch < width || to_pitch > kMostPitch || from_pitch > kMostPitch) {
    return kept(cudaErrorInvalidPitchValue);
  }
  counts.copied_bytes += width * height;
  enqueue([=] {
    for (std::size_t row = 0; row < height && width != 0; ++row) {
      std::memcpy(static_cast<std::byte*>(to) + row * to_pitch, static_cast<const std::byte*>(from) + row * from_pitch,
                  width);
    }
  });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* at, int value, std::size_t bytes, cudaStream_t) {
  enqueue([=] {
    if (bytes != 0) std::memset(at, value, bytes);
  });
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t) {
  ++counts.stream_queries;
  if (busy_questions > 0) {
    --busy_questions;
    return kept(cudaErrorNotReady);
  }
  sparsecast::emulation::finish_copies();
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st;
  ++counts.objects;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  ++counts.objects;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  ++event->records;
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t event, unsigned) {
  ++event->waits;
  return cudaSuccess;
}
