// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>

#include "sparsecast/delta.hpp"
#include "sparsecast/export.hpp"
#include "sparsecast/safetensors.hpp"

namespace sparsecast {

/// Function that receives the patches of a version, in the order of the table. The bytes of a patch are valid only
/// during the call.
using PatchSink = std::function<void(const TensorPatch&)>;

/// Calls `sink` for every tensor that the delta changes. Positions are read from the delta's frames, and values from
/// `weights`, which are the tensors of `table` *after* the delta (a publisher's live weights, until its next optimizer
/// step). Only the patch of one tensor is held in memory. An element that the delta names is in the patch even when its
/// bits did not change. Throws Error{kUsage} for weights that do not fit the table, Error{kCorrupt} for frames that do
/// not belong to the delta, and Error{kUnsupported} when a changed index of a tensor does not fit into int32.
SPARSECAST_API void for_each_patch(const Delta& delta, const TensorTable& table, std::span<const ConstBytes> weights,
                                   const PatchSink& sink);

/// Calls `sink` for every tensor that a delta file changes, given the tensors *before* the delta. Values are decoded,
/// and only elements whose bits change are in a patch. The caller guarantees that `base` has the delta's base digest.
/// Throws Error{kDigestMismatch} at the end when `base` and the delta do not give the digest in the delta's commit
/// record.
SPARSECAST_API void for_each_patch(const DeltaFile& delta, const TensorReader& base, const PatchSink& sink);

}  // namespace sparsecast
