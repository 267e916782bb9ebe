// SPDX-License-Identifier: Apache-2.0
#pragma once

// Owners of streams and events, the device that a thread works on, and the stream that launchers use.

#include <utility>

#include "cuda/common/policies.hpp"
#include "cuda/common/runtime.hpp"

namespace sparsecast::cuda {

/// Makes `device` the current device of this thread, and restores the previous one on destruction.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    check(cudaGetDevice(&before_), "cudaGetDevice");
    if (device == before_) return;
    check(cudaSetDevice(device), "cudaSetDevice");
    changed_ = true;
  }
  ~DeviceGuard() {
    if (changed_) static_cast<void>(cudaSetDevice(before_));
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

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
  ~Stream() { static_cast<void>(cudaStreamDestroy(stream_)); }
  cudaStream_t get() const noexcept { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// An event that orders streams.
class Event {
 public:
  Event() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreateWithFlags"); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { static_cast<void>(cudaEventDestroy(event_)); }
  cudaEvent_t get() const noexcept { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

/// A stream, and the size of its device.
struct DeviceStream {
  cudaStream_t stream = nullptr;
  unsigned multiprocessors = 1;
  Policy policy = {};
  /// Launchers only load their kernels, which the runtime otherwise does at the first launch, within a pause perhaps.
  bool loads_only = false;
};

inline void record(cudaEvent_t event, cudaStream_t stream) { check(cudaEventRecord(event, stream), "cudaEventRecord"); }
/// Makes later work on `stream` wait for `event`, without blocking the host.
inline void wait_behind(cudaStream_t stream, cudaEvent_t event) {
  check(cudaStreamWaitEvent(stream, event, 0), "cudaStreamWaitEvent");
}

}  // namespace sparsecast::cuda
