#pragma once

#include <vector>

#include "core/strided_view.hpp"
#include "sparsecast/tensor_table.hpp"

namespace sparsecast {

/// The view of a live tensor with these strides, in elements; without strides, or without elements, one of rank 0,
/// which counts as contiguous. Throws Error{kUsage} that names the tensor for another number of strides than it has
/// dimensions, and for more than kMostDims.
StridedView view_of_tensor(const TensorSpec& spec, const std::vector<std::int64_t>& strides);

}  // namespace sparsecast
