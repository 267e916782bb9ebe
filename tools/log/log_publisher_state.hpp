#pragma once

// Who a publisher is across processes: each `sparsecast log publish` goes on in the epoch of the one before it.

#include <optional>
#include <string>

#include "sparsecast/delta_log.hpp"
#include "tools/common/cli.hpp"

namespace sparsecast::tools {

/// What the file holds. It is written before the commit that claims an epoch by it: after a crash between the two, it
/// matches no commit and nothing is lost; written after, a publisher could forget an epoch that it has begun.
struct PublisherState {
  StreamId stream;
  Hash128 publisher;

  /// A publisher that there never was before.
  static PublisherState random(const StreamId& stream);
  /// Nullopt when there is no such file. Throws Error{kIo | kCorrupt} with the path.
  static std::optional<PublisherState> load(FileSystem& fs, const std::string& path);
  void save(FileSystem& fs, const std::string& path) const;

  /// The newest commit is this publisher's: it may go on without a takeover.
  bool leads(const LogCommit& head) const { return head.stream == stream && head.publisher == publisher; }
};

/// Where the state lies unless the caller says otherwise: beside `weights` (the base, the mirror or the delta that is
/// published), under a name that the log's location gives.
std::string publisher_state_path(FileSystem& fs, const std::string& log, const std::string& weights);

StreamId random_stream();

}  // namespace sparsecast::tools
