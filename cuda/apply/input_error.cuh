// SPDX-License-Identifier: Apache-2.0
#pragma once

// Input errors as kernels report them. Each thread keeps the first error that it finds, and the error word in the
// control keeps the error of the lowest block.

#include "cuda/apply/received.hpp"
#include "cuda/common/device_api.hpp"

namespace sparsecast::cuda {

/// The first input error that this thread has found; another thread may have found another error.
struct FirstInputError {
  InputError input_error = InputError::kNone;

  /// Records an error with this `reason`, unless this thread has already recorded one.
  __device__ void refuse(InputError reason) {
    if (input_error == InputError::kNone) input_error = reason;
  }
  /// Records an error with this `reason` unless `holds` is true.
  __device__ void require(bool holds, InputError reason) {
    if (!holds) refuse(reason);
  }
  /// Waits at a barrier of the CTA, and returns to all threads whether any of them has found an error.
  __device__ bool any() const { return __syncthreads_or(input_error != InputError::kNone ? 1 : 0) != 0; }
};

/// Records an error with this `reason` for block number `block` in the error word `*input_error`, which keeps the error
/// of the lowest block.
__device__ inline void refuse_block(std::uint64_t* input_error, std::uint32_t block, InputError reason) {
  atomicMin(reinterpret_cast<unsigned long long*>(input_error),
            static_cast<unsigned long long>(std::uint64_t{block} << 8 | static_cast<std::uint64_t>(reason)));
}

}  // namespace sparsecast::cuda
