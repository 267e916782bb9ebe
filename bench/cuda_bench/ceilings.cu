// SPDX-License-Identifier: Apache-2.0
#include "cuda_bench/ceilings.hpp"

#include "cuda/common/launch.hpp"
#include "cuda_bench/grid.hpp"

namespace sparsecast::bench {
namespace {

/// Enough CTAs to fill every device several times over.
constexpr unsigned kCtas = 1U << 14;

template <unsigned kInFlight>
__global__ void scan_vectors(const uint4* a, const uint4* b, std::uint64_t vectors, std::uint32_t* differ) {
  std::uint32_t bits = 0;
  const std::uint64_t together = std::uint64_t{kInFlight} * kThreads;
  for (std::uint64_t begin = blockIdx.x * together; begin < vectors; begin += gridDim.x * together) {
    uint4 x[kInFlight];
    uint4 y[kInFlight];
    SPARSECAST_UNROLL
    for (unsigned j = 0; j < kInFlight; ++j) {
      const std::uint64_t at = begin + j * kThreads + threadIdx.x;
      x[j] = a[at < vectors ? at : vectors - 1];
      y[j] = b[at < vectors ? at : vectors - 1];
    }
    SPARSECAST_UNROLL
    for (unsigned j = 0; j < kInFlight; ++j) {
      bits |= (x[j].x ^ y[j].x) | (x[j].y ^ y[j].y) | (x[j].z ^ y[j].z) | (x[j].w ^ y[j].w);
    }
  }
  if (bits != 0) atomicOr(differ, 1U);
}

/// A thread has four elements in flight, as in apply.
template <class T>
__global__ void flip(T* elements, const std::uint32_t* positions, std::uint64_t count) {
  constexpr unsigned kInFlight = 4;
  const std::uint64_t together = std::uint64_t{kInFlight} * kThreads;
  for (std::uint64_t begin = blockIdx.x * together + threadIdx.x; begin < count; begin += gridDim.x * together) {
    T* at[kInFlight];
    T bits[kInFlight];
    SPARSECAST_UNROLL
    for (unsigned j = 0; j < kInFlight; ++j) {
      const std::uint64_t i = begin + j * kThreads;
      at[j] = elements + positions[i < count ? i : begin];
      bits[j] = *at[j];
    }
    SPARSECAST_UNROLL
    for (unsigned j = 0; j < kInFlight; ++j) {
      if (begin + j * kThreads < count) *at[j] = static_cast<T>(bits[j] ^ T{1});
    }
  }
}

template <class T>
void enqueue_flip(void* d_elements, const std::uint32_t* d_positions, std::uint64_t count, cudaStream_t stream) {
  cuda::launch(flip<T>, blocks_for(count / 4 + 1, kCtas), kThreads, stream, static_cast<T*>(d_elements), d_positions,
               count);
}

}  // namespace

void scan_both(const void* d_a, const void* d_b, std::uint64_t bytes, unsigned in_flight, std::uint32_t* d_differ,
               cudaStream_t stream) {
  cuda::check(cudaMemsetAsync(d_differ, 0, sizeof(*d_differ), stream), "cudaMemsetAsync");
  const unsigned ctas = blocks_for(bytes / 16 / in_flight + 1, kCtas);
  cuda::launch(in_flight == 4 ? scan_vectors<4> : scan_vectors<8>, ctas, kThreads, stream,
               static_cast<const uint4*>(d_a), static_cast<const uint4*>(d_b), bytes / 16, d_differ);
}

void flip_elements(void* d_elements, std::size_t element_bytes, const std::uint32_t* d_positions, std::uint64_t count,
                   cudaStream_t stream) {
  switch (element_bytes) {
    case 1:
      return enqueue_flip<std::uint8_t>(d_elements, d_positions, count, stream);
    case 2:
      return enqueue_flip<std::uint16_t>(d_elements, d_positions, count, stream);
    default:
      return enqueue_flip<std::uint32_t>(d_elements, d_positions, count, stream);
  }
}

}  // namespace sparsecast::bench
