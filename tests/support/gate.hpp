// SPDX-License-Identifier: Apache-2.0
#pragma once

// How threads of a test wait for one another.

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace sparsecast::test {

/// A deadline that no test reaches, unless something hangs.
inline std::chrono::steady_clock::time_point soon() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(30);
}

/// Closed until somebody opens it.
class Gate {
 public:
  void open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  bool is_open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return open_;
  }
  /// Waits until it is open. When it never is, the test fails, but does not hang.
  bool pass() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (changed_.wait_until(lock, soon(), [&] { return open_; })) return true;
    ADD_FAILURE() << "nobody came to open the gate";
    return false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

/// Two threads that can be at one place only together.
class Tryst {
 public:
  void first() { meet(first_, second_); }
  void second() { meet(second_, first_); }

 private:
  static void meet(Gate& own, Gate& other) {
    own.open();
    other.pass();
  }
  Gate first_;
  Gate second_;
};

}  // namespace sparsecast::test
