// SPDX-License-Identifier: Apache-2.0
#pragma once

// Kernels for NaN-masked tensors (sparsecast/nan_masked.hpp). check_new_values and expand_blocks read the payloads and
// the live elements that change; fill_elements writes every element of a tensor once; the masked copies read every
// element of the source and write those that are not NaN, so that a copy after a sparse delta costs the bytes of its
// source. Grid: a few CTAs on each multiprocessor; each takes one block, or one element, after another.

#include "cuda/apply/decode_blocks.cuh"
#include "cuda/apply/nan_masked_launchers.hpp"

namespace sparsecast::cuda {

/// Number of CTAs of expand_blocks that one multiprocessor holds at once. Registers limit it.
inline constexpr unsigned kExpandCtas = 3;
/// Number of CTAs of check_new_values that one multiprocessor holds at once. It is smaller than kExpandCtas, because
/// the digest needs more registers.
inline constexpr unsigned kCheckCtas = 2;

/// Stores in `ranges`, for each tensor that has blocks, the range of its blocks. Leaves the ranges of other tensors as
/// they are.
static __global__ void __launch_bounds__(kThreads) find_tensor_blocks(Received received, BlockRange* ranges) {
  for (std::uint64_t b = std::uint64_t{blockIdx.x} * kThreads + threadIdx.x; b < received.block_count;
       b += std::uint64_t{gridDim.x} * kThreads) {
    const std::uint32_t tensor = received.blocks[b].tensor;
    if (b == 0 || received.blocks[b - 1].tensor != tensor) ranges[tensor].begin = static_cast<std::uint32_t>(b);
    if (b + 1 == received.block_count || received.blocks[b + 1].tensor != tensor) {
      ranges[tensor].end = static_cast<std::uint32_t>(b + 1);
    }
  }
}

template <class T>
struct CheckShared {
  union {
    DecodeShared<T> decode;
    CtaDigest::TempStorage digest;
  };
};

/// Records in `control` the first element that the delta would turn into a NaN, and adds the change of the digest.
/// Elements that do not change may be NaNs.
template <class T>
__global__ void __launch_bounds__(kThreads, kCheckCtas)
    check_new_values(Received received, Pass pass, ExpansionControl* control) {
  SPARSECAST_SHARED(CheckShared<T>, shared);
  DigestSum sum;
  const auto sink = [&](const ReceivedBlock& block, const std::uint32_t* positions, const T* words,
                        std::uint32_t entries) {
    const LiveTensor& tensor = received.tensors[block.tensor];
    for (std::uint32_t i = threadIdx.x; i < entries; i += kThreads) {
      const std::uint32_t position = positions[i];
      if (position >= block.span) continue;
      const std::uint64_t index = std::uint64_t{block.first_tile} * kTileElems + position;
      const T old_bits = live_element<T>(received, tensor, index);
      const T new_bits = changed_bits(old_bits, words[i], values_of(block), tensor.order, pass == Pass::kInverse);
      if (new_bits != old_bits && is_nan_bits(tensor.nan, new_bits)) {
        const auto number = static_cast<std::uint64_t>(&block - received.blocks);
        atomicMin(reinterpret_cast<unsigned long long*>(&control->nan_input_error),
                  static_cast<unsigned long long>(number << 24 | position));
      }
      digest_replace(sum, tensor.key_lo, tensor.key_hi, digest_index(received, tensor, index), old_bits, new_bits);
    }
  };
  decode_range<T>(received, received.blocks, received.blocks + received.block_count, shared.decode, sink);
  add_to_digest(shared.digest, sum, &control->digest_lo, &control->digest_hi);
}

/// Writes the new value of each changed element of the blocks in `range` to its row-major place in `out`.
template <class T>
__global__ void __launch_bounds__(kThreads, kExpandCtas)
    expand_blocks(Received received, Pass pass, BlockRange range, T* out) {
  SPARSECAST_SHARED(DecodeShared<T>, shared);
  const auto sink = [&](const ReceivedBlock& block, const std::uint32_t* positions, const T* words,
                        std::uint32_t entries) {
    const LiveTensor& tensor = received.tensors[block.tensor];
    for (std::uint32_t i = threadIdx.x; i < entries; i += kThreads) {
      const std::uint32_t position = positions[i];
      if (position >= block.span) continue;
      const std::uint64_t index = std::uint64_t{block.first_tile} * kTileElems + position;
      const T old_bits = live_element<T>(received, tensor, index);
      out[index] = changed_bits(old_bits, words[i], values_of(block), tensor.order, pass == Pass::kInverse);
    }
  };
  decode_range<T>(received, received.blocks + range.begin, received.blocks + range.end, shared, sink);
}

/// Number of elements of type T in a vector of 16 bytes.
template <class T>
inline constexpr std::uint32_t kInVector = 16 / sizeof(T);

/// Returns element number e of a vector of 16 bytes.
template <class T>
__device__ T vector_element(const uint4& vector, std::uint32_t e) {
  const std::uint32_t words[4] = {vector.x, vector.y, vector.z, vector.w};
  if constexpr (sizeof(T) == 8) {
    return std::uint64_t{words[2 * e + 1]} << 32 | words[2 * e];
  } else {
    constexpr std::uint32_t kInWord = 4 / sizeof(T);
    return static_cast<T>(words[e / kInWord] >> (8 * sizeof(T)) * (e % kInWord));
  }
}

__device__ inline bool is_aligned_for_vectors(const void* at) { return reinterpret_cast<std::uintptr_t>(at) % 16 == 0; }

/// Writes the value `fill` to `elements` elements from `out` on. `vector` is `fill`, repeated to fill 16 bytes.
template <class T>
__global__ void __launch_bounds__(kThreads) fill_elements(T* out, std::uint64_t elements, T fill, uint4 vector) {
  const std::uint64_t own = std::uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::uint64_t step = std::uint64_t{gridDim.x} * kThreads;
  const std::uint64_t vectors = is_aligned_for_vectors(out) ? elements / kInVector<T> : 0;
  for (std::uint64_t v = own; v < vectors; v += step) reinterpret_cast<uint4*>(out)[v] = vector;
  for (std::uint64_t i = vectors * kInVector<T> + own; i < elements; i += step) out[i] = fill;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    masked_copy_contiguous(const T* source, T* destination, std::uint64_t elements, NanPattern nan) {
  const std::uint64_t own = std::uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::uint64_t step = std::uint64_t{gridDim.x} * kThreads;
  const std::uint64_t vectors = is_aligned_for_vectors(source) ? elements / kInVector<T> : 0;
  const bool whole = is_aligned_for_vectors(destination);
  for (std::uint64_t v = own; v < vectors; v += step) {
    const uint4 vector = reinterpret_cast<const uint4*>(source)[v];
    std::uint32_t nans = 0;
    SPARSECAST_UNROLL
    for (std::uint32_t e = 0; e < kInVector<T>; ++e) nans += is_nan_bits(nan, vector_element<T>(vector, e)) ? 1 : 0;
    if (nans == kInVector<T>) continue;
    if (nans == 0 && whole) {
      reinterpret_cast<uint4*>(destination)[v] = vector;
      continue;
    }
    SPARSECAST_UNROLL
    for (std::uint32_t e = 0; e < kInVector<T>; ++e) {
      const T bits = vector_element<T>(vector, e);
      if (!is_nan_bits(nan, bits)) destination[v * kInVector<T> + e] = bits;
    }
  }
  for (std::uint64_t i = vectors * kInVector<T> + own; i < elements; i += step) {
    const T bits = source[i];
    if (!is_nan_bits(nan, bits)) destination[i] = bits;
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) masked_copy_strided(const T* source, T* destination, std::uint64_t elements,
                                                                StridedView from, StridedView to, NanPattern nan) {
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * kThreads + threadIdx.x; i < elements;
       i += std::uint64_t{gridDim.x} * kThreads) {
    const T bits = source[strided_offset(from, i)];
    if (!is_nan_bits(nan, bits)) destination[strided_offset(to, i)] = bits;
  }
}

}  // namespace sparsecast::cuda
