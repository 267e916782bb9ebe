// SPDX-License-Identifier: Apache-2.0
#pragma once

// Owners of streams and events, and the stream that launchers use.

#include <utility>

#include "cuda/common/device_guard.hpp"
#include "cuda/common/policies.hpp"

namespace sparsecast::cuda {

/// A new stream of the current device. Its work does not wait for the default stream.
class Stream {
 public:
  /// Creates the stream. With `urgent`, it has the highest priority: its CTAs are scheduled before those of other
  /// streams.
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

/// An event without timing, with which one stream waits for another.
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

/// A CUDA stream, with the size of its device and the options that launchers need.
struct DeviceStream {
  cudaStream_t stream = nullptr;
  unsigned multiprocessors = 1;
  Policy policy = {};
  /// If true, launchers load their kernels onto the device and launch nothing. Otherwise the runtime would load a
  /// kernel at its first launch, which may be during a pause.
  bool loads_only = false;
  /// If true, together with loads_only, the kernels also request the largest shared-memory carve-out. A multiprocessor
  /// changes its carve-out only while it is idle, so kernels that run at the same time must request the same carve-out.
  bool most_shared_memory = false;
};

inline void record(cudaEvent_t event, cudaStream_t stream) { check(cudaEventRecord(event, stream), "cudaEventRecord"); }
/// Makes later work on `stream` wait for `event`, without blocking the host.
inline void wait_behind(cudaStream_t stream, cudaEvent_t event) {
  check(cudaStreamWaitEvent(stream, event, 0), "cudaStreamWaitEvent");
}

}  // namespace sparsecast::cuda
