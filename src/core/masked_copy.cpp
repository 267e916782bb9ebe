// SPDX-License-Identifier: Apache-2.0
#include "core/masked_copy.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/word.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

/// Number of elements tested together, so that a source that is nearly all NaN is skipped without a branch for each.
constexpr std::uint64_t kTogether = 64;

std::vector<std::int64_t> row_major(const std::vector<std::uint64_t>& shape) {
  std::vector<std::int64_t> strides(shape.size());
  std::int64_t stride = 1;
  for (std::size_t d = shape.size(); d > 0; --d) {
    strides[d - 1] = stride;
    stride *= static_cast<std::int64_t>(shape[d - 1]);
  }
  return strides;
}

StridedView view_of(const std::vector<std::uint64_t>& shape, const std::vector<std::int64_t>& strides) {
  if (strides.empty()) return make_strided_view(shape, row_major(shape));
  if (strides.size() != shape.size()) {
    throw Error(ErrorCode::kUsage, fmt::format("{} strides for {} dimensions", strides.size(), shape.size()));
  }
  return make_strided_view(shape, strides);
}

std::uint64_t count_elements(const std::vector<std::uint64_t>& shape) {
  if (shape.size() > kMostDims) {
    throw Error(ErrorCode::kUsage, fmt::format("{} dimensions, more than {}", shape.size(), kMostDims));
  }
  if (std::ranges::find(shape, 0U) != shape.end()) return 0;
  std::uint64_t elements = 1;
  for (const std::uint64_t extent : shape) {
    if (extent > TensorTable::kMaxElements / elements) throw Error(ErrorCode::kUsage, "the shape is too large");
    elements *= extent;
  }
  return elements;
}

template <class T>
void copy_contiguous(const MaskedCopyPlan& plan, const std::byte* source, std::byte* destination) {
  const auto nan = [pattern = plan.nan](T bits) { return is_nan_bits(pattern, bits); };
  for (std::uint64_t begin = 0; begin < plan.elements; begin += kTogether) {
    const std::uint64_t end = std::min(begin + kTogether, plan.elements);
    unsigned numbers = 0;
    for (std::uint64_t i = begin; i < end; ++i) numbers |= nan(load_word<T>(source, i)) ? 0U : 1U;
    if (numbers == 0) continue;
    for (std::uint64_t i = begin; i < end; ++i) {
      const T bits = load_word<T>(source, i);
      if (!nan(bits)) store_word(destination, i, bits);
    }
  }
}

template <class T>
void copy_strided(const MaskedCopyPlan& plan, const std::byte* source, std::byte* destination) {
  constexpr auto kBytes = static_cast<std::int64_t>(sizeof(T));
  for (std::uint64_t i = 0; i < plan.elements; ++i) {
    const T bits = load_word<T>(source + strided_offset(plan.source, i) * kBytes);
    if (!is_nan_bits(plan.nan, bits)) store_word(destination + strided_offset(plan.destination, i) * kBytes, 0, bits);
  }
}

}  // namespace

bool is_nan_fillable(DType dtype) noexcept { return is_floating(dtype); }
bool is_nan(DType dtype, std::uint64_t bits) noexcept { return is_nan_bits(nan_pattern(dtype), bits); }

void require_nan_fillable(DType dtype) {
  if (!is_nan_fillable(dtype)) {
    throw Error(ErrorCode::kUnsupported, fmt::format("{} has no NaN to mark what did not change", to_string(dtype)));
  }
}

void nan_fill(DType dtype, MutableBytes elements) {
  require_nan_fillable(dtype);
  const std::size_t size = element_size(dtype);
  if (elements.size() % size != 0) {
    throw Error(ErrorCode::kUsage, fmt::format("{} bytes are no whole elements of {}", elements.size(), size));
  }
  with_word(size, [&]<class T>() {
    const auto fill = static_cast<T>(nan_pattern(dtype).fill);
    for (std::size_t i = 0; i < elements.size() / sizeof(T); ++i) store_word(elements.data(), i, fill);
  });
}

MaskedCopyPlan plan_masked_copy(const MaskedCopyLayout& layout, const void* source, const void* destination) {
  require_nan_fillable(layout.dtype);
  MaskedCopyPlan plan;
  plan.elements = count_elements(layout.shape);
  plan.nan = nan_pattern(layout.dtype);
  if (plan.elements == 0) return plan;
  plan.source = view_of(layout.shape, layout.source_strides);
  plan.destination = view_of(layout.shape, layout.destination_strides);
  for (std::uint32_t d = 0; d < plan.destination.rank; ++d) {
    if (plan.destination.strides[d] == 0) throw Error(ErrorCode::kUsage, "elements of the destination overlap");
  }
  if (source == nullptr || destination == nullptr) throw Error(ErrorCode::kUsage, "a pointer is null");
  plan.contiguous = is_contiguous(plan.source) && is_contiguous(plan.destination);
  return plan;
}

void masked_copy(const MaskedCopyLayout& layout, const void* source, void* destination) {
  const MaskedCopyPlan plan = plan_masked_copy(layout, source, destination);
  with_word(element_size(layout.dtype), [&]<class T>() {
    const auto* from = static_cast<const std::byte*>(source);
    auto* to = static_cast<std::byte*>(destination);
    if (plan.contiguous) {
      copy_contiguous<T>(plan, from, to);
    } else {
      copy_strided<T>(plan, from, to);
    }
  });
}

}  // namespace sparsecast
