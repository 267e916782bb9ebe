// SPDX-License-Identifier: Apache-2.0
#pragma once

// Pauses between two questions whether something has happened that tells nobody: an event of a device, a state of NCCL.

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace sparsecast {

/// Of one wait, which begins when it is made.
class PollPause {
 public:
  /// Yields at first, and then sleeps an eighth of the time that was waited, up to half a millisecond: a short wait is
  /// hardly longer than it has to be, and a long one leaves the core, and the locks of the driver, to others.
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
