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

/// Prefix of the file names of fetched objects in a follower's scratch directory. When a follower starts, it removes
/// the files with this prefix, which a crash may have left.
inline constexpr const char* kSpoolPrefix = "spool-";

/// Limits of a DeltaFetcher: the number of bytes of objects on the disk at a time, and the number of threads that
/// fetch.
struct FetchLimits {
  std::uint64_t read_ahead_bytes = 0;
  int threads = 0;
};

/// Downloads the deltas that lead from one version of a log to another to the local disk. It fetches them in the order
/// of `path`, before they are needed, and several at a time:
///
///     waiting --room for it, or next to be used--> fetching --> here --release()--> removed
///                                                      \--error--> rethrown by open()
///
/// Objects that are being fetched or are not yet released have at most `read_ahead_bytes` bytes in total; a larger
/// object is fetched alone. After a failure, no further fetch begins. With 0 threads, open() fetches each object when
/// it is needed. Waits are bounded, because every request has the store's deadline.
class DeltaFetcher {
 public:
  DeltaFetcher(LogReader& reader, FileSystem& fs, std::string scratch, std::vector<DeltaRef> path, FetchLimits limits,
               FollowerProgress progress);
  ~DeltaFetcher();
  DeltaFetcher(const DeltaFetcher&) = delete;
  DeltaFetcher& operator=(const DeltaFetcher&) = delete;

  /// Waits until object number `i` of the path is here, opens and returns it; it is valid until release(i). Throws
  /// the error with which fetching has failed, or Error{kMixed} if the versions in the object's header differ from
  /// those in the path. All unreleased objects up to `i` must together fit into `read_ahead_bytes`, or `i` must be the
  /// first of them.
  const DeltaFile& open(std::size_t i);
  /// Closes object number `i` of the path and deletes its file from the local disk. Objects must be released in order.
  void release(std::size_t i);
  /// Returns whether objects `i` to `j` of the path, inclusive, together fit into `read_ahead_bytes`.
  bool fits(std::size_t i, std::size_t j) const;
  /// Returns the total number of seconds that calls of open() have waited.
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
  std::size_t next_ = 0;      ///< Number, in the path, of the next object to fetch.
  std::size_t released_ = 0;  ///< Number of objects that are released. They are the first objects of the path.
  /// Total size in bytes of the objects that the threads have fetched or are fetching, without the released ones.
  std::uint64_t held_ = 0;
  /// Total size in bytes of the objects whose fetching has ended, the released and the failed ones included.
  std::uint64_t done_ = 0;
  bool stopping_ = false;
  std::vector<std::jthread> threads_;
};

}  // namespace sparsecast
