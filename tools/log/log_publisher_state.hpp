// SPDX-License-Identifier: Apache-2.0
#pragma once

// Identity of a publisher across processes: each `sparsecast log publish` continues the epoch of the one before it.

#include <optional>
#include <string>

#include "sparsecast/delta_log.hpp"
#include "tools/common/cli.hpp"

namespace sparsecast::tools {

/// What the state file of a publisher holds. It is written before the commit that claims its epoch: after a crash
/// between the two, it matches no commit, and nothing is lost. If it were written after the commit, a publisher could
/// forget an epoch that it has begun.
struct PublisherState {
  StreamId stream;
  Hash128 publisher;

  /// Returns the state of a new publisher.
  static PublisherState random(const StreamId& stream);
  /// Returns the state in the file at `path`, or nullopt if there is none. Throws Error{kIo} or {kCorrupt} naming the
  /// path.
  static std::optional<PublisherState> load(FileSystem& fs, const std::string& path);
  void save(FileSystem& fs, const std::string& path) const;

  /// Returns whether the newest commit is that of this publisher, which may then continue without a takeover.
  bool leads(const LogCommit& head) const { return head.stream == stream && head.publisher == publisher; }
};

/// Returns the default path of the state file: beside `weights` (the base, the mirror or the delta that is published),
/// under a name derived from the location of the log.
std::string publisher_state_path(FileSystem& fs, const std::string& log, const std::string& weights);

StreamId random_stream();

}  // namespace sparsecast::tools
