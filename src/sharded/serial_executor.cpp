// SPDX-License-Identifier: Apache-2.0
#include "sharded/serial_executor.hpp"

#include <fmt/format.h>

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

}  // namespace sparsecast
