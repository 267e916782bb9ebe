#pragma once

#include <memory>
#include <optional>
#include <string>

#include "sparsecast/detector.hpp"
#include "sparsecast/safetensors.hpp"

namespace sparsecast::tools {

/// The new state of a difference, whichever form it came in; the detector looks at it and at the base.
struct DiffTarget {
  std::optional<Checkpoint> checkpoint;
  std::optional<SparseStep> step;
  std::unique_ptr<Detector> detector;
};

/// `path` is a checkpoint with the tensors of `base`, or a sparse step on it. `base` outlives what is returned;
/// `base_name` goes into errors. Throws Error, kDirty for a checkpoint in the middle of an in-place apply.
std::unique_ptr<DiffTarget> open_diff_target(FileSystem& fs, const std::string& path, const Checkpoint& base,
                                             const std::string& base_name);

}  // namespace sparsecast::tools
