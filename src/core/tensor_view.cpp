#include "core/tensor_view.hpp"

#include <fmt/format.h>

#include "sparsecast/error.hpp"

namespace sparsecast {

StridedView view_of_tensor(const TensorSpec& spec, const std::vector<std::int64_t>& strides) {
  if (strides.empty() || spec.elements() == 0) return {};
  const std::string where = fmt::format("tensor '{}'", spec.name);
  if (strides.size() != spec.shape.size()) {
    throw Error(ErrorCode::kUsage, "it has not one stride for each dimension", where);
  }
  if (strides.size() > kMostDims) {
    throw Error(ErrorCode::kUsage, fmt::format("a strided tensor has at most {} dimensions", kMostDims), where);
  }
  return make_strided_view(spec.shape, strides);
}

}  // namespace sparsecast
