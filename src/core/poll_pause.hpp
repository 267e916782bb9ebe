// SPDX-License-Identifier: Apache-2.0
#pragma once

// Pauses of a loop that polls for something that cannot wake it: a CUDA event, the state of a communicator.

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace sparsecast {

/// Makes the pauses of one polling loop. The time that the loop has waited counts from the construction of this object.
class PollPause {
 public:
  /// Yields during the first 50 us, then sleeps for an eighth of the time waited so far, at most 500 us: short waits
  /// end promptly, and long ones leave the core and the driver's locks to other threads.
  void pause() const {
    using std::chrono::microseconds;
    constexpr microseconds kYield{50};
    constexpr microseconds kLongest{500};
    const auto waited = std::chrono::steady_clock::now() - start_;
    if (waited < kYield) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(waited / 8, kLongest));
    }
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace sparsecast
