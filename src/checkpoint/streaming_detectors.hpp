// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "sparsecast/detector.hpp"
#include "sparsecast/safetensors.hpp"
#include "sparsecast/tensor_patch.hpp"

namespace sparsecast {

/// Returns a detector of the changes from `base` to `target`, two checkpoints with the same tensors. It reads the
/// checkpoints in small windows, whatever their size. Several threads may ask for tiles, roughly in order. Both
/// checkpoints must outlive the detector.
std::unique_ptr<TileDetector> make_checkpoint_detector(const Checkpoint& base, const Checkpoint& target);

/// Returns a detector of the changes that `patches`, such as those of a sparse step, make to the checkpoint `base`. The
/// patches must have been checked against the table of `base`. The new bits of a tile are made on demand. The detector
/// holds the patch of one tensor in memory at a time, or of two while threads move on to the next tensor. A patch entry
/// with the bits that the base has already is not a change. `base` and the source of the patches must outlive the
/// detector.
std::unique_ptr<TileDetector> make_patch_detector(const Checkpoint& base, TensorPatches patches);

}  // namespace sparsecast
