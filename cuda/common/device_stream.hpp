// SPDX-License-Identifier: Apache-2.0
#pragma once

// Queries of the current device, and waits for work on a stream with a deadline.

#include <fmt/format.h>

#include <chrono>

#include "core/poll_pause.hpp"
#include "cuda/common/streams.hpp"

namespace sparsecast::cuda {

/// Returns a DeviceStream for `stream`, with the number of multiprocessors and the policy of the current device.
inline DeviceStream on_current_device(cudaStream_t stream) {
  const int device = current_device();
  const auto attribute = [&](cudaDeviceAttr which) {
    int value = 0;
    check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
    return static_cast<unsigned>(value);
  };
  DeviceStream result;
  result.stream = stream;
  result.multiprocessors = attribute(cudaDevAttrMultiProcessorCount);
  result.policy =
      policy_of(10 * attribute(cudaDevAttrComputeCapabilityMajor) + attribute(cudaDevAttrComputeCapabilityMinor));
  return result;
}

/// Lets the host wait for the work that has been enqueued on a stream before the wait, but not for work that is
/// enqueued later. Uses an event on the device that was current at construction.
class HostWait {
 public:
  /// Makes an object whose waits last at most `deadline` each.
  explicit HostWait(std::chrono::milliseconds deadline) : deadline_(deadline) {}

  /// Waits for the work that is enqueued on `stream`. Throws Error{kTimeout} at the deadline; the message says that the
  /// device did not `verb`, a verb such as "apply".
  void wait(cudaStream_t stream, const char* verb) const {
    record(behind_.get(), stream);
    const auto end = std::chrono::steady_clock::now() + deadline_;
    const PollPause pace;
    while (!passed()) {
      if (std::chrono::steady_clock::now() > end) {
        throw Error(ErrorCode::kTimeout, fmt::format("the device did not {} within {} ms", verb, deadline_.count()));
      }
      pace.pause();
    }
  }

 private:
  bool passed() const {
    const cudaError_t state = cudaEventQuery(behind_.get());
    if (state == cudaErrorNotReady) {
      // The runtime keeps cudaErrorNotReady as its last error. Code that checks the last error after the next launch,
      // as CUB does, would find it.
      static_cast<void>(cudaGetLastError());
      return false;
    }
    check(state, "cudaEventQuery");
    return true;
  }

  std::chrono::milliseconds deadline_;
  Event behind_;
};

}  // namespace sparsecast::cuda
