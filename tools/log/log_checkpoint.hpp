// SPDX-License-Identifier: Apache-2.0
#pragma once

// A checkpoint on disk that follows a log, used by one process at a time.

#include <memory>
#include <optional>
#include <string>

#include "sparsecast/log_follower.hpp"
#include "tools/common/cli.hpp"
#include "tools/common/parser.hpp"
#include "tools/delta/checkpoint_lock.hpp"

namespace sparsecast::tools {

/// Adds the option --replace to a command that brings a checkpoint along; it sets `replace`.
void add_replace(Parser& parser, bool& replace);

/// Returns the options of a checkpoint that is patched in place.
CheckpointTargetOptions in_place(int threads, bool keep_plain = false);

class CheckpointFollower {
 public:
  /// Locks the checkpoint for this process. Throws Error{kIo} if another process works on it.
  CheckpointFollower(Console& console, std::shared_ptr<ObjectStore> store, const std::string& checkpoint,
                     CheckpointTargetOptions target, FollowerOptions options);

  LogFollower& get() noexcept { return *follower_; }
  /// Returns the directory of the state of the follower, beside the checkpoint; it exists.
  const std::string& directory() const noexcept { return directory_; }

 private:
  std::string directory_;
  std::optional<CheckpointLock> follower_lock_;
  std::optional<CheckpointLock> checkpoint_lock_;
  std::unique_ptr<LogFollower> follower_;
};

}  // namespace sparsecast::tools
