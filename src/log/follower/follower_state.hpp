// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "sparsecast/delta_log.hpp"

namespace sparsecast {

/// State that a follower keeps across restarts (docs/following.md, "State file").
struct FollowerState {
  struct Position {
    std::uint64_t version = 0;
    StateDigest digest;
    friend bool operator==(const Position&, const Position&) = default;
  };
  /// Highest commit seen so far. Only its version, hash, epoch and keys are stored.
  LogCommit seen;
  std::optional<Position> target;         ///< Version and digest of the target after the last finished change.
  std::optional<std::uint64_t> notified;  ///< The last version with a successful notification.
};

/// Encodes the state as an unsigned record of kind "follower", in the form of a log's records (docs/delta-log.md,
/// "Records").
Bytes pack(const FollowerState& state);
/// Decodes a record of pack(). Throws Error{kCorrupt | kReplayed | kUnsupported}.
FollowerState parse_follower_state(ConstBytes record, const std::string& name);

/// Returns nullopt if the file does not exist. Throws Error{kIo}, and Error{kCorrupt} with advice for a damaged file.
std::optional<FollowerState> load_follower_state(FileSystem& fs, const std::string& path);
/// Writes the state atomically and durably.
void save_follower_state(FileSystem& fs, const std::string& path, const FollowerState& state);
/// Removes temporary files that a crash has left next to the state file.
void remove_stale_state(FileSystem& fs, const std::string& path);

}  // namespace sparsecast
