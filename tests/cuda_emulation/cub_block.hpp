// SPDX-License-Identifier: Apache-2.0
#pragma once

// Scan and reduction over a CTA or a warp, as far as the kernels use them, with the interface of CUB, over the emulated
// barriers. As with CUB, temporary storage may be used again only after a barrier, and the barriers inside a collective
// order nothing else.

#include <optional>
#include <source_location>

#include "cuda_emulation/races.hpp"
#include "cuda_emulation/scheduler.hpp"

namespace sparsecast::emulation {

/// Marks a thread as taking part in a collective, during its lifetime.
template <class Storage>
class Participation {
 public:
  explicit Participation(const Storage& storage) {
    if constexpr (races::kWatched) collective_.emplace(&storage, sizeof(storage));
  }

 private:
  std::optional<races::Collective> collective_;
};

}  // namespace sparsecast::emulation

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
    const sparsecast::emulation::Participation participation(storage_);
    storage_.values[threadIdx.x] = input;
    sparsecast::emulation::block_barrier(sparsecast::emulation::Order::kNothing, where_);
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

template <class T>
class WarpScan {
 public:
  struct TempStorage {};
  explicit WarpScan(TempStorage&, const std::source_location& where = std::source_location::current())
      : where_(where) {}

  void InclusiveSum(T input, T& output) {
    sparsecast::emulation::put_value(input);
    sparsecast::emulation::warp_barrier(~0U, sparsecast::emulation::Order::kNothing, where_);
    output = 0;
    const unsigned first = threadIdx.x / 32 * 32;
    for (unsigned t = first; t <= threadIdx.x; ++t) output += static_cast<T>(sparsecast::emulation::value_of(t));
  }

 private:
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
    const sparsecast::emulation::Participation participation(storage_);
    storage_.values[threadIdx.x] = input;
    sparsecast::emulation::block_barrier(sparsecast::emulation::Order::kNothing, where_);
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
