// SPDX-License-Identifier: Apache-2.0
#pragma once

// CUB's device-wide selection, as far as cuda_bench uses it, at once and on the host.

#include <cstddef>
#include <cstdint>

#include "cuda_emulation/runtime.hpp"

namespace cub {

struct DeviceSelect {
  /// Without temporary storage only its size is told, as with CUB. Fails, like CUB after a launch, with an error that
  /// an earlier call has left.
  template <class Input, class Output, class Count, class Predicate>
  static cudaError_t If(void* d_temporary, std::size_t& temporary_bytes, Input input, Output output, Count count,
                        std::int64_t items, Predicate predicate, cudaStream_t stream) {
    if (d_temporary == nullptr) {
      temporary_bytes = 1024;
      return cudaSuccess;
    }
    sparsecast::emulation::finish_copies();
    const sparsecast::emulation::OnStream on_stream(stream);
    *count = 0;
    for (std::int64_t i = 0; i < items; ++i) {
      const auto element = input[static_cast<std::uint32_t>(i)];
      if (predicate(element)) output[(*count)++] = element;
    }
    return cudaPeekAtLastError();
  }
};

}  // namespace cub
