// SPDX-License-Identifier: Apache-2.0
#pragma once

// Definitions that the CPU detectors share.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sparsecast/tensor_table.hpp"

namespace sparsecast {

/// Elements of one detect() call. Long enough that the call costs little, and short enough that the processor keeps
/// prefetching the arrays while changes are encoded (bench/results).
inline constexpr std::uint32_t kDetectorPart = 1024;

/// Returns the bytes of an element, by tensor.
inline std::vector<std::size_t> element_sizes(const TensorTable& table) {
  std::vector<std::size_t> sizes;
  sizes.reserve(table.size());
  for (const TensorSpec& spec : table) sizes.push_back(element_size(spec.dtype));
  return sizes;
}

}  // namespace sparsecast
