// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "checkpoint/checkpoint_apply.hpp"

namespace sparsecast {

/// A copy of a checkpoint under a temporary name beside its final place. Until publish() nothing is visible under the
/// final name; the destructor removes a copy that was not published.
class CheckpointCopy {
 public:
  /// Copies `base` window by window; the order of work is: copy, change it through layout(), sync(), publish().
  /// Throws Error{kUsage} when `output` exists and may not be replaced.
  CheckpointCopy(FileSystem& fs, const Checkpoint& base, const std::string& base_path, std::string output,
                 const CheckpointApplyOptions& options);
  ~CheckpointCopy();
  CheckpointCopy(const CheckpointCopy&) = delete;
  CheckpointCopy& operator=(const CheckpointCopy&) = delete;

  /// Returns the place of each tensor in the copy.
  const CheckpointLayout& layout() const noexcept { return layout_; }
  /// Renames the copy, whose files the caller has made durable, to its place, and makes that durable. A file is
  /// replaced in one step; a directory by two renames, between which the old one is found as `OUTPUT.previous`.
  void publish();

 private:
  void copy_files(const Checkpoint& base, const std::string& base_path, const Progress& progress);
  void replace_directory();
  void discard() noexcept;

  FileSystem& fs_;
  std::string output_;
  std::string staging_;
  CheckpointLayout layout_;
  bool published_ = false;
};

}  // namespace sparsecast
