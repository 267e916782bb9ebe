// SPDX-License-Identifier: Apache-2.0
#include "cuda/encode/encoder_tensors.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/tensor_view.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast::cuda {
namespace {

bool aligned(const void* at, std::size_t to) { return reinterpret_cast<std::uintptr_t>(at) % to == 0; }

void require(bool holds, const char* sentence, const TensorSpec& spec) {
  if (!holds) throw Error(ErrorCode::kUsage, sentence, fmt::format("tensor '{}'", spec.name));
}

/// Returns whether every `together` row-major elements (16 bytes, or a multiple), from the first on, are contiguous and
/// aligned to 16 bytes.
bool holds_vectors(const void* d_data, const StridedView& view, std::size_t element_bytes, std::size_t together) {
  if (!aligned(d_data, kVectorBytes)) return false;
  if (is_contiguous(view)) return true;
  if (view.strides[0] != 1 || view.extents[0].divisor % together != 0) return false;
  for (std::uint32_t d = 1; d < view.rank; ++d) {
    if (view.strides[d] % static_cast<std::int64_t>(kVectorBytes / element_bytes) != 0) return false;
  }
  return true;
}

void enter_pair(TensorEntry& entry, const TensorSpec& spec, const void* d_current, std::size_t current_bytes,
                void* snapshot) {
  require(d_current != nullptr && snapshot != nullptr, "a device pointer is null", spec);
  require(aligned(d_current, current_bytes) && aligned(snapshot, element_size(spec.dtype)),
          "it is not aligned to its elements", spec);
  entry.current = static_cast<const std::byte*>(d_current);
  entry.old = entry.refresh = static_cast<std::byte*>(snapshot);
}

/// Sets whether contiguous tensors are compared by vectors. The alignment of the pointers must be the same, but may be
/// any.
void enter_lead(TensorEntry& entry, std::size_t current_bytes, std::size_t old_bytes) {
  const std::size_t together = kVectorBytes / std::max(current_bytes, old_bytes);
  entry.lead = lead_of(entry.current, current_bytes, together);
  entry.vectors = entry.lead == lead_of(entry.old, old_bytes, together);
  if (!entry.vectors) entry.lead = 0;
}

}  // namespace

DetectSource enter_tensors(TilePlan& plan, const TensorTable& table, const std::vector<CompareTensor>& tensors) {
  bool any_masters = false;
  bool any_views = false;
  for (std::size_t t = 0; t < table.size(); ++t) {
    const CompareTensor& tensor = tensors[t];
    const StridedView current = view_of_tensor(table[t], tensor.current_strides);
    const StridedView old = view_of_tensor(table[t], tensor.snapshot_strides);
    if (table[t].elements() == 0) continue;
    require(!tensor.masters || table[t].dtype == DType::kBF16, "only bf16 has fp32 masters", table[t]);
    const std::size_t size = element_size(table[t].dtype);
    const std::size_t current_bytes = tensor.masters ? sizeof(float) : size;
    TensorEntry& entry = plan.tensors[t];
    enter_pair(entry, table[t], tensor.d_current, current_bytes, tensor.d_snapshot);
    entry.masters = tensor.masters;
    entry.current_view = add_view(plan, current);
    entry.old_view = add_view(plan, old);
    any_masters = any_masters || tensor.masters;
    any_views = any_views || entry.current_view != kNoView || entry.old_view != kNoView;
    if (entry.current_view == kNoView && entry.old_view == kNoView) {
      enter_lead(entry, current_bytes, size);
      continue;
    }
    const std::size_t together = kVectorBytes / size;
    entry.vectors = holds_vectors(tensor.d_current, current, current_bytes, together) &&
                    holds_vectors(tensor.d_snapshot, old, size, together);
  }
  if (any_masters) return DetectSource::kMasters;
  return any_views ? DetectSource::kStrided : DetectSource::kCompare;
}

void enter_tensors(TilePlan& plan, const TensorTable& table, const std::vector<PinnedTensor>& tensors) {
  for (std::size_t t = 0; t < table.size(); ++t) {
    if (table[t].elements() == 0) continue;
    enter_pair(plan.tensors[t], table[t], tensors[t].d_current, element_size(table[t].dtype), tensors[t].h_snapshot);
  }
}

void enter_tensors(TilePlan& plan, const TensorTable& table, const std::vector<CastTensor>& tensors) {
  for (std::size_t t = 0; t < table.size(); ++t) {
    const CastTensor& tensor = tensors[t];
    if (tensor.d_masters == nullptr || table[t].elements() == 0) continue;
    require(table[t].dtype == DType::kBF16, "only bf16 has a fused cast", table[t]);
    require(tensor.d_bf16 != nullptr, "a device pointer is null", table[t]);
    require(aligned(tensor.d_masters, 4) && aligned(tensor.d_bf16, 2), "it is not aligned to its elements", table[t]);
    TensorEntry& entry = plan.tensors[t];
    entry.current = reinterpret_cast<const std::byte*>(tensor.d_masters);
    entry.old = entry.refresh = static_cast<std::byte*>(tensor.d_bf16);
    enter_lead(entry, sizeof(float), element_size(DType::kBF16));
  }
}

void enter_tensors(TilePlan& plan, const TensorTable& table, const std::vector<MaskTensor>& tensors) {
  for (std::size_t t = 0; t < table.size(); ++t) {
    const MaskTensor& tensor = tensors[t];
    if (table[t].elements() == 0) continue;
    require(tensor.d_current != nullptr && tensor.d_mask != nullptr, "a device pointer is null", table[t]);
    require(aligned(tensor.d_current, element_size(table[t].dtype)), "it is not aligned to its elements", table[t]);
    plan.tensors[t].current = static_cast<const std::byte*>(tensor.d_current);
    plan.tensors[t].mask = reinterpret_cast<const std::uint32_t*>(tensor.d_mask);
  }
}

}  // namespace sparsecast::cuda
