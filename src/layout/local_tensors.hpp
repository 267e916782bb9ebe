// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "sparsecast/layout.hpp"

namespace sparsecast {

/// Returns the local tensors of rank `rank` of the layout. Throws Error{kUsage} if there is no such rank, or if
/// `given`, the number of tensors that the caller has, is not the number of the rank's local tensors.
const std::vector<LocalTensor>& local_tensors(const Layout& layout, std::size_t rank, std::size_t given);

}  // namespace sparsecast
