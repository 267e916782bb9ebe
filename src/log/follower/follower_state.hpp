// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "sparsecast/delta_log.hpp"

namespace sparsecast {

/// What a follower remembers across restarts, in its state file (docs/following.md, "State file").
struct FollowerState {
  struct Position {
    std::uint64_t version = 0;
    StateDigest digest;
    friend bool operator==(const Position&, const Position&) = default;
  };
  /// The highest commit that the follower has seen. Only its version, hash, epoch and keys are stored.
  LogCommit seen;
  /// Version and digest of the target after the last change of it that was finished; nullopt if they are not known.
  std::optional<Position> target;
  /// The last version that was announced successfully (FollowerOptions::notification); nullopt if there is none.
  std::optional<std::uint64_t> notified;
};

/// Returns the state as an unsigned record of kind "follower", in the form of a log's records (docs/delta-log.md,
/// "Records").
Bytes pack(const FollowerState& state);
/// Returns the state that pack() has encoded. Throws Error{kCorrupt | kReplayed | kUnsupported} that names `name` for
/// any other bytes.
FollowerState parse_follower_state(ConstBytes record, const std::string& name);

/// Returns the state in the file at `path`, or nullopt if the file does not exist. Throws Error{kIo}, and
/// Error{kCorrupt} with advice for a damaged file.
std::optional<FollowerState> load_follower_state(FileSystem& fs, const std::string& path);
/// Writes the state to the file at `path`, atomically and durably.
void save_follower_state(FileSystem& fs, const std::string& path, const FollowerState& state);
/// Removes temporary files that a crash has left next to the state file `path`.
void remove_stale_state(FileSystem& fs, const std::string& path);

}  // namespace sparsecast
