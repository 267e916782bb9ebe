// SPDX-License-Identifier: Apache-2.0
#pragma once

// Check the memory that callers give an encoder and enter it into the plan. All functions throw Error{kUsage} naming
// the tensor.

#include <vector>

#include "cuda/common/tile_plan.hpp"
#include "cuda/encode/device_encoder.hpp"

namespace sparsecast::cuda {

/// Stores the pointers of the caller's tensors in plan.tensors. Returns kMasters if any tensor is given by its fp32
/// masters, otherwise kStrided if any is a strided view, otherwise kCompare.
DetectSource enter_tensors(TilePlan& plan, const TensorTable& table, const std::vector<CompareTensor>& tensors);
void enter_tensors(TilePlan& plan, const TensorTable& table, const std::vector<PinnedTensor>& tensors);
void enter_tensors(TilePlan& plan, const TensorTable& table, const std::vector<CastTensor>& tensors);
void enter_tensors(TilePlan& plan, const TensorTable& table, const std::vector<MaskTensor>& tensors);

}  // namespace sparsecast::cuda
