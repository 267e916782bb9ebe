// SPDX-License-Identifier: Apache-2.0
#include "cuda/apply/decode_context.cuh"

#include "cuda/apply/apply_launchers.hpp"
#include "cuda/common/launch.hpp"

namespace sparsecast::cuda {
namespace {

template <class T>
void enqueue(const Received& received, const DeviceStream& device) {
  launch(decode_context<T>, grid_for(received.block_count, device.policy.decode.context_ctas, device), kThreads, device,
         received);
}

}  // namespace

void launch_decode_context(unsigned size, const Received& received, const DeviceStream& device) {
  switch (size) {
    case 0:
      return enqueue<std::uint8_t>(received, device);
    case 1:
      return enqueue<std::uint16_t>(received, device);
    case 2:
      return enqueue<std::uint32_t>(received, device);
    default:
      return enqueue<std::uint64_t>(received, device);
  }
}

}  // namespace sparsecast::cuda
