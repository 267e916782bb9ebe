#pragma once

// What one would write without the library, on the same arrays: CUB's stream compaction and a gather, a plain cast, and
// the copy whose bandwidth is the ceiling.

#include <cstdint>

#include "cuda/common/device_memory.hpp"
#include "sparsecast/dtype.hpp"

namespace sparsecast::bench {

/// Positions (32 bits, relative to a slab of 2^30 elements) and new values of the changed elements by
/// cub::DeviceSelect::If and a gather, which also refreshes the snapshot. Nothing is coded.
class CubSelect {
 public:
  /// Room for `most_changed` changes of a slab. `elements` is that of the whole array.
  CubSelect(DType dtype, std::uint64_t elements, std::uint64_t most_changed);
  /// Enqueues.
  void run(const void* d_current, void* d_snapshot, cudaStream_t stream);
  /// Of the last run, all slabs. Waits.
  std::uint64_t changed(cudaStream_t stream) const;

  static constexpr std::uint64_t kSlab = std::uint64_t{1} << 30;

 private:
  template <class T>
  void run_slabs(const T* current, T* snapshot, cudaStream_t stream);

  DType dtype_;
  std::uint64_t elements_;
  cuda::DeviceMemory positions_, values_, counts_, temporary_;
};

/// The cast alone, vectorised: 4 bytes read and 2 written an element. `elements` is a multiple of 8. Enqueues.
void plain_cast(const float* d_masters, void* d_bf16, std::uint64_t elements, cudaStream_t stream);

}  // namespace sparsecast::bench
