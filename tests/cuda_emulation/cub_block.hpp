#pragma once

// CUB's block-wide scan and reduction, as far as the kernels use them, over the emulated barriers. As with CUB,
// temporary storage may be used again only after a barrier; what goes wrong otherwise shows in random order.

#include <source_location>

#include "cuda_emulation/scheduler.hpp"

namespace cub {

enum BlockScanAlgorithm { BLOCK_SCAN_RAKING, BLOCK_SCAN_WARP_SCANS };

template <class T, int kBlockThreads, BlockScanAlgorithm = BLOCK_SCAN_RAKING>
class BlockScan {
 public:
  struct TempStorage {
    T values[kBlockThreads];
  };
  explicit BlockScan(TempStorage& storage, const std::source_location& where = std::source_location::current())
      : storage_(storage), where_(where) {}

  void ExclusiveSum(T input, T& output, T& total) {
    storage_.values[threadIdx.x] = input;
    sparsecast::emulation::block_barrier(where_);
    T sum{};
    for (unsigned t = 0; t < kBlockThreads; ++t) {
      if (t == threadIdx.x) output = sum;
      sum += storage_.values[t];
    }
    total = sum;
  }

 private:
  TempStorage& storage_;
  std::source_location where_;
};

template <class T, int kBlockThreads>
class BlockReduce {
 public:
  struct TempStorage {
    T values[kBlockThreads];
  };
  explicit BlockReduce(TempStorage& storage, const std::source_location& where = std::source_location::current())
      : storage_(storage), where_(where) {}

  /// The result is valid in thread 0 only.
  template <class Combine>
  T Reduce(const T& input, Combine combine) {
    storage_.values[threadIdx.x] = input;
    sparsecast::emulation::block_barrier(where_);
    T result = storage_.values[0];
    if (threadIdx.x != 0) return input;
    for (unsigned t = 1; t < kBlockThreads; ++t) result = combine(result, storage_.values[t]);
    return result;
  }
  T Sum(const T& input) {
    return Reduce(input, [](const T& a, const T& b) { return a + b; });
  }

 private:
  TempStorage& storage_;
  std::source_location where_;
};

}  // namespace cub
