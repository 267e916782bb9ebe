// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "sparsecast/detector.hpp"
#include "sparsecast/safetensors.hpp"

namespace sparsecast::tools {

/// The new state of a difference, which is a checkpoint or a sparse step, and a detector that compares it with the
/// base.
struct DiffTarget {
  std::optional<Checkpoint> checkpoint;
  std::optional<SparseStep> step;
  std::unique_ptr<TileDetector> detector;
};

/// Opens the new state at `path`: a checkpoint with the tensors of `base`, or a sparse step on it. `base` must outlive
/// the result; `base_name` names it in errors. Throws Error{kDirty} for a checkpoint in the middle of an in-place
/// apply, and the errors of Checkpoint::open.
std::unique_ptr<DiffTarget> open_diff_target(FileSystem& fs, const std::string& path, const Checkpoint& base,
                                             const std::string& base_name);

}  // namespace sparsecast::tools
