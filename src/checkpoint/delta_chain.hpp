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
  /// Throws Error{kIo | kCorrupt | kUnsupported | kTableMismatch | kForeignStream | kVersionGap | kWrongBase}; the
  /// context names the file.
  DeltaChain(FileSystem& fs, const std::vector<std::string>& paths, const TensorTable& table,
             const std::string& checkpoint, const Progress& progress);

  std::size_t size() const noexcept { return deltas_.size(); }
  const DeltaFile& operator[](std::size_t i) const { return deltas_[i]; }
  /// Returns the deltas' table: that of the checkpoint, with the pairs of 4-bit numbers that its files do not declare.
  const TensorTable& table() const noexcept { return table_; }
  /// Returns the number of deltas that a state with this digest already contains, 0 to size(); the largest number if
  /// several fit. Throws Error{kWrongBase} if the state is not in the chain.
  std::size_t position_of(const StateDigest& state, const std::string& checkpoint) const;

 private:
  TensorTable table_;
  std::vector<DeltaFile> deltas_;
};

/// Which bytes of a changed window apply_delta writes back.
enum class WriteBack {
  kChangedPages,  ///< Only 4 KiB pages of the file in which a byte changed.
  kWholeWindows,  ///< Everything a block spans, even bytes that already read as wanted: after a failed fsync, the page
                  ///< cache may show bytes that never reached the disk.
};

/// Applies all blocks of the delta to the files, window by window, on `threads` threads. Verifies neither the base nor
/// the result, and makes nothing durable. Needs memory for one frame, and for two windows a thread.
void apply_delta(CheckpointStore& store, const DeltaFile& delta, WriteBack write_back, int threads,
                 const Progress& progress);

/// Returns the digest that the state in `store`, whose digest is `state`, would have after a `raw` delta; writes
/// nothing.
StateDigest predict_digest(const CheckpointStore& store, const DeltaFile& delta, const StateDigest& state, int threads);

}  // namespace sparsecast
