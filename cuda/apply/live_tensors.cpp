// SPDX-License-Identifier: Apache-2.0
#include "cuda/apply/live_tensors.hpp"

#include <fmt/format.h>

#include "core/tensor_view.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast::cuda {
namespace {

/// Checks the memory of a tensor that will be written: no two of its elements may share an address.
void check_memory(const TensorSpec& spec, const void* d_data, const StridedView& view) {
  const auto require = [&](bool holds, const char* sentence) {
    if (!holds) throw Error(ErrorCode::kUsage, sentence, fmt::format("tensor '{}'", spec.name));
  };
  require(d_data != nullptr, "a device pointer is null");
  require(reinterpret_cast<std::uintptr_t>(d_data) % element_size(spec.dtype) == 0,
          "it is not aligned to its elements");
  require(!repeats_places(view), "its elements overlap");
}

}  // namespace

std::vector<LiveTensor> describe_live(const TensorTable& table, const std::vector<DeviceTensor>& tensors,
                                      TilePlan& plan) {
  if (tensors.size() != table.size()) {
    throw Error(ErrorCode::kUsage, fmt::format("{} device tensors for a table of {}", tensors.size(), table.size()));
  }
  std::vector<LiveTensor> out;
  for (std::size_t t = 0; t < table.size(); ++t) {
    const TensorEntry& entry = plan.tensors[t];
    LiveTensor& live = out.emplace_back();
    live.data = static_cast<std::byte*>(tensors[t].d_data);
    live.elements = entry.elements;
    live.key_lo = entry.key_lo;
    live.key_hi = entry.key_hi;
    live.digest_view = entry.digest_view;
    live.element_shift = entry.element_shift;
    live.floating = entry.floating;
    if (live.elements == 0) continue;
    const StridedView view = view_of_tensor(table[t], tensors[t].strides);
    check_memory(table[t], tensors[t].d_data, view);
    live.nan = nan_pattern(table[t].dtype);
    live.view = add_view(plan, view);
  }
  return out;
}

}  // namespace sparsecast::cuda
