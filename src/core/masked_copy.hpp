#pragma once

// What a masked copy has to do, checked, for host and device.

#include "core/nan_pattern.hpp"
#include "core/strided_view.hpp"
#include "sparsecast/nan_masked.hpp"

namespace sparsecast {

/// Throws Error{kUnsupported} for a dtype without NaNs.
void require_nan_fillable(DType dtype);

struct MaskedCopyPlan {
  StridedView source;
  StridedView destination;
  NanPattern nan;
  std::uint64_t elements = 0;
  bool contiguous = false;  ///< Both are.
};

/// Checks the layout and the pointers, without looking at what they point to; throws as masked_copy.
MaskedCopyPlan plan_masked_copy(const MaskedCopyLayout& layout, const void* source, const void* destination);

}  // namespace sparsecast
