// SPDX-License-Identifier: Apache-2.0
#pragma once

// Owners of streams and events, and the stream that launchers use.

#include <utility>

#include "cuda/common/device_guard.hpp"
#include "cuda/common/policies.hpp"

namespace sparsecast::cuda {

/// A stream of the current device that does not wait for the default stream.
class Stream {
 public:
  /// With `urgent`, its work goes before that of other streams where a multiprocessor has room.
  explicit Stream(bool urgent = false) {
    int least = 0;
    int greatest = 0;
    if (urgent) check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
    check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest), "cudaStreamCreateWithPriority");
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() {
    release_on(device_, [&] { return cudaStreamDestroy(stream_); });
  }
  cudaStream_t get() const noexcept { return stream_; }

 private:
  int device_ = current_device();
  cudaStream_t stream_ = nullptr;
};

/// An event that orders streams.
class Event {
 public:
  Event() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreateWithFlags"); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() {
    release_on(device_, [&] { return cudaEventDestroy(event_); });
  }
  cudaEvent_t get() const noexcept { return event_; }

 private:
  int device_ = current_device();
  cudaEvent_t event_ = nullptr;
};

/// A stream, and the size of its device.
struct DeviceStream {
  cudaStream_t stream = nullptr;
  unsigned multiprocessors = 1;
  Policy policy = {};
  /// Launchers only load their kernels, which the runtime otherwise does at the first launch, within a pause perhaps.
  bool loads_only = false;
  /// Kernels that are loaded ask for as much shared memory as a multiprocessor has: it changes its share only when it
  /// is idle, and kernels that are to run beside one another must find room together.
  bool most_shared_memory = false;
};

inline void record(cudaEvent_t event, cudaStream_t stream) { check(cudaEventRecord(event, stream), "cudaEventRecord"); }
/// Makes later work on `stream` wait for `event`, without blocking the host.
inline void wait_behind(cudaStream_t stream, cudaEvent_t event) {
  check(cudaStreamWaitEvent(stream, event, 0), "cudaStreamWaitEvent");
}

}  // namespace sparsecast::cuda
