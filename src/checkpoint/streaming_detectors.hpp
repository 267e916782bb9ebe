// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "sparsecast/detector.hpp"
#include "sparsecast/safetensors.hpp"
#include "sparsecast/tensor_patch.hpp"

namespace sparsecast {

/// Returns a detector of the changes from `base` to `target`, checkpoints with the same tensors. It reads them in small
/// windows, whatever their size. Several threads may ask for tiles, roughly in order. Both checkpoints must outlive the
/// detector.
std::unique_ptr<TileDetector> make_checkpoint_detector(const Checkpoint& base, const Checkpoint& target);

/// Returns a detector of the changes that `patches`, such as those of a sparse step, make to the checkpoint `base`. The
/// patches must have been checked against its table. The new bits of a tile are made on demand. The patches of one
/// tensor are in memory at a time, or of two while threads move on to the next tensor. An entry that repeats the base's
/// bits is not a change. `base` and the source of the patches must outlive the detector.
std::unique_ptr<TileDetector> make_patch_detector(const Checkpoint& base, TensorPatches patches);

}  // namespace sparsecast
