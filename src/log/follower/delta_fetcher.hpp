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

/// Prefix of the names of fetched objects in the scratch directory; files with it that a crash left are removed at the
/// next start.
inline constexpr const char* kSpoolPrefix = "spool-";

struct FetchLimits {
  std::uint64_t read_ahead_bytes = 0;
  int threads = 0;
};

/// Brings the deltas of a path onto the disk, several at a time and ahead of their use, in the path's order:
///
///     waiting --room for it, or next to be used--> fetching --> here --release()--> removed
///                                                      \--error--> rethrown by open()
///
/// At most `read_ahead_bytes` are fetched or being fetched and not released, or one object if that is larger. With 0
/// threads open() fetches. Every request has the store's deadline, and no other wait is left.
class DeltaFetcher {
 public:
  DeltaFetcher(LogReader& reader, FileSystem& fs, std::string scratch, std::vector<DeltaRef> path, FetchLimits limits,
               FollowerProgress progress);
  ~DeltaFetcher();
  DeltaFetcher(const DeltaFetcher&) = delete;
  DeltaFetcher& operator=(const DeltaFetcher&) = delete;

  /// Waits for object i and opens it: header and commit are those of the path's edge (Error{kMixed} otherwise). Of
  /// those not released, objects up to `i` together must be within the read-ahead, or `i` be the first of them. Valid
  /// until release(i).
  const DeltaFile& open(std::size_t i);
  /// Removes object i after its use. Objects are released in order.
  void release(std::size_t i);
  /// Returns whether objects i to j fit on the disk together.
  bool fits(std::size_t i, std::size_t j) const;
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
  std::size_t next_ = 0;      ///< To be fetched.
  std::size_t released_ = 0;  ///< So many first ones.
  std::uint64_t held_ = 0;    ///< Bytes of those fetched or being fetched.
  std::uint64_t done_ = 0;
  bool stopping_ = false;
  std::vector<std::jthread> threads_;
};

}  // namespace sparsecast
