#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>

#include "sparsecast/log_publisher.hpp"

namespace sparsecast {

/// What a publisher does for readers in a thread of its own: keeps the mirror up to date, merges deltas and writes
/// anchors. It has a reader and a writer of its own and shares nothing with publishing but the store. Thread-safe.
class LogMaintenance {
 public:
  /// Nothing is read or written before the first request.
  LogMaintenance(std::shared_ptr<ObjectStore> store, FileSystem& fs, LogTrust trust, LogPublisherOptions options);

  /// There is a new version: another round is due.
  void request();
  /// False when the rounds that were asked for until now are not over by then.
  bool wait(std::chrono::steady_clock::time_point until);
  std::optional<Error> error() const;
  /// The round that runs ends at its next object.
  void stop();
  /// The thread's body: rounds, as they are asked for, until stop().
  void run();

 private:
  struct Parts;

  void round();
  bool stopping() const;

  std::shared_ptr<ObjectStore> store_;
  FileSystem& fs_;
  LogTrust trust_;
  LogPublisherOptions options_;
  std::shared_ptr<Parts> parts_;  ///< Of the thread alone; made by the first round.

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t requested_ = 0;
  std::uint64_t finished_ = 0;
  bool stop_ = false;
  std::optional<Error> error_;
};

}  // namespace sparsecast
