// SPDX-License-Identifier: Apache-2.0
#pragma once

// Implementations without the library, run on the same arrays for comparison: CUB's stream compaction with a gather,
// and a plain cast.

#include <cstdint>

#include "cuda/common/device_memory.hpp"
#include "sparsecast/tensor.hpp"

namespace sparsecast::bench {

/// Finds the changed elements by cub::DeviceSelect::If and gathers their new values, refreshing the snapshot. Positions
/// have 32 bits and are relative to a slab of 2^30 elements. Nothing is compressed.
class CubSelect {
 public:
  /// Allocates room for `most_changed` changes per slab of an array of `elements` elements.
  CubSelect(DType dtype, std::uint64_t elements, std::uint64_t most_changed);
  /// Enqueues the compaction of all slabs on `stream` and returns.
  void run(const void* d_current, void* d_snapshot, cudaStream_t stream);
  /// Returns the number of changes that the last run found in all slabs. Waits for the stream.
  std::uint64_t changed(cudaStream_t stream) const;
  /// Positions that the last run found in its last slab, in ascending order.
  const std::uint32_t* d_positions() const { return positions_.as<std::uint32_t>(); }

  static constexpr std::uint64_t kSlab = std::uint64_t{1} << 30;

 private:
  template <class T>
  void run_slabs(const T* current, T* snapshot, cudaStream_t stream);

  DType dtype_;
  std::uint64_t elements_;
  cuda::DeviceMemory positions_, values_, counts_, temporary_;
};

/// Enqueues a vectorised cast of fp32 to bf16, which reads 4 bytes and writes 2 per element. `elements` is a multiple
/// of 8.
void plain_cast(const float* d_masters, void* d_bf16, std::uint64_t elements, cudaStream_t stream);

}  // namespace sparsecast::bench
