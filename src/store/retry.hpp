// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <random>

namespace sparsecast {

/// Attempts of one operation until a deadline: exponential back-off with jitter, by the steady clock.
class Retry {
 public:
  explicit Retry(std::chrono::milliseconds deadline);

  std::chrono::steady_clock::time_point deadline() const { return deadline_; }
  /// Returns the number of attempts begun; 1 in the first.
  int attempts() const { return attempts_; }
  std::chrono::milliseconds elapsed() const;
  /// Sleeps before another attempt; false, at once, when the deadline would come first.
  bool again();

 private:
  std::chrono::steady_clock::time_point begin_;
  std::chrono::steady_clock::time_point deadline_;
  int attempts_ = 1;
  std::minstd_rand jitter_;
};

}  // namespace sparsecast
