// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "sparsecast/layout.hpp"

namespace sparsecast {

/// Returns the local tensors of rank `rank` of the layout. `given` is the number of tensors that the caller has. Throws
/// Error{kUsage} unless the rank exists and has that many local tensors.
const std::vector<LocalTensor>& local_tensors(const Layout& layout, std::size_t rank, std::size_t given);

}  // namespace sparsecast
