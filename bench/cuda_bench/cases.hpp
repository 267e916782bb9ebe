// SPDX-License-Identifier: Apache-2.0
#pragma once

// The cases that are timed. Each adds rows, and checks on the device that every result is right bit for bit.

#include <functional>
#include <vector>

#include "cuda/encode/device_encoder.hpp"
#include "cuda_bench/generator.hpp"
#include "cuda_bench/workbench.hpp"
#include "sparsecast/tensor.hpp"

namespace sparsecast::bench {

/// Generated weights of one dtype in one array, cut into tensors.
struct WeightArray {
  Recipe recipe;
  double percent = 0;
  std::uint64_t elements = 0;
  std::uint64_t tensor_elements = std::uint64_t{1} << 26;  ///< Size of every tensor but the last; a multiple of 64.
  std::string what;                                        ///< Description in the rows: "BF16 4 GiB".
  Touched touched;

  std::uint64_t bytes() const { return elements * element_size(recipe.dtype); }
  TensorTable table() const;
  /// Returns where each tensor begins in an array at `base` whose elements have `bytes_each` bytes.
  template <class Pointer>
  std::vector<Pointer> cut(Pointer base, std::size_t bytes_each) const {
    std::vector<Pointer> out;
    for (std::uint64_t first = 0; first < elements; first += tensor_elements) {
      out.push_back(reinterpret_cast<Pointer>(reinterpret_cast<std::uintptr_t>(base) + first * bytes_each));
    }
    return out;
  }
};
/// Describes an array of `gib` GiB, rounded down to whole sectors and mask words, and counts on the device what
/// changes.
WeightArray make_weights(Workbench& bench, DType dtype, double gib, double percent);

/// Device memory of weights and of their snapshot.
struct ComparedArrays {
  /// `bench` and `weights` must outlive this object.
  ComparedArrays(Workbench& bench, const WeightArray& weights);
  ComparedArrays(const ComparedArrays&) = delete;
  /// Requires the snapshot to be that of the new weights; `which` says in which role.
  void require_new(Workbench& bench, const WeightArray& weights, const char* which) const;

  TensorTable table;
  std::vector<std::byte*> old;  ///< Where each tensor begins in the snapshot.
  std::vector<cuda::CompareTensor> tensors;
  std::function<void()> reset;  ///< Sets the snapshot to the old weights, on the bench's stream.

 private:
  cuda::DeviceMemory current_;
  cuda::DeviceMemory snapshot_;
};

/// Times the comparison with a snapshot, which is refreshed, then stage, apply and digest of its frames; with
/// CudaBenchOptions::variants also what is still to be chosen: chunks, overlap, graphs, and entries of a subscriber.
void run_compare(Workbench& bench, const WeightArray& weights);
/// Times FusedCast and the cast snapshot beside the plain cast. The weights are bf16.
void run_casts(Workbench& bench, const WeightArray& weights);
/// Times a snapshot in pinned host memory beside the copy of it to the device.
void run_pinned(Workbench& bench, const WeightArray& weights);
/// Times a caller's mask with raw values.
void run_mask(Workbench& bench, const WeightArray& weights);
/// Times CubSelect.
void run_cub(Workbench& bench, const WeightArray& weights);
/// Times a scan of two arrays that only reads, the ceiling of detect, and a read-modify-write of the elements that
/// change, of the first CubSelect::kSlab at most, whose positions lie in memory: the ceiling of apply.
void run_ceilings(Workbench& bench, const WeightArray& weights);
/// Times run_compare on CudaBenchOptions::small_tensors tensors of 64 K elements each, which shows what launches cost.
void run_small_tensors(Workbench& bench, double percent);
/// Times comparison and apply of every step of a recorded series of checkpoints. Throws Error{kUsage | kIo | kCorrupt}
/// for a directory that CheckpointSeries refuses.
void run_trace(Workbench& bench, const std::string& directory);

/// Runs every case of the options. Writes the file of results after each density, so that a failure loses none of
/// those before it.
void run_cases(Workbench& bench);

}  // namespace sparsecast::bench
