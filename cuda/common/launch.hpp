// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launches a kernel on a device, or in the emulation.

#include <utility>

#include "cuda/common/device_api.hpp"
#include "cuda/common/runtime.hpp"

namespace sparsecast::cuda {

/// Enqueues `kernel` on a grid of `ctas` CTAs of `threads` threads each.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), unsigned ctas, unsigned threads, cudaStream_t stream,
            Arguments&&... arguments) {
#if defined(SPARSECAST_CUDA_EMULATION)
  emulation::run_grid(stream, ctas, threads, [&] { kernel(arguments...); });
#else
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(ctas);
  config.blockDim = dim3(threads);
  config.stream = stream;
  check(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...), "cudaLaunchKernelEx");
#endif
}

}  // namespace sparsecast::cuda
