// SPDX-License-Identifier: Apache-2.0
#pragma once

// The mask of the changed elements of a tile, and how the threads of a CTA fill it. Each thread compares a few
// consecutive elements at a time (a piece) and stores their flags as bytes. So no word needs atomic operations, or to
// be zero before.

#include "cuda/common/coding_threads.cuh"

namespace sparsecast::cuda {

/// One bit for each element of a tile, in shared memory, lowest element first; the bit is set if the element has
/// changed. Bytes are in the order of little-endian words. While a tile with a lead (TensorEntry::lead) is compared,
/// `lead` unused bits precede the bits of its elements, which takes one more word.
union ChangeMask {
  std::uint32_t words[kMaskWords + 1];
  std::uint16_t halves[2 * (kMaskWords + 1)];
  std::uint8_t bytes[4 * (kMaskWords + 1)];
};

/// Returns, in bits 0 to 3, the highest bits of the four bytes of `flags`, lowest byte first. All other bits of `flags`
/// must be zero. The multiplication copies the four bits to bits 28 to 31 of the product, where its terms do not
/// overlap.
__device__ inline std::uint32_t gather_byte_flags(std::uint32_t flags) { return flags * 0x204081U >> 28; }

/// Returns the bits of `chosen` at which a and b differ. Computes them in one instruction; compilers on their own
/// compute a ^ b once for all uses, which costs one more instruction for each word.
__device__ inline std::uint32_t different_bits(std::uint32_t a, std::uint32_t b, std::uint32_t chosen) {
#if defined(__CUDA_ARCH__)
  std::uint32_t bits;
  asm("lop3.b32 %0, %1, %2, %3, 0x28;" : "=r"(bits) : "r"(a), "r"(b), "r"(chosen));
  return bits;
#else
  return (a ^ b) & chosen;
#endif
}

/// Returns a word in which the highest bit of each byte is set if that byte differs between a and b; all other bits are
/// zero.
__device__ inline std::uint32_t different_bytes(std::uint32_t a, std::uint32_t b) {
  constexpr std::uint32_t kLow = 0x7F7F7F7FU;
  return ((different_bits(a, b, kLow) + kLow) | (a ^ b)) & ~kLow;
}

/// Returns a word in which the highest bit of each 16-bit half is set if that half differs between a and b. All other
/// bits are undefined.
__device__ inline std::uint32_t different_halves(std::uint32_t a, std::uint32_t b) {
  constexpr std::uint32_t kLow = 0x7FFF7FFFU;
  return (different_bits(a, b, kLow) + kLow) | (a ^ b);
}

/// Compares four 16-bit elements of a with those of b. Returns four bits, lowest element first; a bit is set if its
/// elements differ. `a_low` and `b_low` hold the first two elements.
__device__ inline std::uint32_t four_different_halves(std::uint32_t a_low, std::uint32_t a_high, std::uint32_t b_low,
                                                      std::uint32_t b_high) {
  // Takes the highest byte of each half.
  return gather_byte_flags(__byte_perm(different_halves(a_low, b_low), different_halves(a_high, b_high), 0x7531) &
                           0x80808080U);
}

/// Compares the elements, of 2^kShift bytes, in two vectors of 16 bytes. Returns one bit for each element, lowest
/// first; the bit is set if the element differs between a and b.
template <unsigned kShift>
__device__ std::uint32_t different_elements(const uint4& a, const uint4& b) {
  if constexpr (kShift == 0) {
    return gather_byte_flags(different_bytes(a.x, b.x)) | gather_byte_flags(different_bytes(a.y, b.y)) << 4 |
           gather_byte_flags(different_bytes(a.z, b.z)) << 8 | gather_byte_flags(different_bytes(a.w, b.w)) << 12;
  } else if constexpr (kShift == 1) {
    return four_different_halves(a.x, a.y, b.x, b.y) | four_different_halves(a.z, a.w, b.z, b.w) << 4;
  } else if constexpr (kShift == 2) {
    return (a.x != b.x ? 1U : 0U) | (a.y != b.y ? 2U : 0U) | (a.z != b.z ? 4U : 0U) | (a.w != b.w ? 8U : 0U);
  } else {
    return (a.x != b.x || a.y != b.y ? 1U : 0U) | (a.z != b.z || a.w != b.w ? 2U : 0U);
  }
}

/// Stores in `mask` the flags of piece number `at`: one bit for each of its kFlags elements (2, 4, 8 or 16). Stores
/// nothing if `inside` is false, which means that the piece is outside the tile. All lanes of a warp must call it, with
/// consecutive pieces. The pieces of one mask byte must be all inside or all outside.
template <unsigned kFlags>
__device__ void store_flags(ChangeMask& mask, std::uint32_t at, std::uint32_t flags, bool inside) {
  if constexpr (kFlags == 16) {
    if (inside) mask.halves[at] = static_cast<std::uint16_t>(flags);
  } else {
    constexpr unsigned kPieces = 8 / kFlags;  // Pieces in a mask byte.
    SPARSECAST_UNROLL
    for (unsigned lane = 1; lane < kPieces; lane *= 2) {
      flags |= __shfl_down_sync(kAllLanes, flags, lane) << lane * kFlags;
    }
    if (inside && at % kPieces == 0) mask.bytes[at / kPieces] = static_cast<std::uint8_t>(flags);
  }
}

/// Sets `mask` for all elements of a whole tile, in pieces of kFlags elements. load(at) must load piece number `at`;
/// flags(loaded) must return, for the result of load(), one bit for each element, which is set if the element has
/// changed. Each thread loads kInFlight pieces at once.
template <std::uint32_t kInFlight, unsigned kFlags, class Load, class Flags>
__device__ void mark_whole_tile(ChangeMask& mask, const Load& load, const Flags& flags) {
  constexpr std::uint32_t kAtOnce = kInFlight * kThreads;
  static_assert(kTileElems / kFlags % kAtOnce == 0);
  for (std::uint32_t begin = threadIdx.x; begin < kTileElems / kFlags; begin += kAtOnce) {
    decltype(load(0)) loaded[kInFlight];
    SPARSECAST_UNROLL
    for (std::uint32_t j = 0; j < kInFlight; ++j) loaded[j] = load(begin + j * kThreads);
    SPARSECAST_UNROLL
    for (std::uint32_t j = 0; j < kInFlight; ++j) {
      store_flags<kFlags>(mask, begin + j * kThreads, flags(loaded[j]), true);
    }
  }
}

/// Does the same as mark_whole_tile(), but only for the pieces [first, end), which must fill whole words of `mask`.
template <std::uint32_t kInFlight, unsigned kFlags, class Load, class Flags>
__device__ void mark_pieces(std::uint32_t first, std::uint32_t end, ChangeMask& mask, const Load& load,
                            const Flags& flags) {
  constexpr std::uint32_t kAtOnce = kInFlight * kThreads;
  for (std::uint32_t begin = first; begin < end; begin += kAtOnce) {
    const std::uint32_t own = begin + threadIdx.x;
    decltype(load(0)) loaded[kInFlight];
    SPARSECAST_UNROLL
    for (std::uint32_t j = 0; j < kInFlight; ++j) {
      const std::uint32_t at = own + j * kThreads;
      loaded[j] = load(at < end ? at : end - 1);
    }
    SPARSECAST_UNROLL
    for (std::uint32_t j = 0; j < kInFlight; ++j) {
      const std::uint32_t at = own + j * kThreads;
      store_flags<kFlags>(mask, at, flags(loaded[j]), at < end);
    }
  }
}

/// Shifts the bits in `mask` down by `lead` places (fewer than 32), so that bit i belongs to element i. The bits above
/// the last element must be zero. The callers provide the barriers before and after the call.
__device__ inline void drop_lead(ChangeMask& mask, std::uint32_t lead) {
  const std::uint32_t low = mask.words[2 * threadIdx.x];
  const std::uint32_t middle = mask.words[2 * threadIdx.x + 1];
  const std::uint32_t high = mask.words[2 * threadIdx.x + 2];
  __syncthreads();
  mask.words[2 * threadIdx.x] = __funnelshift_r(low, middle, lead);
  mask.words[2 * threadIdx.x + 1] = __funnelshift_r(middle, high, lead);
}

}  // namespace sparsecast::cuda
