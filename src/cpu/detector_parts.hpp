#pragma once

// What the CPU detectors share.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sparsecast/tensor_table.hpp"

namespace sparsecast {

/// Long enough that asking costs little, short enough that the processor goes on fetching the arrays ahead while
/// changes are coded (bench/results).
inline constexpr std::uint32_t kDetectorPart = 1024;

/// Bytes of an element, by tensor.
inline std::vector<std::size_t> element_sizes(const TensorTable& table) {
  std::vector<std::size_t> sizes;
  sizes.reserve(table.size());
  for (const TensorSpec& spec : table) sizes.push_back(element_size(spec.dtype));
  return sizes;
}

}  // namespace sparsecast
