// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>

#include "sparsecast/log_publisher.hpp"

namespace sparsecast {

/// Background work of a publisher for its readers: a thread keeps the mirror up to date, merges deltas and writes
/// anchors. It has its own reader and writer, and shares only the store with publishing. Thread-safe.
class LogMaintenance {
 public:
  /// Neither reads nor writes before the first request().
  LogMaintenance(std::shared_ptr<ObjectStore> store, FileSystem& fs, LogTrust trust, LogPublisherOptions options);

  /// Requests another round, because there is a new version.
  void request();
  /// Waits until the rounds requested so far have ended. Returns false if they have not ended by `until`.
  bool wait(std::chrono::steady_clock::time_point until);
  std::optional<Error> error() const;
  /// Ends the current round at its next object.
  void stop();
  /// Runs rounds on request until stop(); the body of the thread.
  void run();

 private:
  struct Parts;

  void round();
  bool stopping() const;

  std::shared_ptr<ObjectStore> store_;
  FileSystem& fs_;
  LogTrust trust_;
  LogPublisherOptions options_;
  std::shared_ptr<Parts> parts_;  ///< Used only by the thread, which makes it in its first round.

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t requested_ = 0;
  std::uint64_t finished_ = 0;
  bool stop_ = false;
  std::optional<Error> error_;
};

}  // namespace sparsecast
