// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_store.hpp"
#include "sparsecast/delta.hpp"

namespace sparsecast {

struct CheckpointApplyOptions {
  int threads = 1;            ///< Number of threads; 0 for all cores.
  bool replace = false;       ///< For apply_to_copy: whether an existing output may be replaced.
  bool weights_only = false;  ///< For CheckpointCopy: copies only the files that a directory's index names.
  Progress progress;          ///< May be empty.
  std::function<void(const std::string&)> note;  ///< Told in words what was recovered or skipped. May be empty.
};

struct CheckpointApplyReport {
  std::size_t applied = 0;          ///< Deltas whose changes were written.
  std::size_t already_applied = 0;  ///< Deltas that the checkpoint contained before (in place only).
  bool recovered = false;           ///< An interrupted earlier apply was rolled back first (in place only).
  std::uint64_t version = 0;        ///< Version that the last delta leads to.
  std::uint64_t changed = 0;        ///< Number of changed elements in the applied deltas.
  StateDigest digest;               ///< Read back from the files after the last write.
};

/// Copies `base` (a file, or a directory with its index and every other plain file) to a temporary next to `output`.
/// Applies the deltas there, makes the copy durable, verifies the result digest by reading it back, and renames it.
/// After any failure, `output` is absent or unchanged. Throws Error; kUsage if `output` exists and `replace` is not
/// set.
CheckpointApplyReport apply_to_copy(FileSystem& fs, const std::string& base, const std::vector<std::string>& deltas,
                                    const std::string& output, const CheckpointApplyOptions& options);

/// Applies the deltas to the files themselves, each by the protocol in in_place_apply.cpp: after any crash or error
/// the next call, or recover_checkpoint, restores the state before the interrupted delta. Only one process may work on
/// a checkpoint at a time; the caller must ensure that.
CheckpointApplyReport apply_in_place(FileSystem& fs, const std::string& checkpoint,
                                     const std::vector<std::string>& deltas, const CheckpointApplyOptions& options);

/// Applies one delta by the same protocol, without reading the base first: this process must just have verified that
/// the checkpoint has the delta's base digest. Returns the digest that was read back. Throws Error; an undo record may
/// then remain, for recover_checkpoint.
StateDigest apply_to_verified_base(FileSystem& fs, const std::string& checkpoint, const DeltaFile& delta,
                                   const CheckpointApplyOptions& options);

/// Rolls back an interrupted in-place apply. Returns false if there is nothing to recover. Throws Error{kDirty},
/// without writing, if the undo record does not lead to its result digest, or if it belongs to another checkpoint that
/// shares a file with this one.
bool recover_checkpoint(FileSystem& fs, const std::string& checkpoint, const CheckpointApplyOptions& options);

/// Throws Error{kDirty} if an interrupted in-place apply has left an undo record, so that the bytes belong to no
/// version. The error names the checkpoint to recover, which may be another one that shares a file with this one.
void require_not_interrupted(FileSystem& fs, const std::string& checkpoint);
/// Throws Error{kDirty} only for an undo record of such another checkpoint, which cannot be rolled back from here.
void require_not_interrupted_elsewhere(FileSystem& fs, const std::string& checkpoint);

/// A copy of a checkpoint under a temporary name next to its final place. Until publish() nothing is visible under the
/// final name; the destructor removes a copy that was not published.
class CheckpointCopy {
 public:
  /// Copies `base` window by window. The caller then changes the copy through layout(), calls sync(), and publish().
  /// Throws Error{kUsage} when `output` exists and may not be replaced.
  CheckpointCopy(FileSystem& fs, const Checkpoint& base, const std::string& base_path, std::string output,
                 const CheckpointApplyOptions& options);
  ~CheckpointCopy();
  CheckpointCopy(const CheckpointCopy&) = delete;
  CheckpointCopy& operator=(const CheckpointCopy&) = delete;

  /// Returns the place of each tensor in the copy.
  const CheckpointLayout& layout() const noexcept { return layout_; }
  /// Renames the copy, whose files the caller has made durable, to its final place, and makes the rename durable. A
  /// file is replaced in one step. A directory takes two renames; between them, the old one is at `OUTPUT.previous`.
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
