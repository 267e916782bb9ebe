// SPDX-License-Identifier: Apache-2.0
#include <bit>

#include "cuda/quantize/quantize.cuh"
#include "cuda/quantize/quantize_runs.cuh"

namespace sparsecast::cuda {
namespace {

constexpr unsigned kInVector = 4;

unsigned ctas_of_blocks(const QuantizePlan& plan, const DeviceStream& device) {
  return grid_for(plan.grid[0] * plan.grid[1], kQuantizeCtas, device);
}

unsigned ctas_of_runs(const QuantizePlan& plan, const DeviceStream& device) {
  return grid_for((plan.extent[0] - 1) / kWarps + 1, kQuantizeCtas, device);
}

/// Returns the binary logarithm of the number of runs of a block, which is rounded up to a power of two.
unsigned run_shift(const QuantizePlan& plan) {
  return static_cast<unsigned>(std::bit_width((plan.block[1] - 1) / kRun));
}

bool takes_runs(QuantizePath path) { return path == QuantizePath::kRuns || path == QuantizePath::kAlignedRuns; }

/// Calls body.template operator()<Bits, kCount>() with the traits of `dtype` and the elements of one access.
template <class Body>
void with_access(DType dtype, QuantizePath path, const Body& body) {
  with_source(dtype, [&]<class Bits>() {
    if (path == QuantizePath::kVectors) {
      body.template operator()<Bits, kInVector>();
    } else {
      body.template operator()<Bits, 1>();
    }
  });
}

}  // namespace

void launch_block_amax(DType dtype, QuantizePath path, const QuantizePlan& plan, const void* d_source, float* d_amax,
                       const DeviceStream& device) {
  if (takes_runs(path)) {
    return with_source(dtype, [&]<class Bits>() {
      launch(run_amaxes<Bits>, ctas_of_runs(plan, device), kThreads, device, plan, path == QuantizePath::kAlignedRuns,
             run_shift(plan), static_cast<const typename Bits::Word*>(d_source), d_amax);
    });
  }
  with_access(dtype, path, [&]<class Bits, unsigned kCount>() {
    launch(block_amaxes<Bits, kCount>, ctas_of_blocks(plan, device), kThreads, device, plan,
           static_cast<const typename Bits::Word*>(d_source), d_amax);
  });
}

void launch_quantize(DType dtype, QuantizePath path, const QuantizePlan& plan, const void* d_source,
                     const GivenAmax& d_amax, const QuantizedShard& d_out, const DeviceStream& device) {
  if (takes_runs(path)) {
    return with_source(dtype, [&]<class Bits>() {
      with_element(plan.element, [&]<class Element>() {
        launch(quantize_runs<Bits, Element>, ctas_of_runs(plan, device), kThreads, device, plan,
               path == QuantizePath::kAlignedRuns, run_shift(plan), static_cast<const typename Bits::Word*>(d_source),
               d_amax, d_out);
      });
    });
  }
  with_access(dtype, path, [&]<class Bits, unsigned kCount>() {
    launch(quantize_blocks<Bits, kCount>, ctas_of_blocks(plan, device), kThreads, device, plan,
           static_cast<const typename Bits::Word*>(d_source), d_amax, d_out);
  });
}

}  // namespace sparsecast::cuda
