// SPDX-License-Identifier: Apache-2.0
#pragma once

// digest_live: the state digest (docs/wire-format.md §6) of live tensors, which it reads in full. Contiguous tensors
// are read in vectors of 16 bytes from their first 16-byte boundary on, and an addition gives the digest counter of the
// next element. Strided views cost their divisions for each element. Grid: a few CTAs on each multiprocessor; each
// takes one slice after another.

#include "cuda/apply/directories.cuh"

namespace sparsecast::cuda {

/// A sum below 2^96: carries * 2^64 + low.
struct LongSum {
  std::uint64_t low = 0;
  std::uint32_t carries = 0;

  __device__ void add_product(std::uint32_t a, std::uint32_t b) {
#if defined(__CUDA_ARCH__)
    // In assembly, because the carry costs a comparison of 64 bits in C++.
    auto word = static_cast<std::uint32_t>(low);
    auto high = static_cast<std::uint32_t>(low >> 32);
    asm("mad.lo.cc.u32 %0, %3, %4, %0;\n\tmadc.hi.cc.u32 %1, %3, %4, %1;\n\taddc.u32 %2, %2, 0;"
        : "+&r"(word), "+&r"(high), "+&r"(carries)
        : "r"(a), "r"(b));
    low = std::uint64_t{high} << 32 | word;
#else
    const std::uint64_t product = std::uint64_t{a} * b;
    low += product;
    carries += low < product ? 1 : 0;
#endif
  }
};

/// Sum of the digests of one thread's elements. The products of 32-bit halves are summed separately, with their
/// carries; total() combines the partial sums.
struct DigestHalves {
  LongSum low;
  LongSum middle;
  std::uint64_t high = 0;

