#pragma once

#include <optional>
#include <string>

#include "sparsecast/delta_log.hpp"

namespace sparsecast {

/// What a follower remembers over restarts (docs/following.md, "State file").
struct FollowerState {
  struct Position {
    std::uint64_t version = 0;
    StateDigest digest;
    friend bool operator==(const Position&, const Position&) = default;
  };
  /// The highest commit that was seen: place, hash, epoch and keys; nothing else of it is kept.
  LogCommit seen;
  std::optional<Position> target;         ///< Where the target was after the last change that was finished.
  std::optional<std::uint64_t> notified;  ///< The last version that a notification has succeeded for.
};

/// A record of kind "follower" in the form of all records of a log (docs/delta-log.md, "Records"), unsigned.
Bytes pack(const FollowerState& state);
/// Throws Error{kCorrupt | kReplayed | kUnsupported}.
FollowerState parse_follower_state(ConstBytes record, const std::string& name);

/// Nullopt when there is no such file. Throws Error{kIo}, and for a damaged file Error{kCorrupt} that says what to do.
std::optional<FollowerState> load_follower_state(FileSystem& fs, const std::string& path);
/// Atomic and durable.
void save_follower_state(FileSystem& fs, const std::string& path, const FollowerState& state);
/// Removes temporary files that a crash has left beside it.
void remove_stale_state(FileSystem& fs, const std::string& path);

}  // namespace sparsecast
