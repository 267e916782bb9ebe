#pragma once

// How kernels say what is wrong with a delta: each thread keeps the first reason that it finds, and the error word the
// least block's.

#include "cuda/common/device_api.hpp"
#include "cuda/apply/received.hpp"

namespace sparsecast::cuda {

/// The first input error that a thread has found; others may have found another.
struct FirstInputError {
  InputError input_error = InputError::kNone;

  __device__ void refuse(InputError reason) {
    if (input_error == InputError::kNone) input_error = reason;
  }
  __device__ void require(bool holds, InputError reason) {
    if (!holds) refuse(reason);
  }
  /// A barrier: true for all threads when any of them has found one.
  __device__ bool any() const { return __syncthreads_or(input_error != InputError::kNone ? 1 : 0) != 0; }
};

__device__ inline void refuse_block(std::uint64_t* input_error, std::uint32_t block, InputError reason) {
  atomicMin(reinterpret_cast<unsigned long long*>(input_error),
            static_cast<unsigned long long>(std::uint64_t{block} << 8 | static_cast<std::uint64_t>(reason)));
}

}  // namespace sparsecast::cuda
