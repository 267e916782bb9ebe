// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/apply/received.hpp"
#include "cuda/common/tile_plan.hpp"
#include "sparsecast/device.hpp"

namespace sparsecast::cuda {

/// Returns the entries that the kernels need of the tensors of an applier, and adds their views to `plan`, the plan of
/// the table. Throws Error{kUsage} naming the tensor if its memory does not fit.
std::vector<LiveTensor> describe_live(const TensorTable& table, const std::vector<TensorRef>& tensors, TilePlan& plan);

}  // namespace sparsecast::cuda
