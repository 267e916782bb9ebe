// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "sparsecast/delta_log.hpp"

namespace sparsecast {

/// State that a follower keeps over restarts (docs/following.md, "State file").
struct FollowerState {
  struct Position {
    std::uint64_t version = 0;
    StateDigest digest;
    friend bool operator==(const Position&, const Position&) = default;
  };
  /// Highest commit seen so far: only its place, hash, epoch and keys are kept.
  LogCommit seen;
  std::optional<Position> target;         ///< Version and digest of the target after the last finished change.
  std::optional<std::uint64_t> notified;  ///< The last version that a notification has succeeded for.
};

/// A record of kind "follower" in the form of all records of a log (docs/delta-log.md, "Records"), unsigned.
Bytes pack(const FollowerState& state);
/// Throws Error{kCorrupt | kReplayed | kUnsupported}.
FollowerState parse_follower_state(ConstBytes record, const std::string& name);

/// Returns nullopt when there is no such file. Throws Error{kIo}; and Error{kCorrupt}, with advice on what to do, for a
/// damaged file.
std::optional<FollowerState> load_follower_state(FileSystem& fs, const std::string& path);
/// Writes the state atomically and durably.
void save_follower_state(FileSystem& fs, const std::string& path, const FollowerState& state);
/// Removes temporary files that a crash has left beside it.
void remove_stale_state(FileSystem& fs, const std::string& path);

}  // namespace sparsecast
