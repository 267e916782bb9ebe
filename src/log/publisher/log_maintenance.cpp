// SPDX-License-Identifier: Apache-2.0
#include "log/publisher/log_maintenance.hpp"

#include <exception>

#include "core/interrupt.hpp"
#include "sparsecast/error.hpp"
#include "sparsecast/log_follower.hpp"

namespace sparsecast {
namespace {

constexpr int kMostMerges = 1024;  ///< Largest number of merges in one round; the next round continues.

}  // namespace

/// Mirror of the log, and the reader and the writer that maintenance uses.
struct LogMaintenance::Parts {
  LogReader reader;
  LogWriter writer;
  LogFollower follower;
  std::string scratch;

  Parts(const std::shared_ptr<ObjectStore>& store, FileSystem& fs, const LogTrust& trust,
        const LogPublisherOptions& options, std::unique_ptr<FollowerTarget> target,
        const std::string& scratch_directory)
      : reader(store, trust),
        writer(reader, options.writer),
        follower(store, fs, scratch_directory + "/state", std::move(target), follower_options(trust, options)),
        scratch(options.scratch.empty() ? scratch_directory : options.scratch) {}

  static FollowerOptions follower_options(const LogTrust& trust, const LogPublisherOptions& options) {
    FollowerOptions made;
    made.trust = trust;
    made.fetch_threads = std::max(1, options.writer.threads);
    return made;
  }
};

LogMaintenance::LogMaintenance(std::shared_ptr<ObjectStore> store, FileSystem& fs, LogTrust trust,
                               LogPublisherOptions options)
    : store_(std::move(store)), fs_(fs), trust_(std::move(trust)), options_(std::move(options)) {}

void LogMaintenance::request() {
  const std::lock_guard lock(mutex_);
  ++requested_;
  changed_.notify_all();
}

bool LogMaintenance::wait(std::chrono::steady_clock::time_point until) {
  std::unique_lock lock(mutex_);
  const std::uint64_t round = requested_;
  return wait_or_interrupt(changed_, lock, until, [&] { return finished_ >= round; });
}

std::optional<Error> LogMaintenance::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

void LogMaintenance::stop() {
  const std::lock_guard lock(mutex_);
  stop_ = true;
  changed_.notify_all();
}

bool LogMaintenance::stopping() const {
  const std::lock_guard lock(mutex_);
  return stop_;
}

void LogMaintenance::round() {
  if (!parts_) {
    CheckpointTargetOptions mirror;
    mirror.threads = options_.writer.threads;
    mirror.keep_plain = options_.merge;
    std::unique_ptr<FollowerTarget> target = make_checkpoint_target(fs_, options_.mirror, mirror);
    const std::string scratch = target->scratch_directory();
    parts_ = std::make_shared<Parts>(store_, fs_, trust_, options_, std::move(target), scratch);
  }
  const FollowReport report = parts_->follower.step();
  if (options_.merge) {
    const MergeMirror mirror{options_.mirror, report.version};
    // Merges one span at a time, so that stop() takes effect in between. The limit ends the round even if the store
    // loses the merged deltas.
    for (int i = 0; i < kMostMerges && !stopping(); ++i) {
      if (parts_->writer.compact(fs_, parts_->scratch, 1, mirror).merged == 0) break;
    }
  }
  if (stopping() || !options_.anchors) return;
  if (parts_->writer.anchor_due()) parts_->writer.write_anchor(fs_, options_.mirror, report.version);
}

void LogMaintenance::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    // Needs no timeout: request() or stop() wakes the thread, and every owner calls stop().
    changed_.wait(lock, [&] { return stop_ || finished_ < requested_; });
    if (stop_) return;
    const std::uint64_t round_number = requested_;
    lock.unlock();
    std::optional<Error> error;
    try {
      round();
    } catch (const Error& thrown) {
      error = thrown;
    } catch (const std::exception& thrown) {
      error = Error(ErrorCode::kIo, thrown.what(), options_.mirror);
    }
    if (error) parts_.reset();  // Their state may be stale; the next round recovers the mirror.
    lock.lock();
    error_ = std::move(error);
    finished_ = round_number;
    changed_.notify_all();
  }
}

}  // namespace sparsecast
