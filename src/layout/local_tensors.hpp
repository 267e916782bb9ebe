// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "sparsecast/layout.hpp"

namespace sparsecast {

/// Returns the local tensors of a rank of the layout. Throws Error{kUsage} unless the rank exists and has `given` local
/// tensors.
const std::vector<LocalTensor>& local_tensors(const Layout& layout, std::size_t rank, std::size_t given);

}  // namespace sparsecast
