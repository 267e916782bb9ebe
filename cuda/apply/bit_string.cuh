#pragma once

// Bit strings read by all threads of a block together, least significant bit first (docs/wire-format.md §1). Nothing
// beyond the words is read, wherever a caller asks; bits there are zero.

#include "cuda/common/cta_primitives.cuh"

namespace sparsecast::cuda {

/// No valid payload is longer: 2^22 changes take less than 2^31 bits in any coding. Bits are numbered in 32 bits.
inline constexpr std::uint32_t kMostPayloadWords = 1U << 26;

struct BitString {
  const std::uint32_t* words = nullptr;
  std::uint32_t count = 0;  ///< At most kMostPayloadWords.

  __device__ std::uint32_t bits() const { return count * 32; }
  __device__ std::uint32_t word(std::uint32_t w) const { return w < count ? words[w] : 0; }
  /// 0 to 32 bits.
  __device__ std::uint32_t get(std::uint32_t bit, std::uint32_t width) const {
    if (width == 0) return 0;
    const std::uint64_t two = std::uint64_t{word(bit / 32 + 1)} << 32 | word(bit / 32);
    return static_cast<std::uint32_t>(two >> bit % 32) & ~0U >> (32 - width);
  }
  /// 0 to 64 bits.
  __device__ std::uint64_t get_long(std::uint32_t bit, std::uint32_t width) const {
    if (width <= 32) return get(bit, width);
    return get(bit, 32) | std::uint64_t{get(bit + 32, width - 32)} << 32;
  }
  /// True when what is left of the 4-byte unit that ends at or after `bit` is zero.
  __device__ bool padded_at(std::uint32_t bit) const { return get(bit, (32 - bit % 32) % 32) == 0; }
};

/// Puts where the next ones from bit `from` on are into `ones`, at most `wanted` of them, and returns their number:
/// less than `wanted` when the string ends, or when about `most_zeros` zeros follow one another. One block scan for
/// 8192 bits.
__device__ inline std::uint32_t find_ones(const BitString& bits, std::uint32_t from, std::uint32_t wanted,
                                          std::uint32_t most_zeros, std::uint32_t* ones, ScanShared& scan) {
  std::uint32_t found = 0;
  std::uint32_t zeros = 0;
  for (std::uint32_t first = from / 32; first < bits.count && found < wanted; first += kThreads) {
    const std::uint32_t w = first + threadIdx.x;
    std::uint32_t word = bits.word(w);
    if (w == from / 32) word &= ~0U << from % 32;
    const Scanned scanned = block_scan(scan, static_cast<std::uint32_t>(__popc(word)));
    for (std::uint32_t rank = found + static_cast<std::uint32_t>(scanned.before); word != 0 && rank < wanted; ++rank) {
      ones[rank] = 32 * w + static_cast<std::uint32_t>(__ffs(static_cast<int>(word))) - 1;
      word &= word - 1;
    }
    const auto total = static_cast<std::uint32_t>(scanned.total);
    found = total < wanted - found ? found + total : wanted;
    zeros = total == 0 ? zeros + 32 * kThreads : 0;
    if (zeros > most_zeros + 32) break;  // Of the first word up to 31 were not looked at.
  }
  __syncthreads();
  return found;
}

/// Zeros before one r of `ones`, the first of which belong to a code that starts at `begin`.
__device__ inline std::uint32_t zeros_before(const std::uint32_t* ones, std::uint32_t r, std::uint32_t begin) {
  return ones[r] - (r == 0 ? begin : ones[r - 1] + 1);
}

}  // namespace sparsecast::cuda
