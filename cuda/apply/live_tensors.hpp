#pragma once

#include "cuda/apply/received.hpp"
#include "sparsecast/device.hpp"
#include "cuda/common/tile_plan.hpp"

namespace sparsecast::cuda {

/// The tensors of an applier for its kernels; adds their views to the plan of the table. Throws Error{kUsage} that
/// names the tensor for memory that does not fit it.
std::vector<LiveTensor> describe_live(const TensorTable& table, const std::vector<DeviceTensor>& tensors,
                                      TilePlan& plan);

}  // namespace sparsecast::cuda
