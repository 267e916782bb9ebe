// SPDX-License-Identifier: Apache-2.0
#pragma once

// Validates a masked copy and prepares it for host and device.

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
  bool contiguous = false;  ///< True when both views are contiguous.
};

/// Checks the layout and the pointers, without reading the memory; throws as masked_copy.
MaskedCopyPlan plan_masked_copy(const MaskedCopyLayout& layout, const void* source, const void* destination);

}  // namespace sparsecast
