// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/apply/received.hpp"
#include "cuda/common/tile_plan.hpp"
#include "sparsecast/device.hpp"

namespace sparsecast::cuda {

/// Returns the LiveTensor of each tensor of the table, as the kernels need it. `tensors` is the memory of the tensors.
/// Adds the tensors' views to `plan`, the plan of the table. Throws Error{kUsage} naming the tensor if its memory does
/// not fit the table, or if its elements overlap.
std::vector<LiveTensor> describe_live(const TensorTable& table, const std::vector<TensorRef>& tensors, TilePlan& plan);

/// Throws Error{kUsage} naming the tensor if one of tensors [first, first + count) begins at an address that has no
/// memory, because the memory was freed, or because a sleeping engine unmapped it and kept the address. A kernel that
/// accessed such an address would make the device unusable for the whole process. Memory is mapped in units of 2 MiB,
/// so successive tensors that begin in the same 2 MiB cost one query of the driver. Does not throw if the driver does
/// not answer.
void require_mapped(const TensorTable& table, const std::vector<LiveTensor>& live, std::size_t first,
                    std::size_t count);

}  // namespace sparsecast::cuda
