// SPDX-License-Identifier: Apache-2.0
#include "cuda/apply/live_tensors.hpp"

#include <fmt/format.h>

#include "core/tensor_view.hpp"
#include "cuda/common/driver_function.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast::cuda {
namespace {

// Values of the enums CUpointer_attribute and CUmemorytype (cuda.h).
enum PointerAttribute : int { kMemoryType = 2, kIsManaged = 8, kMapped = 13 };
constexpr std::uint64_t kHostMemoryType = 1;
/// The smallest unit of memory that the driver maps.
constexpr std::uintptr_t kMappedBytes = std::uintptr_t{2} << 20;

/// Returns whether the device can access memory at `d_memory`; true if the driver does not answer.
bool is_mapped(const void* d_memory) {
  using GetAttributes = int(unsigned count, int* attributes, void** values, std::uintptr_t d_memory);
  static GetAttributes* const get_attributes = driver_function<GetAttributes>("cuPointerGetAttributes");
  if (get_attributes == nullptr) return true;
  int attributes[] = {kMemoryType, kIsManaged, kMapped};
  std::uint64_t type = 0;  // The driver writes one byte or four.
  std::uint64_t managed = 0;
  std::uint64_t mapped = 0;
  void* values[] = {&type, &managed, &mapped};
  if (get_attributes(3, attributes, values, reinterpret_cast<std::uintptr_t>(d_memory)) != 0) return true;
  return mapped != 0 || managed != 0 || type == kHostMemoryType;
}

}  // namespace

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

void require_mapped(const TensorTable& table, const std::vector<LiveTensor>& live, std::size_t first,
                    std::size_t count) {
  std::uintptr_t found = 0;
  for (std::size_t t = first; t < first + count; ++t) {
    const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(live[t].data) / kMappedBytes;
    if (live[t].elements == 0 || begin == found) continue;
    if (!is_mapped(live[t].data)) {
      throw Error(ErrorCode::kUsage, "its memory is gone; wake the engine up, or make a subscriber of the new memory",
                  fmt::format("tensor '{}'", table[t].name));
    }
    found = begin;
  }
}

}  // namespace sparsecast::cuda
