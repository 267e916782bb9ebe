// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "checkpoint/checkpoint_store.hpp"
#include "sparsecast/delta.hpp"

namespace sparsecast {

/// Delta files, opened in the order in which they will be applied. Everything that does not need the checkpoint is
/// verified: every record and block is valid, all have one stream and one tensor table, and each delta starts where the
/// one before ended.
class DeltaChain {
 public:
  /// Opens and verifies the deltas at `paths`. Their tensors must be those of `table`, the table of the checkpoint
  /// named `checkpoint`. Throws Error{kIo | kCorrupt | kUnsupported | kTableMismatch | kForeignStream | kVersionGap |
  /// kWrongBase} that names the file.
  DeltaChain(FileSystem& fs, const std::vector<std::string>& paths, const TensorTable& table,
             const std::string& checkpoint, const Progress& progress);

  std::size_t size() const noexcept { return deltas_.size(); }
  const DeltaFile& operator[](std::size_t i) const { return deltas_[i]; }
  /// Returns the table of the deltas. It is the table of the checkpoint, except that it has the dtype of 4-bit pairs
  /// for tensors that the checkpoint's files store as plain integers.
  const TensorTable& table() const noexcept { return table_; }
  /// Returns how many of the deltas, from the first on, a checkpoint with the digest `state` already contains, 0 to
  /// size(); the largest number if several fit. Throws Error{kWrongBase}, naming `checkpoint`, if the chain does not go
  /// through this state.
  std::size_t position_of(const StateDigest& state, const std::string& checkpoint) const;

 private:
  TensorTable table_;
  std::vector<DeltaFile> deltas_;
};

/// Choice of the bytes that apply_delta() writes to the files.
enum class WriteBack {
  kChangedPages,  ///< Only pages (4 KiB) of a file in which a byte has changed.
  /// All bytes that a block spans, even those that already read as wanted: after a failed fsync, the page cache may
  /// show bytes that never reached the disk.
  kWholeWindows,
};

/// Applies all blocks of the delta to the files of `store`, window by window, on `threads` threads. Verifies neither
/// the base nor the result, and makes nothing durable. Needs memory for one frame, and for two windows per thread.
void apply_delta(CheckpointStore& store, const DeltaFile& delta, WriteBack write_back, int threads,
                 const Progress& progress);

/// Returns the digest that the tensors in `store` would have after `delta`, a delta of raw values. `state` is their
/// digest now. Writes nothing.
StateDigest predict_digest(const CheckpointStore& store, const DeltaFile& delta, const StateDigest& state, int threads);

}  // namespace sparsecast
