// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "sparsecast/delta.hpp"
#include "sparsecast/delta_log.hpp"
#include "sparsecast/log_follower.hpp"

namespace sparsecast {

/// Prefix of the names of fetched objects in a follower's scratch directory. At its start, a follower removes the files
/// with this prefix that a crash left.
inline constexpr const char* kSpoolPrefix = "spool-";

/// Limits of a DeltaFetcher: the bytes of objects on the disk at a time, and the number of threads that fetch.
struct FetchLimits {
  std::uint64_t read_ahead_bytes = 0;
  int threads = 0;
};

/// Downloads to the local disk the deltas that lead from one version of a log to another (`path`, in that order), ahead
/// of their use and several at a time:
///
///     waiting --room for it, or next to be used--> fetching --> here --release()--> removed
///                                                      \--error--> rethrown by open()
///
/// Objects that are being fetched or are not yet released have at most `read_ahead_bytes` together; an object larger
/// than that is fetched alone. After a failure no further fetch begins. With 0 threads nothing is fetched ahead: open()
/// fetches. Waits are bounded, because every request has the store's deadline.
class DeltaFetcher {
 public:
  DeltaFetcher(LogReader& reader, FileSystem& fs, std::string scratch, std::vector<DeltaRef> path, FetchLimits limits,
               FollowerProgress progress);
  ~DeltaFetcher();
  DeltaFetcher(const DeltaFetcher&) = delete;
  DeltaFetcher& operator=(const DeltaFetcher&) = delete;

  /// Waits for object i of the path and returns it, opened; it is valid until release(i). Throws the error with which
  /// its fetching failed, or Error{kMixed} if its header does not have the versions of the path's delta. The unreleased
  /// objects up to `i` must fit within the read-ahead together, or `i` must be the first of them.
  const DeltaFile& open(std::size_t i);
  /// Closes the downloaded file of delta number `i` of the path and deletes it from the local disk. Deltas must be
  /// released in order.
  void release(std::size_t i);
  /// Returns whether objects i to j of the path, inclusive, are together within the read-ahead.
  bool fits(std::size_t i, std::size_t j) const;
  /// Returns the seconds that open() has waited, all calls together.
  double seconds_waited() const noexcept { return waited_; }

 private:
  enum class Step { kWaiting, kFetching, kHere, kFailed, kReleased };
  struct FetchSlot {
    Step step = Step::kWaiting;
    std::exception_ptr failure;
    std::optional<DeltaFile> file;
  };

  std::string path_of(std::size_t i) const;
  void fetch(std::size_t i);
  void work();
  bool may_start(std::size_t i) const;
  void remove_file(std::size_t i) noexcept;

  LogReader& reader_;
  FileSystem& fs_;
  const std::string scratch_;
  const std::vector<DeltaRef> path_;
  const FetchLimits limits_;
  const FollowerProgress progress_;
  std::uint64_t total_ = 0;
  double waited_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<FetchSlot> slots_;
  std::size_t next_ = 0;      ///< Number of the next object to fetch.
  std::size_t released_ = 0;  ///< Number of objects that are released, which are the first of the path.
  std::uint64_t held_ = 0;    ///< Bytes of the objects that are fetched or being fetched, and not released.
  /// Bytes of the objects that are fetched, released ones included.
  std::uint64_t done_ = 0;
  bool stopping_ = false;
  std::vector<std::jthread> threads_;
};

}  // namespace sparsecast
