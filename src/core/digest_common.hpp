// SPDX-License-Identifier: Apache-2.0
#pragma once

// The state digest (docs/wire-format.md §6) and the sum of the words of a frame, shared by host and device.

#include <cstdint>

#include "core/host_device.hpp"

namespace sparsecast {

/// A 128-bit sum as two words.
struct DigestSum {
  std::uint64_t lo = 0;
  std::uint64_t hi = 0;
};

inline constexpr std::uint64_t kDigestStep = 0x9E3779B97F4A7C15ULL;

/// Returns the counter of element `index` of the tensor whose key has low word `key_lo`. The counter of the next
/// element is larger by kDigestStep.
SPARSECAST_HD std::uint64_t digest_counter(std::uint64_t key_lo, std::uint64_t index) {
  return key_lo + (index + 1) * kDigestStep;
}

// Multipliers of the three rounds of a weight: the first 32 bits of the fractions of the square roots of 3, 7 and 13,
// the first made even and the others odd, so that each round is a bijection.
inline constexpr std::uint32_t kDigestRound1 = 0xBB67AE86U;
inline constexpr std::uint32_t kDigestRound2 = 0xA54FF53BU;
inline constexpr std::uint32_t kDigestRound3 = 0x9B05688DU;

/// Returns the weight, an odd number, of the element that has this counter, in the tensor whose key has high word
/// `key_hi`. Each round multiplies one half of the word.
SPARSECAST_HD std::uint64_t digest_weight(std::uint64_t counter, std::uint64_t key_hi) {
  std::uint64_t x = (counter & 0xFFFFFFFFULL) * kDigestRound1 ^ counter ^ key_hi;
  x = (x >> 32) * kDigestRound2 ^ x << 32;
  x = (x >> 32) * kDigestRound3 ^ x << 32;
  return x | 1;
}
SPARSECAST_HD std::uint64_t digest_weight(std::uint64_t key_lo, std::uint64_t key_hi, std::uint64_t index) {
  return digest_weight(digest_counter(key_lo, index), key_hi);
}

/// Returns the digest word of an element with storage bits `bits`: a triangular number modulo 2^width, which is a
/// bijection of the bits. The digest adds the product of the element's weight and this word. How much a step of the
/// bits changes the word depends on all bits, so that a delta that is applied to bits other than those of its base
/// gives another digest.
template <class T>
SPARSECAST_HD std::uint64_t digest_word(T bits) {
  if constexpr (sizeof(T) == 8) {
    const auto high = static_cast<std::uint32_t>(bits >> 32);
    return std::uint64_t{high} << 32 | digest_word(static_cast<std::uint32_t>(bits) + high);
  } else if constexpr (sizeof(T) == 4) {
    const std::uint64_t u = bits;
    return static_cast<std::uint32_t>((u * u + u) >> 1);
  } else {
    const std::uint32_t u = bits;
    return static_cast<T>((u * u + u) >> 1);
  }
}

SPARSECAST_HD void multiply_wide(std::uint64_t a, std::uint64_t b, std::uint64_t& lo, std::uint64_t& hi) {
#if defined(__CUDA_ARCH__)
  lo = a * b;
  hi = __umul64hi(a, b);
#else
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  lo = static_cast<std::uint64_t>(product);
  hi = static_cast<std::uint64_t>(product >> 64);
#endif
}

/// Adds the 128-bit number hi * 2^64 + lo to a sum, modulo 2^128.
SPARSECAST_HD void add_wide(DigestSum& sum, std::uint64_t lo, std::uint64_t hi) {
  __extension__ using Wide = unsigned __int128;
  const Wide total = (static_cast<Wide>(sum.hi) << 64 | sum.lo) + (static_cast<Wide>(hi) << 64 | lo);
  sum.lo = static_cast<std::uint64_t>(total);
  sum.hi = static_cast<std::uint64_t>(total >> 64);
}

/// Adds an element to a digest: the product of its weight and its digest word.
SPARSECAST_HD void digest_add(DigestSum& sum, std::uint64_t weight, std::uint64_t word) {
  std::uint64_t lo;
  std::uint64_t hi;
  multiply_wide(weight, word, lo, hi);
  add_wide(sum, lo, hi);
}

/// Adds word number `index` of a frame to the sum of the frame's words. The sum is that of the state digest for a
/// tensor of 64-bit words with the key 0.
SPARSECAST_HD void add_frame_word(DigestSum& sum, std::uint64_t index, std::uint64_t word) {
  digest_add(sum, digest_weight(0, 0, index), digest_word(word));
}

/// Adds the change of a digest when the digest word of the element with this weight changes from `old_word` to
/// `new_word`. One product serves both terms: a n - a o = a ((n - o) mod 2^64) - (n < o ? 2^64 a : 0).
SPARSECAST_HD void digest_change(DigestSum& sum, std::uint64_t weight, std::uint64_t old_word, std::uint64_t new_word) {
  std::uint64_t lo;
  std::uint64_t hi;
  multiply_wide(weight, new_word - old_word, lo, hi);
  add_wide(sum, lo, hi - (new_word < old_word ? weight : 0));
}

/// Adds the change of a digest when element `index` of the tensor with this key changes from `old_bits` to `new_bits`.
template <class T>
SPARSECAST_HD void digest_replace(DigestSum& sum, std::uint64_t key_lo, std::uint64_t key_hi, std::uint64_t index,
                                  T old_bits, T new_bits) {
  digest_change(sum, digest_weight(key_lo, key_hi, index), digest_word(old_bits), digest_word(new_bits));
}

}  // namespace sparsecast
