// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the device's memory gives to the plainest kernels with the accesses of detect and of apply: the ceilings of
// both.

#include <cstdint>

#include "cuda/common/device_memory.hpp"

namespace sparsecast::bench {

/// Enqueues reading two arrays of `bytes` bytes each, a multiple of 16, and setting *d_differ to 1 if they differ. Each
/// thread has `in_flight` (4 or 8) vectors of 16 bytes of each array in flight.
void scan_both(const void* d_a, const void* d_b, std::uint64_t bytes, unsigned in_flight, std::uint32_t* d_differ,
               cudaStream_t stream);

/// Enqueues flipping the lowest bit of the elements, of 1, 2 or 4 bytes, at `count` positions.
void flip_elements(void* d_elements, std::size_t element_bytes, const std::uint32_t* d_positions, std::uint64_t count,
                   cudaStream_t stream);

}  // namespace sparsecast::bench
