#pragma once

// The cases that are timed. Each adds rows, and checks on the device that every result is right bit for bit.

#include "cuda_bench/generator.hpp"
#include "cuda_bench/workbench.hpp"
#include "sparsecast/tensor_table.hpp"

namespace sparsecast::bench {

/// Generated weights of one dtype in one array, cut into tensors.
struct Weights {
  Recipe recipe;
  double percent = 0;
  std::uint64_t elements = 0;
  std::uint64_t tensor_elements = std::uint64_t{1} << 26;  ///< Of all tensors but the last. A multiple of 64.
  std::string what;                                        ///< For the rows.
  Touched touched;

  std::uint64_t bytes() const { return elements * element_size(recipe.dtype); }
  TensorTable table() const;
  /// Where each tensor begins in an array with elements of so many bytes.
  template <class Pointer>
  std::vector<Pointer> cut(Pointer base, std::size_t bytes_each) const {
    std::vector<Pointer> out;
    for (std::uint64_t first = 0; first < elements; first += tensor_elements) {
      out.push_back(reinterpret_cast<Pointer>(reinterpret_cast<std::uintptr_t>(base) + first * bytes_each));
    }
    return out;
  }
};
/// Sizes are rounded down to whole sectors and mask words.
Weights make_weights(Workbench& bench, DType dtype, double gib, double percent);

/// Compare with refresh, then stage, apply and digest of its frames.
void run_compare(Workbench& bench, const Weights& weights);
/// FusedCast and the cast snapshot beside the plain cast. bf16.
void run_casts(Workbench& bench, const Weights& weights);
/// A snapshot in pinned host memory, beside the copy of it to the device.
void run_pinned(Workbench& bench, const Weights& weights);
/// A caller's mask, raw values.
void run_mask(Workbench& bench, const Weights& weights);
/// Compaction by CUB.
void run_cub(Workbench& bench, const Weights& weights);
/// What launches cost: CudaBenchOptions::small_tensors of 64 K elements, compare and apply.
void run_small_tensors(Workbench& bench, double percent);
/// Every step of a recorded series of checkpoints, compare and apply; one round a step.
void run_trace(Workbench& bench, const std::string& directory);

/// All that the options ask for. The file of results is written after each density, so that those before a failure
/// stay.
void run_cases(Workbench& bench);

}  // namespace sparsecast::bench
