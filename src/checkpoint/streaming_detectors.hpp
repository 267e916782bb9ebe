// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "sparsecast/detector.hpp"
#include "sparsecast/safetensors.hpp"
#include "sparsecast/tensor_patch.hpp"

namespace sparsecast {

/// Compares two checkpoints of the same tensors, read in small windows, whatever their size. Tiles may come from
/// several threads, roughly in order. Both outlive the detector.
std::unique_ptr<TileDetector> make_checkpoint_detector(const Checkpoint& base, const Checkpoint& target);

/// Compares a checkpoint with itself after patches, such as those of a sparse step, which are already checked against
/// its table: the new bits of a tile are made when it is asked for, and of patches those of one tensor are in memory,
/// or of two where threads pass from one to the next. An entry that repeats the base's bits is no change. `base`, and
/// what the patches are read from, outlive the detector.
std::unique_ptr<TileDetector> make_patch_detector(const Checkpoint& base, TensorPatches patches);

}  // namespace sparsecast
