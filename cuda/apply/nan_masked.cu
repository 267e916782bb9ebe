// SPDX-License-Identifier: Apache-2.0
#include "cuda/apply/nan_masked.cuh"

#include "cuda/common/launch.hpp"

namespace sparsecast::cuda {
namespace {

constexpr unsigned kStreamCtas = 8;  ///< CTAs on a multiprocessor for kernels that stream over elements: all that fit.

unsigned grid_of_elements(std::uint64_t threads, const DeviceStream& device) {
  return grid_for((threads + kThreads - 1) / kThreads, kStreamCtas, device);
}

/// Calls body.template operator()<T>() with T of 2^size bytes.
template <class Body>
void with_size(unsigned size, const Body& body) {
  switch (size) {
    case 0:
      return body.template operator()<std::uint8_t>();
    case 1:
      return body.template operator()<std::uint16_t>();
    case 2:
      return body.template operator()<std::uint32_t>();
    default:
      return body.template operator()<std::uint64_t>();
  }
}

/// Returns 64 bits filled with copies of `word`, which has the size of T.
template <class T>
std::uint64_t repeated(std::uint64_t word) {
  return static_cast<T>(word) * (~std::uint64_t{0} / static_cast<T>(~T{0}));
}

}  // namespace

void launch_find_tensor_blocks(const Received& received, BlockRange* d_ranges, const DeviceStream& device) {
  launch(find_tensor_blocks, grid_of_elements(received.block_count, device), kThreads, device, received, d_ranges);
}

void launch_check_new_values(unsigned size, const Received& received, Pass pass, ExpansionControl* d_control,
                             const DeviceStream& device) {
  with_size(size, [&]<class T>() {
    launch(check_new_values<T>, grid_for(received.block_count, kCheckCtas, device), kThreads, device, received, pass,
           d_control);
  });
}

void launch_fill_elements(unsigned size, std::uint64_t fill, std::byte* d_out, std::uint64_t elements,
                          const DeviceStream& device) {
  with_size(size, [&]<class T>() {
    const std::uint64_t twice = repeated<T>(fill);
    const auto low = static_cast<unsigned>(twice);
    const auto high = static_cast<unsigned>(twice >> 32);
    launch(fill_elements<T>, grid_of_elements(elements / kInVector<T> + 1, device), kThreads, device,
           reinterpret_cast<T*>(d_out), elements, static_cast<T>(fill), uint4{low, high, low, high});
  });
}

void launch_expand_blocks(unsigned size, const Received& received, Pass pass, const BlockRange& range, std::byte* d_out,
                          const DeviceStream& device) {
  with_size(size, [&]<class T>() {
    launch(expand_blocks<T>, grid_for(range.end - range.begin, kExpandCtas, device), kThreads, device, received, pass,
           range, reinterpret_cast<T*>(d_out));
  });
}

void launch_masked_copy(unsigned size, const MaskedCopyPlan& plan, const std::byte* d_source, std::byte* d_destination,
                        const DeviceStream& device) {
  with_size(size, [&]<class T>() {
    const auto* source = reinterpret_cast<const T*>(d_source);
    auto* destination = reinterpret_cast<T*>(d_destination);
    if (plan.contiguous) {
      launch(masked_copy_contiguous<T>, grid_of_elements(plan.elements / kInVector<T> + 1, device), kThreads, device,
             source, destination, plan.elements, plan.nan);
    } else {
      launch(masked_copy_strided<T>, grid_of_elements(plan.elements, device), kThreads, device, source, destination,
             plan.elements, plan.source, plan.destination, plan.nan);
    }
  });
}

}  // namespace sparsecast::cuda
