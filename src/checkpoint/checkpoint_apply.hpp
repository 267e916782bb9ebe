// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_store.hpp"
#include "sparsecast/delta.hpp"

namespace sparsecast {

struct CheckpointApplyOptions {
  int threads = 1;                               ///< 0: all cores.
  bool replace = false;                          ///< apply_to_copy: an existing output may be replaced.
  bool weights_only = false;                     ///< CheckpointCopy: of a directory only what its index names.
  Progress progress;                             ///< May be empty.
  std::function<void(const std::string&)> note;  ///< Sentences for people: what was recovered or skipped. May be empty.
};

struct CheckpointApplyReport {
  std::size_t applied = 0;          ///< Deltas whose changes were written.
  std::size_t already_applied = 0;  ///< Deltas that the checkpoint contained before (in place only).
  bool recovered = false;           ///< An interrupted earlier apply was rolled back first (in place only).
  std::uint64_t version = 0;        ///< Version that the last delta leads to.
  std::uint64_t changed = 0;        ///< Elements, over the deltas that were applied.
  StateDigest digest;               ///< Read back from the files after the last write.
};

/// Copies `base` (a file; or a directory with its index and every other plain file) to a temporary beside `output`,
/// applies the deltas there, makes it durable, verifies the result digest by reading it back, and renames. Whatever
/// fails, `output` is absent, or what it was. Throws Error; kUsage when `output` exists and `replace` is not set.
CheckpointApplyReport apply_to_copy(FileSystem& fs, const std::string& base, const std::vector<std::string>& deltas,
                                    const std::string& output, const CheckpointApplyOptions& options);

/// Applies the deltas to the files themselves, each by the protocol in in_place_apply.cpp: after any crash or error
/// the next call, or recover_checkpoint, restores the state before the interrupted delta. One process at a time may
/// work on a checkpoint; the caller sees to that.
CheckpointApplyReport apply_in_place(FileSystem& fs, const std::string& checkpoint,
                                     const std::vector<std::string>& deltas, const CheckpointApplyOptions& options);

/// One delta by the same protocol, to a checkpoint whose digest this process has just verified to be the delta's base
/// digest, so that the base is not read first. Returns the digest that was read back. Throws Error; an undo record may
/// be left then, for recover_checkpoint.
StateDigest apply_to_verified_base(FileSystem& fs, const std::string& checkpoint, const DeltaFile& delta,
                                   const CheckpointApplyOptions& options);

/// Takes back an interrupted in-place apply. False when there is nothing to recover. Throws Error{kDirty}, with nothing
/// written, when the undo record does not lead to the state that it promises, or is of another checkpoint that has a
/// file in common with this one.
bool recover_checkpoint(FileSystem& fs, const std::string& checkpoint, const CheckpointApplyOptions& options);

/// Throws Error{kDirty} when an interrupted in-place apply has left an undo record: the bytes are of no version. It
/// names what is to be recovered, which may be another checkpoint that has a file in common with this one.
void require_not_interrupted(FileSystem& fs, const std::string& checkpoint);
/// Throws it for such another checkpoint alone: its record is not this one's to roll back.
void require_not_interrupted_elsewhere(FileSystem& fs, const std::string& checkpoint);

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
  void copy_files(const Checkpoint& base, const std::string& base_path, const CheckpointApplyOptions& options);
  void replace_directory();
  void discard() noexcept;

  FileSystem& fs_;
  std::string output_;
  std::string staging_;
  CheckpointLayout layout_;
  bool published_ = false;
};

}  // namespace sparsecast
