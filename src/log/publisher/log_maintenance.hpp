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
/// anchors. It has a reader and a writer of its own and shares nothing with publishing but the store. Thread-safe.
class LogMaintenance {
 public:
  /// Does not read or write anything before the first request.
  LogMaintenance(std::shared_ptr<ObjectStore> store, FileSystem& fs, LogTrust trust, LogPublisherOptions options);

  /// Requests another round, because there is a new version.
  void request();
  /// Waits for the end of the rounds requested so far. Returns false when they have not ended by `until`.
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
  std::shared_ptr<Parts> parts_;  ///< Used by the thread alone; made in its first round.

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t requested_ = 0;
  std::uint64_t finished_ = 0;
  bool stop_ = false;
  std::optional<Error> error_;
};

}  // namespace sparsecast
