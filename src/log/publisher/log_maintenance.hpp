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
/// anchors. It has its own reader and writer; it shares only the store with the publishing thread. Thread-safe.
class LogMaintenance {
 public:
  /// Stores the arguments. The store and the mirror are used only after the first request().
  LogMaintenance(std::shared_ptr<ObjectStore> store, FileSystem& fs, LogTrust trust, LogPublisherOptions options);

  /// Asks the thread for another round of work, because there is a new version.
  void request();
  /// Waits until the rounds requested so far have ended, or until the time `until`. Returns whether they have ended.
  bool wait(std::chrono::steady_clock::time_point until);
  /// Returns the error with which the last round has ended; nullopt if that round succeeded, or if no round has ended
  /// yet.
  std::optional<Error> error() const;
  /// Makes run() return. A round that is running ends early, after the object on which it works.
  void stop();
  /// Runs rounds as they are requested, until stop() is called. The owner calls run() in a thread of its own.
  void run();

 private:
  struct Parts;

  void round();
  bool stopping() const;

  std::shared_ptr<ObjectStore> store_;
  FileSystem& fs_;
  LogTrust trust_;
  LogPublisherOptions options_;
  /// The mirror, the reader and the writer. Only run() uses them; it makes them in its first round.
  std::shared_ptr<Parts> parts_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t requested_ = 0;
  std::uint64_t finished_ = 0;
  bool stop_ = false;
  std::optional<Error> error_;
};

}  // namespace sparsecast
