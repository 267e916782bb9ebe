// SPDX-License-Identifier: Apache-2.0
#pragma once

// Queries of the current device, and waits for a stream with a deadline.

#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "cuda/common/runtime.hpp"

namespace sparsecast::cuda {

inline unsigned multiprocessors() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  int count = 0;
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  return static_cast<unsigned>(count);
}

/// Returns whether all work enqueued on the stream is done.
inline bool is_done(cudaStream_t stream) {
  const cudaError_t state = cudaStreamQuery(stream);
  if (state == cudaErrorNotReady) {
    // The runtime keeps this answer as its last error; whoever checks that after the next launch (CUB does) would find
    // it.
    static_cast<void>(cudaGetLastError());
    return false;
  }
  check(state, "cudaStreamQuery");
  return true;
}

/// Waits for all work enqueued on the stream. Throws Error{kTimeout} after `deadline`; its message says that the device
/// did not `verb`.
inline void wait_for(cudaStream_t stream, std::chrono::milliseconds deadline, const char* verb) {
  const auto end = std::chrono::steady_clock::now() + deadline;
  while (!is_done(stream)) {
    if (std::chrono::steady_clock::now() > end) {
      throw Error(ErrorCode::kTimeout, fmt::format("the device did not {} within {} ms", verb, deadline.count()));
    }
    std::this_thread::yield();
  }
}

}  // namespace sparsecast::cuda
