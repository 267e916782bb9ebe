// SPDX-License-Identifier: Apache-2.0
#pragma once

// Validates a masked copy and prepares it for host and device.

#include "core/nan_pattern.hpp"
#include "core/strided_view.hpp"
#include "sparsecast/nan_masked.hpp"

namespace sparsecast {

/// Throws Error{kUnsupported} for a dtype without NaNs.
void require_nan_fillable(DType dtype);

/// Arguments of a masked copy: the views of source and destination, the bit pattern of NaNs, and the number of
/// elements.
struct MaskedCopyPlan {
  StridedView source;
  StridedView destination;
  NanPattern nan;
  std::uint64_t elements = 0;
  bool contiguous = false;  ///< True when the elements of both views are contiguous.
};

/// Returns the plan of a masked copy, after checking the layout and the pointers. Does not read the memory. Throws
/// Error{kUnsupported} for a dtype without NaNs, {kUsage} for a null pointer or a layout that breaks the rules of
/// MaskedCopyLayout.
MaskedCopyPlan plan_masked_copy(const MaskedCopyLayout& layout, const void* source, const void* destination);

}  // namespace sparsecast
