#pragma once

// What host code asks of the device that it runs on, and how it waits for it.

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

/// Whether everything enqueued on the stream is done.
inline bool is_done(cudaStream_t stream) {
  const cudaError_t state = cudaStreamQuery(stream);
  if (state == cudaErrorNotReady) {
    // The runtime keeps this answer as an error, and who asks after the next launch (CUB does) would find it.
    static_cast<void>(cudaGetLastError());
    return false;
  }
  check(state, "cudaStreamQuery");
  return true;
}

/// Waits for everything enqueued on the stream; `verb` is what the device did not do when Error{kTimeout} is thrown.
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
