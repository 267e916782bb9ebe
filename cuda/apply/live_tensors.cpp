// SPDX-License-Identifier: Apache-2.0
#include "cuda/apply/live_tensors.hpp"

#include <fmt/format.h>

#include "core/tensor_view.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast::cuda {

std::vector<LiveTensor> describe_live(const TensorTable& table, const std::vector<TensorRef>& tensors, TilePlan& plan) {
  check_refs(table, tensors, "device");
  std::vector<LiveTensor> out;
  for (std::size_t t = 0; t < table.size(); ++t) {
    const TensorEntry& entry = plan.tensors[t];
    LiveTensor& live = out.emplace_back();
    live.data = tensors[t].data;
    live.elements = entry.elements;
    live.key_lo = entry.key_lo;
    live.key_hi = entry.key_hi;
    live.digest_view = entry.digest_view;
    live.element_shift = entry.element_shift;
    live.order = entry.order;
    live.dtype = table[t].dtype;
    if (live.elements == 0) continue;
    const StridedView view = view_of_tensor(table[t], tensors[t].strides);
    if (repeats_places(view)) {
      throw Error(ErrorCode::kUsage, "its elements overlap", fmt::format("tensor '{}'", table[t].name));
    }
    live.nan = nan_pattern(table[t].dtype);
    live.view = add_view(plan, view);
  }
  return out;
}

}  // namespace sparsecast::cuda
