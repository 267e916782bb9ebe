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
  bool replace = false;       ///< For apply_to_copy and CheckpointCopy: true if an existing output may be replaced.
  bool weights_only = false;  ///< For CheckpointCopy: true to copy only the files that a directory's index names.
  Progress progress;          ///< Function that is called with the progress of the work. May be empty.
  /// Function that is called with a sentence, for people, about what was recovered or skipped. May be empty.
  std::function<void(const std::string&)> note;
};

struct CheckpointApplyReport {
  std::size_t applied = 0;          ///< Number of deltas whose changes were written.
  std::size_t already_applied = 0;  ///< Number of deltas that the checkpoint contained before. Only for apply_in_place.
  bool recovered = false;     ///< True if an interrupted earlier apply was rolled back first. Only for apply_in_place.
  std::uint64_t version = 0;  ///< Version of the checkpoint afterwards, which is the version of the last delta.
  /// Number of elements that the applied deltas changed; an element counts once for each delta that changed it.
  std::uint64_t changed = 0;
  StateDigest digest;  ///< Digest of the checkpoint, read back from the files after the last write.
};

/// Applies the deltas to a copy of `base`, which is a file, or a directory with its index and every other plain file.
/// Makes the copy at a temporary path next to `output`, applies the deltas there, makes the copy durable, verifies the
/// result digest by reading the copy back, and renames the copy to `output`. After any failure, `output` is absent or
/// unchanged. Throws Error; kUsage if `output` exists and `options.replace` is not set.
CheckpointApplyReport apply_to_copy(FileSystem& fs, const std::string& base, const std::vector<std::string>& deltas,
                                    const std::string& output, const CheckpointApplyOptions& options);

/// Applies the deltas to the files of the checkpoint, without a copy of them. First rolls back an interrupted earlier
/// apply, and skips deltas that the checkpoint already contains. Each delta is applied by the protocol in
/// in_place_apply.cpp: after any crash or error, the next call, or recover_checkpoint(), restores the state before the
/// interrupted delta. Only one process may work on a checkpoint at a time; the caller must ensure that.
CheckpointApplyReport apply_in_place(FileSystem& fs, const std::string& checkpoint,
                                     const std::vector<std::string>& deltas, const CheckpointApplyOptions& options);

/// Applies one delta to the files of the checkpoint as apply_in_place() does, but does not read the base first: this
/// process must just have verified that the checkpoint has the delta's base digest. Returns the result digest, which
/// was read back from the files. Throws Error; an undo record may then remain, for recover_checkpoint().
StateDigest apply_to_verified_base(FileSystem& fs, const std::string& checkpoint, const DeltaFile& delta,
                                   const CheckpointApplyOptions& options);

/// Rolls back an in-place apply that was interrupted, and returns true; returns false if there is none. Throws
/// Error{kDirty}, without writing, if the undo record does not lead from the present bytes to its result digest, or if
/// an undo record of another checkpoint, which shares a file with this one, exists.
bool recover_checkpoint(FileSystem& fs, const std::string& checkpoint, const CheckpointApplyOptions& options);

/// Throws Error{kDirty} if an interrupted in-place apply has left an undo record, so that the bytes belong to no
/// version. The error names the checkpoint to recover, which may be another one that shares a file with this one.
void require_not_interrupted(FileSystem& fs, const std::string& checkpoint);
/// Throws Error{kDirty} if an undo record of another checkpoint, which shares a file with this one, shows that an
/// in-place apply was interrupted. The record cannot be rolled back from this checkpoint.
void require_not_interrupted_elsewhere(FileSystem& fs, const std::string& checkpoint);

/// A copy of a checkpoint at a temporary path next to its final place. Nothing is visible under the final name until
/// publish(); the destructor removes a copy that was not published.
class CheckpointCopy {
 public:
  /// Copies `base`, which was opened from `base_path`, window by window. The caller then changes the copy at the places
  /// in layout(), makes it durable, and calls publish(). Throws Error{kUsage} if `output`, the final path, exists and
  /// may not be replaced.
  CheckpointCopy(FileSystem& fs, const Checkpoint& base, const std::string& base_path, std::string output,
                 const CheckpointApplyOptions& options);
  ~CheckpointCopy();
  CheckpointCopy(const CheckpointCopy&) = delete;
  CheckpointCopy& operator=(const CheckpointCopy&) = delete;

  /// Returns where each tensor is in the files of the copy.
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
