// SPDX-License-Identifier: Apache-2.0
#include "sharded/transfer_pipeline.hpp"

#include <fmt/format.h>

#include <algorithm>

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
  if (changed_.wait_until(lock, deadline, met)) return;
  throw Error(ErrorCode::kTimeout,
              fmt::format("{} was at {} of {} when the deadline passed", what_, done_, submitted_));
}

void SerialExecutor::submit(std::function<void()> task, Deadline deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  ++submitted_;
  if (max_queued_ == kInline) {
    lock.unlock();
    run_task(task);
    return;
  }
  if (!thread_.joinable()) thread_ = std::jthread([this] { run(); });
  wait_until(lock, deadline, [&] { return queue_.size() < max_queued_ || !outcome_.ok(); });
  if (!outcome_.ok()) return;
  queue_.push_back(std::move(task));
  changed_.notify_all();
}

bool SerialExecutor::wait_for(std::size_t tasks, Deadline deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  wait_until(lock, deadline, [&] { return done_ >= tasks || !outcome_.ok(); });
  return done_ >= tasks;
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
      const std::function<void()> task = std::move(queue_.front());
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
void SerialExecutor::run_task(const std::function<void()>& task) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!outcome_.ok()) return;
  }
  const Stopwatch watch;
  Outcome outcome = Outcome::of(task);
  const std::lock_guard<std::mutex> lock(mutex_);
  busy_seconds_ += watch.total();
  if (outcome.ok()) ++done_;
  outcome_ = std::move(outcome);
  changed_.notify_all();
}

namespace {

/// Returns `routes` in the order of the rank's own transfers; routes that no transfer takes come last.
std::vector<std::uint32_t> by_transfer(const std::vector<const Transfer*>& transfers, int rank,
                                       std::vector<std::uint32_t> routes) {
  auto rest = routes.begin();
  for (const Transfer* const transfer : transfers) {
    if (transfer->source != rank) continue;
    for (const std::uint32_t route : transfer->routes) {
      const auto found = std::find(rest, routes.end(), route);
      if (found != routes.end()) std::rotate(rest++, found, found + 1);
    }
  }
  return routes;
}

/// Returns how many routes may be encoded ahead of the wire.
std::size_t most_ahead(const std::vector<const Transfer*>& transfers, int rank, std::size_t routes) {
  if (transfers.empty()) return SerialExecutor::kInline;
  const Transfer& first = *transfers.front();
  return first.source == rank && first.routes.size() == routes ? SerialExecutor::kInline : routes;
}

}  // namespace

TransferPipeline::TransferPipeline(const std::vector<const Transfer*>& transfers, int rank,
                                   std::vector<std::uint32_t> routes, TransferSteps steps)
    : transfers_(transfers),
      rank_(rank),
      routes_(by_transfer(transfers, rank, std::move(routes))),
      steps_(std::move(steps)),
      producer_("encoding of routes", most_ahead(transfers, rank, routes_.size())),
      stager_("staging of transfers", transfers.size() > 1 ? kMostUnstaged : SerialExecutor::kInline) {}

void TransferPipeline::run(Deadline deadline) {
  for (const std::uint32_t route : routes_) producer_.submit([this, route] { steps_.publish(route); }, deadline);
  for (const Transfer* const transfer : transfers_) pass(*transfer, deadline);
  published_ = producer_.wait_all(deadline);
  staged_ = stager_.wait_all(deadline);
}

void TransferPipeline::pass(const Transfer& transfer, Deadline deadline) {
  const bool own = transfer.source == rank_;
  bool ready = false;
  if (own) ready = producer_.wait_for(routes_due_ += transfer.routes.size(), deadline);
  Stopwatch watch;
  std::vector<Bytes> records;
  if (ready) records = steps_.records(transfer);
  std::vector<Bytes> kept;  // The transport takes what it sends.
  if (own && steps_.stage) kept = records;
  steps_.broadcast(transfer, records);
  wire_seconds_ += watch.lap();
  if (!steps_.stage) return;
  if (own) records = std::move(kept);
  stager_.submit(
      [this, &transfer, records = std::move(records)]() mutable { steps_.stage(transfer, std::move(records)); },
      deadline);
}

}  // namespace sparsecast
