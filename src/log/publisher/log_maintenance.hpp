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
  /// Neither reads nor writes the store or the mirror; that begins with the first request().
  LogMaintenance(std::shared_ptr<ObjectStore> store, FileSystem& fs, LogTrust trust, LogPublisherOptions options);

  /// Asks the thread for another round, because there is a new version.
  void request();
  /// Waits until the rounds requested so far have ended. Returns whether they have ended by `until`.
  bool wait(std::chrono::steady_clock::time_point until);
  /// Returns the error with which the last round ended; nullopt if it succeeded, or if no round has ended.
  std::optional<Error> error() const;
  /// Makes run() return; a round that is running ends after the object that it works on.
  void stop();
  /// Runs rounds as they are requested, until stop(). The owner calls it in a thread.
  void run();

 private:
  struct Parts;

  void round();
  bool stopping() const;

  std::shared_ptr<ObjectStore> store_;
  FileSystem& fs_;
  LogTrust trust_;
  LogPublisherOptions options_;
  /// The mirror, the reader and the writer. Only run() uses them, which makes them in its first round.
  std::shared_ptr<Parts> parts_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t requested_ = 0;
  std::uint64_t finished_ = 0;
  bool stop_ = false;
  std::optional<Error> error_;
};

}  // namespace sparsecast
