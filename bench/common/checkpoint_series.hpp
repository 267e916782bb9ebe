// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "sparsecast/io.hpp"
#include "sparsecast/tensor.hpp"

namespace sparsecast::bench {

/// A directory of successive checkpoints, ordered by name: *.safetensors files and directories of sharded checkpoints.
/// The first is whole; each of the others is whole or a sparse step.
class CheckpointSeries {
 public:
  /// Throws Error{kUsage} when there are fewer than two checkpoints, Error{kCorrupt | kUnsupported | kIo} when the
  /// first cannot be read. `fs` outlives the series.
  CheckpointSeries(FileSystem& fs, const std::string& directory);

  const TensorTable& table() const noexcept { return table_; }
  /// Returns the number of checkpoints after the first.
  std::size_t steps() const noexcept { return paths_.size() - 1; }
  /// Returns the file or directory name of step `i` without ".safetensors"; 0 is the first checkpoint.
  std::string name(std::size_t i) const;

  /// Copies the first checkpoint to `weights`, which has a tensor for each of table().
  void load_first(std::span<const MutableBytes> weights) const;
  /// Brings `weights` from step i-1 to step i, 1 <= i <= steps(). Throws Error{kTableMismatch} when a whole
  /// checkpoint has other tensors than the first.
  void advance(std::size_t i, std::span<const MutableBytes> weights) const;

 private:
  void copy_checkpoint(const std::string& path, std::span<const MutableBytes> weights) const;
  bool is_sparse(const std::string& path) const;

  FileSystem& fs_;
  std::vector<std::string> paths_;
  TensorTable table_;
};

}  // namespace sparsecast::bench
