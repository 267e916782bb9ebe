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

/// Runs tasks in the order of submission, on a thread of its own or within submit(). A task counts as one or more
/// steps. Once a task has thrown, later tasks are dropped. The running task calls advance(). All other functions must
/// be called by one thread, which is not the thread of the tasks.
class SerialExecutor {
 public:
  /// Creates an executor in which at most `max_queued` tasks wait behind the running task. If `max_queued` is kInline,
  /// there is no thread, and submit() runs the task. `what` names the tasks in the message of Error{kTimeout}, for
  /// example "encoding of routes".
  SerialExecutor(std::string what, std::size_t max_queued);
  static constexpr std::size_t kInline = 0;
  /// Waits for the running task. Tasks that have not begun are dropped.
  ~SerialExecutor();
  SerialExecutor(const SerialExecutor&) = delete;
  SerialExecutor& operator=(const SerialExecutor&) = delete;

  /// Queues a task that counts as `steps` steps, after waiting for room in the queue. When there is no room by the
  /// deadline, drops the task and throws Error{kTimeout}.
  void submit(std::function<void()> task, Deadline deadline, std::size_t steps = 1);
  /// Counts one more step as done; called by the running task. Steps that the task has not counted are done when it
  /// ends.
  void advance();
  /// Waits until the first `steps` submitted steps are done, or a task has failed. Returns true when all these steps
  /// are done; what they wrote is then visible to the calling thread. Throws Error{kTimeout} at the deadline.
  bool wait_for(std::size_t steps, Deadline deadline);
  /// Waits until no task is queued or running. Returns the exception of the task that failed, or a success. Throws
  /// Error{kTimeout} at the deadline.
  const Outcome& wait_all(Deadline deadline);
  /// Returns the seconds for which tasks ran; valid after wait_all().
  double busy_seconds() const noexcept { return busy_seconds_; }

 private:
  void run();
  struct Task {
    std::function<void()> work;
    std::size_t end = 0;  ///< Number of steps of all tasks up to this one, its own steps included.
  };
  void run_task(const Task& task);
  /// Waits until met() returns true; the caller holds `lock`. Throws Error{kTimeout} at the deadline.
  template <class Condition>
  void wait_until(std::unique_lock<std::mutex>& lock, Deadline deadline, const Condition& met);

  const std::string what_;
  const std::size_t max_queued_;

  std::mutex mutex_;  ///< Guards the members below, up to `busy_seconds_`.
  std::condition_variable changed_;
  std::deque<Task> queue_;
  std::size_t submitted_ = 0;  ///< Number of steps of all submitted tasks.
  std::size_t done_ = 0;       ///< Number of steps that are done, including those of a task that threw later.
  bool running_ = false;
  bool stopped_ = false;
  Outcome outcome_;
  double busy_seconds_ = 0;

  std::jthread thread_;  ///< Thread that runs the tasks; started by the first submit().
};

/// Functions that do the work of a rank in its transfers, one for each step of the work.
struct TransferSteps {
  /// Publishes all routes of this rank in one pass, on the producer's thread, in the order in which the transfers take
  /// them. Calls published() after each route.
  std::function<void(const std::function<void()>& published)> publish;
  /// Returns the records of a transfer whose source is this rank. Runs on the thread of run(), once all routes of the
  /// transfer have been published.
  std::function<std::vector<Bytes>(const SyncTransfer& transfer)> records;
  /// Runs Transport::broadcast for a transfer, on the thread of run(): the source passes `records`, other ranks receive
  /// them.
  std::function<void(const SyncTransfer& transfer, std::vector<Bytes>& records)> broadcast;
  /// Stages the records of a transfer, on the stager's thread, one transfer after another. Null on a rank that receives
  /// nothing.
  std::function<void(const SyncTransfer& transfer, std::vector<Bytes> records)> stage;
};

/// Runs the transfers of one rank over channels that carry records in host memory. The routes of later transfers are
/// encoded, and the records of earlier ones are staged, in other threads meanwhile.
class TransferPipeline {
 public:
  /// Maximum number of transfers that wait to be staged. With one being staged and one on the wire, a rank holds the
  /// records of three transfers. One waiting transfer is enough to keep the stager busy while the next is received.
  static constexpr std::size_t kMostUnstaged = 1;

  /// Creates a pipeline that runs `transfers`, the transfers of this rank, in the given order. `steps` has the
  /// functions that do the work of each transfer. `transfers` must outlive the pipeline.
  TransferPipeline(const std::vector<SyncTransfer>& transfers, TransferSteps steps);
  /// Waits for the publishing pass and for the transfer that is being staged, drops the transfers that wait to be
  /// staged, and ends the threads.
  ~TransferPipeline() = default;

  /// Runs all transfers. When a route cannot be published, or records cannot be staged, the transfers go on, so that no
  /// other rank waits for this one. A transfer with an unpublished route has no records. published() and staged() then
  /// return the errors. Throws the errors of broadcast(), and Error{kTimeout}.
  void run(Deadline deadline);
  /// Returns the failure to publish this rank's routes, or a success.
  const Outcome& published() const noexcept { return published_; }
  /// Returns the failure to stage received records, or a success.
  const Outcome& staged() const noexcept { return staged_; }

  /// Returns the seconds spent on publishing routes (TransferReport::encode_seconds); valid after run().
  double encode_seconds() const noexcept { return producer_.busy_seconds(); }
  /// Returns the seconds spent on collecting and broadcasting records (TransferReport::wire_seconds); valid after
  /// run().
  double wire_seconds() const noexcept { return wire_seconds_; }
  /// Returns the seconds spent on staging records (TransferReport::stage_seconds); valid after run().
  double stage_seconds() const noexcept { return stager_.busy_seconds(); }

 private:
  void pass(const SyncTransfer& transfer, Deadline deadline);

  const std::vector<SyncTransfer>& transfers_;
  const std::size_t routes_;  ///< Number of routes that this rank sends.
  TransferSteps steps_;
  /// Number of this rank's routes that must be published by the end of the current transfer.
  std::size_t routes_due_ = 0;
  double wire_seconds_ = 0;
  Outcome published_;
  Outcome staged_;
  SerialExecutor producer_;
  SerialExecutor stager_;
};

}  // namespace sparsecast
