// SPDX-License-Identifier: Apache-2.0
#pragma once

// Bit strings that all threads of a CTA read together, least significant bit first (docs/wire-format.md §1). Words
// beyond the end are never read; their bits count as zero.

#include "cuda/common/cta_primitives.cuh"

namespace sparsecast::cuda {

/// Upper bound of the number of 4-byte words in a valid payload: 2^22 changes take less than 2^31 bits in any coding.
/// So a bit number fits into 32 bits.
inline constexpr std::uint32_t kMostPayloadWords = 1U << 26;

/// A bit string in memory. Reading beyond its end yields zeros.
struct BitString {
  const std::uint32_t* words = nullptr;
  std::uint32_t count = 0;  ///< Number of words, at most kMostPayloadWords.

  __device__ std::uint32_t bits() const { return count * 32; }
  __device__ std::uint32_t word(std::uint32_t w) const { return w < count ? words[w] : 0; }
  /// Returns the `width` bits (0 to 32) that begin at bit number `bit`.
  __device__ std::uint32_t get(std::uint32_t bit, std::uint32_t width) const {
    if (width == 0) return 0;
    const std::uint64_t two = std::uint64_t{word(bit / 32 + 1)} << 32 | word(bit / 32);
    return static_cast<std::uint32_t>(two >> bit % 32) & ~0U >> (32 - width);
  }
  /// Returns the `width` bits (0 to 64) that begin at bit number `bit`.
  __device__ std::uint64_t get_long(std::uint32_t bit, std::uint32_t width) const {
    if (width <= 32) return get(bit, width);
    return get(bit, 32) | std::uint64_t{get(bit + 32, width - 32)} << 32;
  }
  /// Returns whether all bits from bit number `bit` to the end of the 32-bit word that contains it are zero.
  __device__ bool padded_at(std::uint32_t bit) const { return get(bit, (32 - bit % 32) % 32) == 0; }
};

/// Finds the next `wanted` one bits, from bit number `from` on, and writes their bit numbers to `ones`. Returns how
/// many it found: fewer than `wanted` if the string ends first. It may also stop early in a run of more than
/// `most_zeros` zeros, which no valid code contains. All threads of the CTA must call it; it costs one scan of the CTA
/// for every 8192 bits.
__device__ inline std::uint32_t find_ones(const BitString& bits, std::uint32_t from, std::uint32_t wanted,
                                          std::uint32_t most_zeros, std::uint32_t* ones, ScanShared& scan) {
  std::uint32_t found = 0;
  std::uint32_t zeros = 0;
  for (std::uint32_t first = from / 32; first < bits.count && found < wanted; first += kThreads) {
    const std::uint32_t w = first + threadIdx.x;
    std::uint32_t word = bits.word(w);
    if (w == from / 32) word &= ~0U << from % 32;
    const auto scanned = cta_scan(scan, static_cast<std::uint32_t>(__popc(word)));
    for (std::uint32_t rank = found + static_cast<std::uint32_t>(scanned.before); word != 0 && rank < wanted; ++rank) {
      ones[rank] = 32 * w + static_cast<std::uint32_t>(__ffs(static_cast<int>(word))) - 1;
      word &= word - 1;
    }
    const auto total = static_cast<std::uint32_t>(scanned.total);
    found = total < wanted - found ? found + total : wanted;
    zeros = total == 0 ? zeros + 32 * kThreads : 0;
    if (zeros > most_zeros + 32) break;  // Up to 31 bits of the first word were masked out.
  }
  __syncthreads();
  return found;
}

/// Returns the number of zeros directly before the one bit with bit number ones[r]; `ones` holds the bit numbers of
/// successive one bits. For r = 0, counts the zeros from bit number `begin` on.
__device__ inline std::uint32_t zeros_before(const std::uint32_t* ones, std::uint32_t r, std::uint32_t begin) {
  return ones[r] - (r == 0 ? begin : ones[r - 1] + 1);
}

}  // namespace sparsecast::cuda
