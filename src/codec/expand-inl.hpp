// SPDX-License-Identifier: Apache-2.0

// Positions of the bits of masks, for the files that Highway compiles once for each instruction set; each includes this
// after <hwy/highway.h>.

#if defined(SPARSECAST_CODEC_EXPAND_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef SPARSECAST_CODEC_EXPAND_INL_HPP
#undef SPARSECAST_CODEC_EXPAND_INL_HPP
#else
#define SPARSECAST_CODEC_EXPAND_INL_HPP
#endif

#include <hwy/highway.h>

#include <bit>
#include <cstdint>

HWY_BEFORE_NAMESPACE();
// Capitals, as Highway has them: the functions that call these have the same words.
// NOLINTBEGIN(readability-identifier-naming)
namespace sparsecast::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Writes the positions of the set bits of `words` mask words to `positions`; bit 0 of the first word has the position
/// `first`. Returns the end of the written positions; may write up to 64 entries beyond this end.
HWY_INLINE std::uint32_t* ExpandWords(const std::uint64_t* mask, std::uint32_t words, std::uint32_t first,
                                      std::uint32_t* positions) {
  // The guard bit spares a test for zero, which compilers turn into a branch.
  constexpr std::uint64_t kGuard = std::uint64_t{1} << 63;
  for (std::uint32_t w = 0; w < words; ++w, first += 64) {
    std::uint64_t bits = mask[w];
    std::uint32_t* out = positions;
    positions += std::popcount(bits);
    // At about 1 % a word has 0.6 bits set: two writes without a branch mispredict least.
    do {
      out[0] = first + static_cast<std::uint32_t>(std::countr_zero(bits | kGuard));
      bits &= bits - 1;
      out[1] = first + static_cast<std::uint32_t>(std::countr_zero(bits | kGuard));
      bits &= bits - 1;
      out += 2;
    } while (HWY_UNLIKELY(bits != 0));
  }
  return positions;
}

/// Does the same as ExpandWords, faster for masks with many set bits: makes a vector of consecutive positions at a
/// time, and keeps those whose bits are set.
HWY_INLINE std::uint32_t* ExpandDenseWords(const std::uint64_t* mask, std::uint32_t words, std::uint32_t first,
                                           std::uint32_t* positions) {
  const hn::ScalableTag<std::uint32_t> d;
  const auto lanes = static_cast<std::uint32_t>(hn::Lanes(d));
  if (lanes > 64) return ExpandWords(mask, words, first, positions);
  const auto step = hn::Set(d, lanes);
  auto candidates = hn::Iota(d, first);
  for (std::uint32_t w = 0; w < words; ++w) {
    for (std::uint32_t at = 0; at < 64; at += lanes, candidates = hn::Add(candidates, step)) {
      const std::uint64_t bits = lanes == 64 ? mask[w] : mask[w] >> at & ((std::uint64_t{1} << lanes % 64) - 1);
      const auto kept = hn::LoadMaskBits(d, reinterpret_cast<const std::uint8_t*>(&bits));
      hn::StoreU(hn::Compress(candidates, kept), d, positions);
      positions += std::popcount(bits);
    }
  }
  return positions;
}

/// Least average number of set bits per mask word with which ExpandDenseWords is faster than ExpandWords.
constexpr std::uint32_t kDenseBits = 3;

/// Does the same as ExpandWords; chooses the faster of the two functions above by the number of set bits.
HWY_INLINE std::uint32_t* Expand(const std::uint64_t* mask, std::uint32_t words, std::uint32_t first,
                                 std::uint32_t* positions) {
  std::uint32_t bits = 0;
  for (std::uint32_t w = 0; w < words; ++w) bits += static_cast<std::uint32_t>(std::popcount(mask[w]));
  return bits < kDenseBits * words ? ExpandWords(mask, words, first, positions)
                                   : ExpandDenseWords(mask, words, first, positions);
}

}  // namespace sparsecast::cpu::HWY_NAMESPACE
// NOLINTEND(readability-identifier-naming)
HWY_AFTER_NAMESPACE();

#endif  // SPARSECAST_CODEC_EXPAND_INL_HPP
