#pragma once

// What callers give an encoder for each tensor, checked and put into the plan's entries. All throw Error{kUsage} that
// names the tensor.

#include <vector>

#include "cuda/encode/device_encoder.hpp"
#include "cuda/common/tile_plan.hpp"

namespace sparsecast::cuda {

/// kMasters when a tensor is given as those, else kStrided when one is a view of larger memory, else kCompare.
Source enter_tensors(TilePlan& plan, const TensorTable& table, const std::vector<CompareTensor>& tensors);
void enter_tensors(TilePlan& plan, const TensorTable& table, const std::vector<PinnedTensor>& tensors);
void enter_tensors(TilePlan& plan, const TensorTable& table, const std::vector<CastTensor>& tensors);
void enter_tensors(TilePlan& plan, const TensorTable& table, const std::vector<MaskTensor>& tensors);

}  // namespace sparsecast::cuda
