// SPDX-License-Identifier: Apache-2.0
#include "sync/transfer_pipeline.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/interrupt.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {

SerialExecutor::SerialExecutor(std::string what, std::size_t max_queued)
    : what_(std::move(what)), max_queued_(max_queued) {}

SerialExecutor::~SerialExecutor() {
  const std::lock_guard<std::mutex> lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

template <class Condition>
void SerialExecutor::wait_until(std::unique_lock<std::mutex>& lock, Deadline deadline, const Condition& met) {
  if (wait_or_interrupt(changed_, lock, deadline, met)) return;
  throw Error(ErrorCode::kTimeout,
              fmt::format("{} was at {} of {} when the deadline passed", what_, done_, submitted_));
}

void SerialExecutor::submit(std::function<void()> task, Deadline deadline, std::size_t steps) {
  std::unique_lock<std::mutex> lock(mutex_);
  submitted_ += steps;
  const std::size_t end = submitted_;
  if (max_queued_ == kInline) {
    lock.unlock();
    run_task({std::move(task), end});
    return;
  }
  if (!thread_.joinable()) thread_ = std::jthread([this] { run(); });
  wait_until(lock, deadline, [&] { return queue_.size() < max_queued_ || !outcome_.ok(); });
  if (!outcome_.ok()) return;
  queue_.push_back({std::move(task), end});
  changed_.notify_all();
}

void SerialExecutor::advance() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++done_;
  changed_.notify_all();
}

bool SerialExecutor::wait_for(std::size_t steps, Deadline deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  wait_until(lock, deadline, [&] { return done_ >= steps || !outcome_.ok(); });
  return done_ >= steps;
}

const Outcome& SerialExecutor::wait_all(Deadline deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  wait_until(lock, deadline, [&] { return queue_.empty() && !running_; });
  return outcome_;
}

void SerialExecutor::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopped_ || !queue_.empty(); });
    if (stopped_) return;
    {
      // The task and what it holds are destroyed before wait_all() can return.
      const Task task = std::move(queue_.front());
      queue_.pop_front();
      running_ = true;
      changed_.notify_all();
      lock.unlock();
      run_task(task);
    }
    lock.lock();
    running_ = false;
    changed_.notify_all();
  }
}

/// Runs a task; the caller does not hold the lock.
void SerialExecutor::run_task(const Task& task) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!outcome_.ok()) return;
  }
  const Stopwatch watch;
  Outcome outcome = Outcome::of(task.work);
  const std::lock_guard<std::mutex> lock(mutex_);
  busy_seconds_ += watch.total();
  if (outcome.ok()) done_ = task.end;
  outcome_ = std::move(outcome);
  changed_.notify_all();
}

namespace {

std::size_t own_routes(const std::vector<SyncTransfer>& transfers) {
  std::size_t routes = 0;
  for (const SyncTransfer& transfer : transfers) routes += transfer.own ? transfer.routes.size() : 0;
  return routes;
}

/// Returns the queue size for the publishing pass: inline where the first transfer takes all routes that the pass
/// publishes.
std::size_t room_for_pass(const std::vector<SyncTransfer>& transfers) {
  if (transfers.empty()) return SerialExecutor::kInline;
  const SyncTransfer& first = transfers.front();
  return first.own && first.routes.size() == own_routes(transfers) ? SerialExecutor::kInline : 1;
}

}  // namespace

TransferPipeline::TransferPipeline(const std::vector<SyncTransfer>& transfers, TransferSteps steps)
    : transfers_(transfers),
      routes_(own_routes(transfers)),
      steps_(std::move(steps)),
      producer_("encoding of routes", room_for_pass(transfers)),
      stager_("staging of transfers", transfers.size() > 1 ? kMostUnstaged : SerialExecutor::kInline) {}

void TransferPipeline::run(Deadline deadline) {
  if (routes_ != 0) {
    producer_.submit([this] { steps_.publish([this] { producer_.advance(); }); }, deadline, routes_);
  }
  for (const SyncTransfer& transfer : transfers_) pass(transfer, deadline);
  published_ = producer_.wait_all(deadline);
  staged_ = stager_.wait_all(deadline);
}

void TransferPipeline::pass(const SyncTransfer& transfer, Deadline deadline) {
  bool ready = false;
  if (transfer.own) ready = producer_.wait_for(routes_due_ += transfer.routes.size(), deadline);
  Stopwatch watch;
  std::vector<Bytes> records;
  if (ready) records = steps_.records(transfer);
  std::vector<Bytes> kept;  // The transport takes ownership of the records that it sends.
  if (transfer.own && steps_.stage) kept = records;
  steps_.broadcast(transfer, records);
  wire_seconds_ += watch.lap();
  if (!steps_.stage) return;
  if (transfer.own) records = std::move(kept);
  stager_.submit(
      [this, &transfer, records = std::move(records)]() mutable { steps_.stage(transfer, std::move(records)); },
      deadline);
}

}  // namespace sparsecast