  /// Adds the digest of one element: its bits times its weight.
  template <class T>
  __device__ void add(std::uint64_t weight, T bits) {
    const auto a_low = static_cast<std::uint32_t>(weight);
    const auto a_high = static_cast<std::uint32_t>(weight >> 32);
    const std::uint64_t word = digest_word(bits);
    const auto b_low = static_cast<std::uint32_t>(word);
    low.add_product(a_low, b_low);
    middle.add_product(a_high, b_low);
    if constexpr (sizeof(T) == 8) {
      const auto b_high = static_cast<std::uint32_t>(word >> 32);
      middle.add_product(a_low, b_high);
      high += std::uint64_t{a_high} * b_high;
    }
  }
  __device__ DigestSum total() const {
    const DigestSum shifted{middle.low << 32, (middle.low >> 32) + (std::uint64_t{middle.carries} << 32)};
    return AddDigests{}(DigestSum{low.low, high + low.carries}, shifted);
  }
};

/// Adds the digest of the elements of one 16-byte vector to `sum`. `counter` is the digest counter of the vector's
/// first element; `key_hi` is the upper half of the tensor's digest key.
template <class T>
__device__ void digest_vector(const uint4& vector, std::uint64_t counter, std::uint64_t key_hi, DigestHalves& sum) {
  const std::uint32_t words[4] = {vector.x, vector.y, vector.z, vector.w};
  constexpr unsigned kEach = 16 / sizeof(T);
  SPARSECAST_UNROLL
  for (unsigned e = 0; e < kEach; ++e) {
    T bits;
    if constexpr (sizeof(T) == 8) {
      bits = words[2 * e] | std::uint64_t{words[2 * e + 1]} << 32;
    } else {
      constexpr unsigned kOfWord = 4 / sizeof(T);
      bits = static_cast<T>(words[e / kOfWord] >> e % kOfWord * 8 * sizeof(T));
    }
    sum.add(digest_weight(counter + e * kDigestStep, key_hi), bits);
  }
}

/// Adds the digest of `vectors` vectors of 16 bytes, from element `begin` of a contiguous tensor on. The threads of the
/// CTA share the vectors; each adds its part to its own `sum`.
template <class T>
__device__ void digest_vectors(const LiveTensor& tensor, std::uint64_t begin, std::uint32_t vectors,
                               DigestHalves& sum) {
  constexpr std::uint32_t kEach = 16 / sizeof(T);
  constexpr std::uint32_t kInFlight = 4;
  const auto* data = in_global(reinterpret_cast<const uint4*>(reinterpret_cast<const T*>(tensor.data) + begin));
  const std::uint64_t key_hi = tensor.key_hi;
  std::uint64_t counter = digest_counter(tensor.key_lo, begin + threadIdx.x * kEach);
  std::uint32_t v = threadIdx.x;
  for (; v + (kInFlight - 1) * kThreads < vectors; v += kInFlight * kThreads) {
    uint4 loaded[kInFlight];
    SPARSECAST_UNROLL
    for (std::uint32_t j = 0; j < kInFlight; ++j) loaded[j] = data[v + j * kThreads];
    SPARSECAST_UNROLL
    for (std::uint32_t j = 0; j < kInFlight; ++j) {
      digest_vector<T>(loaded[j], counter, key_hi, sum);
      counter += kThreads * kEach * kDigestStep;
    }
  }
  for (; v < vectors; v += kThreads) {
    digest_vector<T>(data[v], counter, key_hi, sum);
    counter += kThreads * kEach * kDigestStep;
  }
}

/// Adds the digest of elements [begin, end) of a tensor. The threads of the CTA share the elements; each adds its part
/// to its own `sum`. `begin` must be the first element of a tile.
template <class T>
__device__ void digest_elements(const Received& received, const LiveTensor& tensor, std::uint64_t begin,
                                std::uint64_t end, DigestHalves& sum) {
  const StridedView* const view = view_at(received.views, tensor.view);
  const StridedView* const digest_view = view_at(received.views, tensor.digest_view);
  const auto element = [&](std::int64_t i) { return reinterpret_cast<const T*>(tensor.data)[i]; };
  if (view == nullptr && digest_view == nullptr) {
    constexpr std::uint32_t kEach = 16 / sizeof(T);
    // Number of elements before the first 16-byte boundary. Every slice has the same number, because the bytes of a
    // slice are a multiple of 16.
    const auto head =
        static_cast<std::uint32_t>((0 - reinterpret_cast<std::uintptr_t>(tensor.data)) / sizeof(T) % kEach);
    const auto count = static_cast<std::uint32_t>(end - begin);
    const std::uint32_t vectors = count < head ? 0 : (count - head) / kEach;
    digest_vectors<T>(tensor, begin + head, vectors, sum);
    for (std::uint32_t n = threadIdx.x; n < count - vectors * kEach; n += kThreads) {
      const std::uint64_t i = begin + n + (n < head ? 0 : vectors * kEach);
      sum.add(digest_weight(tensor.key_lo, tensor.key_hi, i), element(static_cast<std::int64_t>(i)));
    }
    return;
  }
  for (std::uint64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    sum.add(digest_weight(tensor.key_lo, tensor.key_hi, digest_place(digest_view, i)), element(place_of(view, i)));
  }
}

/// Number of tiles in a slice, the part of a section that a CTA sums at a time.
inline constexpr std::uint32_t kDigestTiles = 16;

/// Reads each tensor in full and adds its digest to `sums`, which has two words (low, high) for each tensor. They must
/// be zero before the launch.
static __global__ void __launch_bounds__(kThreads)
    digest_live(Received received, const SectionEntry* sections, std::uint32_t section_count, std::uint64_t* sums) {
  SPARSECAST_SHARED(InspectShared, shared);
  constexpr std::uint32_t kSlices = kTilesPerSection / kDigestTiles;
  const std::uint64_t all = std::uint64_t{section_count} * kSlices;
  for (std::uint64_t item = blockIdx.x; item < all; item += gridDim.x) {
    const SectionEntry section = sections[item / kSlices];
    const LiveTensor& tensor = received.tensors[section.tensor];
    const std::uint64_t begin = (std::uint64_t{section.first_tile} + item % kSlices * kDigestTiles) * kTileElems;
    if (begin >= tensor.elements) continue;
    const std::uint64_t most = begin + std::uint64_t{kDigestTiles} * kTileElems;
    const std::uint64_t end = most < tensor.elements ? most : tensor.elements;
    DigestHalves sum;
    switch (tensor.element_shift) {
      case 0:
        digest_elements<std::uint8_t>(received, tensor, begin, end, sum);
        break;
      case 1:
        digest_elements<std::uint16_t>(received, tensor, begin, end, sum);
        break;
      case 2:
        digest_elements<std::uint32_t>(received, tensor, begin, end, sum);
        break;
      default:
        digest_elements<std::uint64_t>(received, tensor, begin, end, sum);
    }
    add_to_digest(shared.digest, sum.total(), &sums[2 * section.tensor], &sums[2 * section.tensor + 1]);
  }
}

}  // namespace sparsecast::cuda
