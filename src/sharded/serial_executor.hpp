// SPDX-License-Identifier: Apache-2.0
#pragma once

// Executor that runs tasks one after another, on a thread of its own or on the caller's.

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "core/outcome.hpp"
#include "sparsecast/control_channel.hpp"

namespace sparsecast {

/// Runs tasks in the order of submission, on a thread of its own or within submit(). Once a task has thrown, the later
/// ones are dropped. All functions are called by one thread, and none of them by a task.
class SerialExecutor {
 public:
  /// At most `max_queued` tasks wait behind the running one; with kInline there is no thread, and submit() runs the
  /// task. `what` begins the error of a wait that reaches its deadline: "encoding of routes".
  SerialExecutor(std::string what, std::size_t max_queued);
  static constexpr std::size_t kInline = 0;
  /// Waits for the running task. Tasks that have not begun are dropped.
  ~SerialExecutor();
  SerialExecutor(const SerialExecutor&) = delete;
  SerialExecutor& operator=(const SerialExecutor&) = delete;

  /// Queues the task, after waiting for room. Throws Error{kTimeout}, and drops the task, when there is no room by the
  /// deadline.
  void submit(std::function<void()> task, Deadline deadline);
  /// Waits until the first `tasks` submitted tasks are done, or one has failed. Returns whether they are all done; what
  /// they have written is then visible to the calling thread. Throws Error{kTimeout}.
  bool wait_for(std::size_t tasks, Deadline deadline);
  /// Waits until nothing is queued or running. Returns the exception of the task that failed, if one has. Throws
  /// Error{kTimeout}.
  const Outcome& wait_all(Deadline deadline);
  /// Returns the seconds for which tasks ran; valid after wait_all().
  double busy_seconds() const noexcept { return busy_seconds_; }

 private:
  void run();
  void run_task(const std::function<void()>& task);
  /// Waits for `met`; the caller holds the lock.
  template <class Condition>
  void wait_until(std::unique_lock<std::mutex>& lock, Deadline deadline, const Condition& met);

  const std::string what_;
  const std::size_t max_queued_;

  std::mutex mutex_;  ///< Guards the members below, up to `busy_seconds_`.
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  std::size_t submitted_ = 0;
  std::size_t done_ = 0;  ///< Tasks that have not thrown.
  bool running_ = false;
  bool stopped_ = false;
  Outcome outcome_;
  double busy_seconds_ = 0;

  std::jthread thread_;  ///< Started by the first submit().
};

}  // namespace sparsecast
