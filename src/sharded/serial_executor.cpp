#include "sharded/serial_executor.hpp"

#include <fmt/format.h>

#include "sparsecast/error.hpp"

namespace sparsecast {

SerialExecutor::SerialExecutor(std::string what, std::size_t most_waiting) : what_(std::move(what)), most_waiting_(most_waiting) {}

SerialExecutor::~SerialExecutor() {
  const std::lock_guard<std::mutex> lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

template <class Condition>
void SerialExecutor::wait_until(std::unique_lock<std::mutex>& lock, Deadline deadline, const Condition& met) {
  if (changed_.wait_until(lock, deadline, met)) return;
  throw Error(ErrorCode::kTimeout, fmt::format("{} was at {} of {} when the deadline passed", what_, done_, given_));
}

void SerialExecutor::add(std::function<void()> task, Deadline deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  ++given_;
  if (most_waiting_ == kAtOnce) {
    lock.unlock();
    perform(task);
    return;
  }
  if (!thread_.joinable()) thread_ = std::jthread([this] { run(); });
  wait_until(lock, deadline, [&] { return waiting_.size() < most_waiting_ || !outcome_.ok(); });
  if (!outcome_.ok()) return;
  waiting_.push_back(std::move(task));
  changed_.notify_all();
}

bool SerialExecutor::wait_for(std::size_t tasks, Deadline deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  wait_until(lock, deadline, [&] { return done_ >= tasks || !outcome_.ok(); });
  return done_ >= tasks;
}

const Outcome& SerialExecutor::wait_for_all(Deadline deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  wait_until(lock, deadline, [&] { return waiting_.empty() && !at_work_; });
  return outcome_;
}

void SerialExecutor::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopped_ || !waiting_.empty(); });
    if (stopped_) return;
    {
      // Gone, with what it holds, before the next one may be given.
      const std::function<void()> task = std::move(waiting_.front());
      waiting_.pop_front();
      at_work_ = true;
      changed_.notify_all();
      lock.unlock();
      perform(task);
    }
    lock.lock();
    at_work_ = false;
    changed_.notify_all();
  }
}

/// Without the lock.
void SerialExecutor::perform(const std::function<void()>& task) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!outcome_.ok()) return;
  }
  const Stopwatch watch;
  Outcome outcome = Outcome::of(task);
  const std::lock_guard<std::mutex> lock(mutex_);
  seconds_ += watch.total();
  if (outcome.ok()) ++done_;
  outcome_ = std::move(outcome);
  changed_.notify_all();
}

}  // namespace sparsecast
