// SPDX-License-Identifier: Apache-2.0
#pragma once

// Checks and translates the arguments that a C program passes.

#include <memory>
#include <vector>

#include "sparsecast/sparsecast.h"
#include "sparsecast/tensor_table.hpp"

namespace sparsecast::capi {

/// Returns the checked configuration, or the defaults for null. Throws Error{kUsage}.
scConfig_t checked(const scConfig_t* config);

struct TensorArguments {
  std::shared_ptr<const TensorTable> table;
  std::vector<void*> data;  ///< One pointer per tensor of the table.
};

/// Throws Error{kUsage} for what cannot be registered.
TensorArguments checked(const scTensor_t* tensors, int count, const scMemory_t& memory);

}  // namespace sparsecast::capi
