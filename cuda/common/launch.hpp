// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launches a kernel on a device, or in the emulation.

#include <utility>

#include "cuda/common/device_api.hpp"
#include "cuda/common/streams.hpp"

namespace sparsecast::cuda {

/// Enqueues `kernel` with these arguments on `stream`, on a grid of `ctas` CTAs of `threads` threads each.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), unsigned ctas, unsigned threads, cudaStream_t stream,
            Arguments&&... arguments) {
#if defined(SPARSECAST_CUDA_EMULATION)
  check(emulation::launch_grid(stream, ctas, threads, reinterpret_cast<const void*>(kernel),
                               [kernel, arguments...] { kernel(arguments...); }),
        "cudaLaunchKernelEx");
#else
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(ctas);
  config.blockDim = dim3(threads);
  config.stream = stream;
  check(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...), "cudaLaunchKernelEx");
#endif
}

/// Enqueues `kernel` on the stream of `device`, on a grid of `ctas` CTAs of `threads` threads each. If
/// DeviceStream::loads_only is set, only loads the kernel onto the device.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), unsigned ctas, unsigned threads, const DeviceStream& device,
            Arguments&&... arguments) {
  if (!device.loads_only) return launch(kernel, ctas, threads, device.stream, std::forward<Arguments>(arguments)...);
  const void* const function = reinterpret_cast<const void*>(kernel);
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, function), "cudaFuncGetAttributes");
  if (!device.most_shared_memory) return;
  check(cudaFuncSetAttribute(function, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared),
        "cudaFuncSetAttribute");
}

}  // namespace sparsecast::cuda
