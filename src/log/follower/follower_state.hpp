// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "sparsecast/delta_log.hpp"

namespace sparsecast {

/// Facts that a follower remembers across restarts, in its state file (docs/following.md, "State file").
struct FollowerState {
  struct Position {
    std::uint64_t version = 0;
    StateDigest digest;
    friend bool operator==(const Position&, const Position&) = default;
  };
  /// The commit with the highest version that the follower has seen. The state file has only some of its fields:
  /// stream, version, hash, epoch, publisher, table, digest and keys.
  LogCommit seen;
  /// Version and digest of the target after its last finished change; nullopt if they are not known.
  std::optional<Position> target;
  /// The last version that was announced successfully (FollowerOptions::notification); nullopt if none was.
  std::optional<std::uint64_t> notified;
};

/// Returns the state as an unsigned record of kind "follower", in the same form as a log's records (docs/delta-log.md,
/// "Records").
Bytes pack(const FollowerState& state);
/// Returns the state that pack() has encoded in `record`. Throws Error{kCorrupt | kReplayed | kUnsupported} naming
/// `name` for any other bytes.
FollowerState parse_follower_state(ConstBytes record, const std::string& name);

/// Returns the state in the file at `path`, or nullopt if the file does not exist. Throws Error{kIo} if the file cannot
/// be read, and Error{kCorrupt} with advice for the user if the file is damaged.
std::optional<FollowerState> load_follower_state(FileSystem& fs, const std::string& path);
/// Replaces the file at `path` by one that holds the state, atomically and durably.
void save_follower_state(FileSystem& fs, const std::string& path, const FollowerState& state);
/// Removes the temporary files that a crash has left next to the state file at `path`.
void remove_stale_state(FileSystem& fs, const std::string& path);

}  // namespace sparsecast
