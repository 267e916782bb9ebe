#pragma once

#include <functional>
#include <span>

#include "sparsecast/delta.hpp"
#include "sparsecast/export.hpp"
#include "sparsecast/safetensors.hpp"

namespace sparsecast {

/// What changes in one tensor, as other systems carry it: `count` flat element indices (int32, little-endian, strictly
/// increasing) and the new bits of these elements. `tensor` is an index into the table. The bytes belong to whoever
/// hands the patch out, and may be unaligned.
using TensorPatch = SparseStep::Entry;

/// Receives the patches of a version, in the order of the table; the bytes of a patch are valid during the call.
using PatchSink = std::function<void(const TensorPatch&)>;

/// One call for every tensor that the delta changes: the positions are read from its frames, the values from `weights`,
/// the tensors of `table` *after* the delta (a publisher's live weights, until its next optimizer step). What is held
/// is the patch of one tensor. An element that the delta names is in the patch even when its bits did not change.
/// Throws Error{kUsage} for weights that do not fit the table, Error{kCorrupt} for frames that are not the delta's, and
/// Error{kUnsupported} when a changed index of a tensor does not fit into int32.
SPARSECAST_API void for_each_patch(const Delta& delta, const TensorTable& table,
                                   std::span<const ConstTensorBytes> weights, const PatchSink& sink);

/// The same of a delta file and the tensors *before* it: values are decoded, and only elements whose bits change are in
/// a patch. `base` has the delta's base digest (the caller sees to that). Throws Error{kDigestMismatch} at the end
/// when the delta does not lead to its promised digest from these bytes.
SPARSECAST_API void for_each_patch(const DeltaFile& delta, std::span<const ConstTensorBytes> base,
                                   const PatchSink& sink);

}  // namespace sparsecast
