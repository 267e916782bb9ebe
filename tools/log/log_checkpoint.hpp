#pragma once

// A checkpoint on disk that follows a log, held by one process at a time.

#include <memory>
#include <optional>
#include <string>

#include "sparsecast/log_follower.hpp"
#include "tools/delta/checkpoint_lock.hpp"
#include "tools/common/cli.hpp"

namespace sparsecast::tools {

class CheckpointFollower {
 public:
  /// Throws Error{kIo} when another process works on the checkpoint.
  CheckpointFollower(Console& console, std::shared_ptr<ObjectStore> store, const std::string& checkpoint, int threads,
                     bool copy_on_write, FollowerOptions options);

  LogFollower& get() noexcept { return *follower_; }
  /// Where what belongs to the follower lies: an existing directory beside the checkpoint.
  const std::string& directory() const noexcept { return directory_; }

 private:
  std::string directory_;
  std::optional<CheckpointLock> follower_lock_;
  std::optional<CheckpointLock> checkpoint_lock_;
  std::unique_ptr<LogFollower> follower_;
};

}  // namespace sparsecast::tools
