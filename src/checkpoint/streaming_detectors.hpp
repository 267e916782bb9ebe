// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "sparsecast/detector.hpp"
#include "sparsecast/safetensors.hpp"
#include "sparsecast/tensor_patch.hpp"

namespace sparsecast {

/// Wraps a detector over mapped checkpoints and lets go of what was passed, so that comparing two checkpoints of any
/// size keeps a small resident set. Tiles may come from several threads, roughly in order. The checkpoints outlive the
/// detector and have the table's tensors at the same indices.
std::unique_ptr<TileDetector> make_releasing_detector(std::unique_ptr<TileDetector> inner,
                                                      std::vector<const Checkpoint*> checkpoints);

/// Compares a checkpoint with itself after a sparse step: the new bits of a tile are made when it is asked for, nothing
/// larger is held. An entry that repeats the base's bits is no change. Both arguments outlive the detector.
std::unique_ptr<TileDetector> make_sparse_step_detector(const Checkpoint& base, const SparseStep& step);

/// Creates a detector for patches that other software made: at most one per tensor, already checked against the base's
/// table. The bytes that they point to must outlive the detector.
std::unique_ptr<TileDetector> make_patch_detector(const Checkpoint& base, std::vector<TensorPatch> patches);

}  // namespace sparsecast
