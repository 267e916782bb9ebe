// SPDX-License-Identifier: Apache-2.0
#pragma once

// The transfers of a sync, as one rank takes part in them. The rank's own routes are encoded in one pass ahead of the
// wire, route after route, and received deltas are verified behind the wire, each on a thread of its own:
//
//     producer         encode route 0 | encode route 1 | encode route 2 |
//     calling thread                 | wire of 0     | wire of 1     | wire of 2     |
//     stager                                         | stage 0       | stage 1       | stage 2       |
//
// Only the calling thread uses the wire (docs/nccl.md), in the plan's order. A rank for which nothing could overlap
// starts no thread: there is no producer if the rank's first transfer takes everything that it sends, and no stager if
// the rank takes part in a single transfer.

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/outcome.hpp"
#include "sync/transfers.hpp"

namespace sparsecast {

/// Runs tasks in the order of submission, on a thread of its own or within submit(). Once a task has thrown, the later
/// ones are dropped. All functions but advance() are called by one thread, and none of them by a task.
class SerialExecutor {
 public:
  /// At most `max_queued` tasks wait behind the running task; with kInline there is no thread, and submit() runs the
  /// task. `what` begins the message of the error of a wait that reaches its deadline: "encoding of routes".
  SerialExecutor(std::string what, std::size_t max_queued);
  static constexpr std::size_t kInline = 0;
  /// Waits for the running task. Tasks that have not begun are dropped.
  ~SerialExecutor();
  SerialExecutor(const SerialExecutor&) = delete;
  SerialExecutor& operator=(const SerialExecutor&) = delete;

  /// Queues a task of one step or more, after waiting for room. Throws Error{kTimeout}, and drops the task, when there
  /// is no room by the deadline.
  void submit(std::function<void()> task, Deadline deadline, std::size_t steps = 1);
  /// Counts one more step as done; called by the running task. Steps that the task has not counted are done when it
  /// ends.
  void advance();
  /// Waits until the first `steps` submitted steps are done, or a task has failed. Returns whether these steps are all
  /// done; their writes are then visible to the calling thread. Throws Error{kTimeout}.
  bool wait_for(std::size_t steps, Deadline deadline);
  /// Waits until nothing is queued or running. Returns the exception of the task that failed, if one has. Throws
  /// Error{kTimeout}.
  const Outcome& wait_all(Deadline deadline);
  /// Returns the seconds for which tasks ran; valid after wait_all().
  double busy_seconds() const noexcept { return busy_seconds_; }

 private:
  void run();
  struct Task {
    std::function<void()> work;
    std::size_t end = 0;  ///< Steps of all tasks up to and including this one.
  };
  void run_task(const Task& task);
  /// Waits until met() returns true; the caller holds the lock.
  template <class Condition>
  void wait_until(std::unique_lock<std::mutex>& lock, Deadline deadline, const Condition& met);

  const std::string what_;
  const std::size_t max_queued_;

  std::mutex mutex_;  ///< Guards the members below, up to `busy_seconds_`.
  std::condition_variable changed_;
  std::deque<Task> queue_;
  std::size_t submitted_ = 0;  ///< Steps.
  std::size_t done_ = 0;       ///< Steps that have been done, including those of a task that threw later.
  bool running_ = false;
  bool stopped_ = false;
  Outcome outcome_;
  double busy_seconds_ = 0;

  std::jthread thread_;  ///< Started by the first submit().
};

/// Work of a rank, one function per step of a transfer.
struct TransferSteps {
  /// Publishes all own routes in one pass, on the producer's thread, in the order in which the transfers take them, and
  /// calls published() after each.
  std::function<void(const std::function<void()>& published)> publish;
  /// Returns the records of an own transfer, on the calling thread, once all its routes have been published.
  std::function<std::vector<Bytes>(const SyncTransfer& transfer)> records;
  /// Runs Transport::broadcast on the calling thread: the source passes its records, the others receive them.
  std::function<void(const SyncTransfer& transfer, std::vector<Bytes>& records)> broadcast;
  /// Stages the records of each transfer in order, on the stager's thread. Null on a rank that receives nothing.
  std::function<void(const SyncTransfer& transfer, std::vector<Bytes> records)> stage;
};

class TransferPipeline {
 public:
  /// Maximum number of transfers that wait to be staged. With one being staged and one on the wire, a rank holds the
  /// records of three transfers. One waiting transfer is enough to keep the stager busy while the next is received.
  static constexpr std::size_t kMostUnstaged = 1;

  /// Creates a pipeline that runs `transfers`, the transfers of this rank, in the given order. `steps` has the
  /// functions that do the work of each transfer. `transfers` must outlive the pipeline.
  TransferPipeline(const std::vector<SyncTransfer>& transfers, TransferSteps steps);
  /// Waits for the pass and the transfer in progress, drops the other transfers, and ends the threads.
  ~TransferPipeline() = default;

  /// Runs all transfers. Routes that cannot be published, or bytes that cannot be staged, stop none of the transfers,
  /// so that this rank takes part in all transfers that follow. A transfer with an unpublished route has no records.
  /// published() and staged() have the errors. Throws the errors of broadcast(), and Error{kTimeout}.
  void run(Deadline deadline);
  const Outcome& published() const noexcept { return published_; }
  const Outcome& staged() const noexcept { return staged_; }

  /// Return the seconds that TransferReport names; valid after run().
  double encode_seconds() const noexcept { return producer_.busy_seconds(); }
  double wire_seconds() const noexcept { return wire_seconds_; }
  double stage_seconds() const noexcept { return stager_.busy_seconds(); }

 private:
  void pass(const SyncTransfer& transfer, Deadline deadline);

  const std::vector<SyncTransfer>& transfers_;
  const std::size_t routes_;  ///< Number of own routes.
  TransferSteps steps_;
  std::size_t routes_due_ = 0;  ///< Number of own routes that must be published by the end of the current transfer.
  double wire_seconds_ = 0;
  Outcome published_;
  Outcome staged_;
  SerialExecutor producer_;
  SerialExecutor stager_;
};

}  // namespace sparsecast
