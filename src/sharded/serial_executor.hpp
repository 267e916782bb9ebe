#pragma once

// Tasks one after another, beside the thread that gives them.

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "sparsecast/control_channel.hpp"
#include "transport/outcome.hpp"

namespace sparsecast {

/// Does tasks in the order in which they are given, on a thread of its own, or at once. Once one has failed, the others
/// pass undone. For one thread, but for the tasks.
class SerialExecutor {
 public:
  /// At most so many tasks wait behind the one at work; kAtOnce: no thread is started, and add() does the task.
  /// `what` begins the error of a wait that lasts too long, "the encoding of routes".
  SerialExecutor(std::string what, std::size_t most_waiting);
  static constexpr std::size_t kAtOnce = 0;
  /// Tasks that have not begun are dropped; the one at work comes to its end.
  ~SerialExecutor();
  SerialExecutor(const SerialExecutor&) = delete;
  SerialExecutor& operator=(const SerialExecutor&) = delete;

  /// Waits for room. Throws Error{kTimeout} when there is none by the deadline; the task is dropped then.
  void add(std::function<void()> task, Deadline deadline);
  /// Waits until the first `tasks` of those that were given are done, or cannot be because one has failed; whether
  /// they are. What they have written is this thread's to read then. Throws Error{kTimeout}.
  bool wait_for(std::size_t tasks, Deadline deadline);
  /// Waits until there is nothing more to do; the failure, if there was one. Throws Error{kTimeout}.
  const Outcome& wait_for_all(Deadline deadline);
  /// Returns the seconds for which tasks ran. Valid after wait_for_all().
  double seconds() const noexcept { return seconds_; }

 private:
  void run();
  void perform(const std::function<void()>& task);
  /// Under the lock: waits for `met`.
  template <class Condition>
  void wait_until(std::unique_lock<std::mutex>& lock, Deadline deadline, const Condition& met);

  const std::string what_;
  const std::size_t most_waiting_;

  std::mutex mutex_;  ///< Guards all members below.
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  std::size_t given_ = 0;
  std::size_t done_ = 0;  ///< Without failure.
  bool at_work_ = false;
  bool stopped_ = false;
  Outcome outcome_;
  double seconds_ = 0;

  std::jthread thread_;  ///< Worker thread; started with the first task.
};

}  // namespace sparsecast
