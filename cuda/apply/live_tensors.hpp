// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/apply/received.hpp"
#include "cuda/common/tile_plan.hpp"
#include "sparsecast/device.hpp"

namespace sparsecast::cuda {

/// Returns the entries that the kernels need of the tensors of an applier, and adds their views to `plan`, the plan of
/// the table. Throws Error{kUsage} naming the tensor if its memory does not fit.
std::vector<LiveTensor> describe_live(const TensorTable& table, const std::vector<TensorRef>& tensors, TilePlan& plan);

/// Throws Error{kUsage} naming the tensor if one of tensors [first, first + count) begins where no memory is: it was
/// freed, or an engine that sleeps has taken it away and kept the address. A kernel that touched it would end the use
/// of the device for the whole process. Asks the driver once for tensors in a row that begin in the same 2 MiB, of
/// which whole ones are mapped and taken away; passes where the driver does not answer.
void require_mapped(const TensorTable& table, const std::vector<LiveTensor>& live, std::size_t first,
                    std::size_t count);

}  // namespace sparsecast::cuda
