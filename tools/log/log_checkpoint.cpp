// SPDX-License-Identifier: Apache-2.0
#include "tools/log/log_checkpoint.hpp"

#include <fmt/format.h>

#include "core/file_tree.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast::tools {

void add_replace(Parser& parser, bool& replace) {
  parser.add_flag("--replace", replace,
                  "Let an anchor replace a checkpoint of other tensors, or one that cannot be read; default: refused");
}

CheckpointTargetOptions in_place(int threads, bool keep_plain) {
  CheckpointTargetOptions options;
  options.threads = threads;
  options.keep_plain = keep_plain;
  return options;
}

namespace {

/// Throws Error{kUsage} for a log in the checkpoint's own directory, which is moved aside when it is replaced.
void require_log_elsewhere(FileSystem& fs, const std::string& log, const std::string& checkpoint) {
  const std::string real = fs.resolved(log);
  const std::string own = fs.resolved(checkpoint);
  if (real != own && !real.starts_with(own + "/")) return;
  throw Error(ErrorCode::kUsage, fmt::format("holds the log '{}' itself: follow into another directory", log),
              checkpoint);
}

}  // namespace

CheckpointFollower::CheckpointFollower(Console& console, std::shared_ptr<ObjectStore> store,
                                       const std::string& checkpoint, CheckpointTargetOptions target,
                                       FollowerOptions options) {
  const std::string path = settled_path(console.fs, checkpoint);
  require_log_elsewhere(console.fs, store->location(), path);
  directory_ = path + ".follow";
  console.fs.make_directory(directory_);
  if (&console.fs == &FileSystem::posix()) {
    follower_lock_.emplace(directory_);
    // Copy-on-write replaces the file that the lock would be on, and writes to no file that others see.
    if (!target.copy_on_write && console.fs.exists(path)) checkpoint_lock_.emplace(path);
  }
  target.progress = options.progress;
  target.note = options.note;
  follower_ = std::make_unique<LogFollower>(std::move(store), console.fs, directory_ + "/state",
                                            make_checkpoint_target(console.fs, path, target), std::move(options));
}

}  // namespace sparsecast::tools
