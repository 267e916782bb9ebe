// SPDX-License-Identifier: Apache-2.0
#include "baselines.hpp"

#include <thrust/iterator/counting_iterator.h>

#include <algorithm>
#include <cub/device/device_select.cuh>
#include <vector>

#include "codec/codec_common.hpp"
#include "cuda/common/launch.hpp"
#include "cuda_bench/grid.hpp"

namespace sparsecast::bench {
namespace {

constexpr unsigned kBlocks = 2048;

template <class T>
struct Differs {
  const T* current;
  const T* snapshot;
  __device__ bool operator()(std::uint32_t i) const { return current[i] != snapshot[i]; }
};

template <class T>
__global__ void gather_values(const std::uint32_t* positions, const std::uint64_t* count, const T* current, T* snapshot,
                              T* values) {
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * kThreads + threadIdx.x; i < *count;
       i += std::uint64_t{gridDim.x} * kThreads) {
    const std::uint32_t at = positions[i];
    const T bits = current[at];
    values[i] = bits;
    snapshot[at] = bits;
  }
}

__device__ std::uint32_t cast_two(std::uint32_t low, std::uint32_t high) {
  return bf16_from_f32_bits(low) | std::uint32_t{bf16_from_f32_bits(high)} << 16;
}

__global__ void cast_elements(const uint4* masters, uint4* bf16, std::uint64_t vectors) {
  for (std::uint64_t v = std::uint64_t{blockIdx.x} * kThreads + threadIdx.x; v < vectors;
       v += std::uint64_t{gridDim.x} * kThreads) {
    const uint4 a = masters[2 * v];
    const uint4 b = masters[2 * v + 1];
    bf16[v] = uint4{cast_two(a.x, a.y), cast_two(a.z, a.w), cast_two(b.x, b.y), cast_two(b.z, b.w)};
  }
}

template <class T>
cudaError_t select(void* temporary, std::size_t& bytes, const T* current, const T* snapshot, std::uint32_t* positions,
                   std::uint64_t* count, std::uint64_t elements, cudaStream_t stream) {
  return cub::DeviceSelect::If(temporary, bytes, thrust::counting_iterator<std::uint32_t>(0), positions, count,
                               static_cast<std::int64_t>(elements), Differs<T>{current, snapshot}, stream);
}

}  // namespace

CubSelect::CubSelect(DType dtype, std::uint64_t elements, std::uint64_t most_changed)
    : dtype_(dtype),
      elements_(elements),
      positions_(most_changed * sizeof(std::uint32_t)),
      values_(most_changed * element_size(dtype)),
      counts_((elements + kSlab - 1) / kSlab * sizeof(std::uint64_t)) {
  std::size_t bytes = 0;
  cuda::check(
      select<std::uint32_t>(nullptr, bytes, nullptr, nullptr, nullptr, nullptr, std::min(elements, kSlab), nullptr),
      "cub::DeviceSelect::If");
  temporary_ = cuda::DeviceMemory(2 * bytes);  // Enough for any element type.
}

template <class T>
void CubSelect::run_slabs(const T* current, T* snapshot, cudaStream_t stream) {
  for (std::uint64_t begin = 0; begin < elements_; begin += kSlab) {
    std::uint64_t* count = counts_.as<std::uint64_t>() + begin / kSlab;
    std::size_t bytes = temporary_.bytes();
    cuda::check(select(temporary_.as<>(), bytes, current + begin, snapshot + begin, positions_.as<std::uint32_t>(),
                       count, std::min(kSlab, elements_ - begin), stream),
                "cub::DeviceSelect::If");
    cuda::launch(gather_values<T>, blocks_for(positions_.bytes() / sizeof(std::uint32_t), kBlocks), kThreads, stream,
                 positions_.as<std::uint32_t>(), count, current + begin, snapshot + begin, values_.as<T>());
  }
}

void CubSelect::run(const void* d_current, void* d_snapshot, cudaStream_t stream) {
  switch (element_size(dtype_)) {
    case 1:
      return run_slabs(static_cast<const std::uint8_t*>(d_current), static_cast<std::uint8_t*>(d_snapshot), stream);
    case 2:
      return run_slabs(static_cast<const std::uint16_t*>(d_current), static_cast<std::uint16_t*>(d_snapshot), stream);
    default:
      return run_slabs(static_cast<const std::uint32_t*>(d_current), static_cast<std::uint32_t*>(d_snapshot), stream);
  }
}

std::uint64_t CubSelect::changed(cudaStream_t stream) const {
  std::vector<std::uint64_t> counts(counts_.bytes() / sizeof(std::uint64_t));
  cuda::copy_async(counts.data(), counts_.as(), counts_.bytes(), cudaMemcpyDeviceToHost, stream);
  cuda::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  std::uint64_t total = 0;
  for (const std::uint64_t count : counts) total += count;
  return total;
}

void plain_cast(const float* d_masters, void* d_bf16, std::uint64_t elements, cudaStream_t stream) {
  cuda::launch(cast_elements, blocks_for(elements / 8, kBlocks), kThreads, stream,
               reinterpret_cast<const uint4*>(d_masters), static_cast<uint4*>(d_bf16), elements / 8);
}

}  // namespace sparsecast::bench
