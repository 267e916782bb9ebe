// SPDX-License-Identifier: Apache-2.0
#pragma once

// The mix of the state digest (docs/wire-format.md §6), shared by host and device.

#include <cstdint>

#include "core/host_device.hpp"

namespace sparsecast {

/// A 128-bit sum as two words; the device has no native 128-bit integer in every compiler.
struct DigestSum {
  std::uint64_t lo = 0;
  std::uint64_t hi = 0;
};

inline constexpr std::uint64_t kDigestStep = 0x9E3779B97F4A7C15ULL;
inline constexpr std::uint64_t kDigestMixer = 0xD6E8FEB86659FD93ULL;
inline constexpr std::uint64_t kDigestSpread = 0xA0761D6478BD642FULL;

/// Returns the counter of element `index` of the tensor whose key has low word `key_lo`. That of the next element is
/// larger by kDigestStep.
SPARSECAST_HD std::uint64_t digest_counter(std::uint64_t key_lo, std::uint64_t index) {
  return key_lo + (index + 1) * kDigestStep;
}

/// Returns the odd multiplier of the element that has this counter.
SPARSECAST_HD std::uint64_t digest_multiplier(std::uint64_t counter) {
  const std::uint64_t k = (counter ^ (counter >> 32)) * kDigestMixer;
  return (k ^ (k >> 32)) | 1;
}
SPARSECAST_HD std::uint64_t digest_multiplier(std::uint64_t key_lo, std::uint64_t index) {
  return digest_multiplier(digest_counter(key_lo, index));
}

/// Returns the multiplicand of an element with storage bits `bits`.
SPARSECAST_HD std::uint64_t digest_multiplicand(std::uint64_t key_hi, std::uint64_t bits) {
  return (bits * kDigestSpread) ^ key_hi;
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

SPARSECAST_HD void digest_add(DigestSum& sum, std::uint64_t a, std::uint64_t b) {
  std::uint64_t lo;
  std::uint64_t hi;
  multiply_wide(a, b, lo, hi);
  sum.lo += lo;
  sum.hi += hi + (sum.lo < lo ? 1 : 0);
}

/// Adds the change of the digest when element `index` changes from `old_bits` to `new_bits`. One product serves both
/// terms: with multiplicands n and o, a n - a o = a ((n - o) mod 2^64) - (n < o ? 2^64 a : 0).
SPARSECAST_HD void digest_replace(DigestSum& sum, std::uint64_t key_lo, std::uint64_t key_hi, std::uint64_t index,
                                  std::uint64_t old_bits, std::uint64_t new_bits) {
  const std::uint64_t a = digest_multiplier(key_lo, index);
  const std::uint64_t new_word = digest_multiplicand(key_hi, new_bits);
  const std::uint64_t old_word = digest_multiplicand(key_hi, old_bits);
  std::uint64_t lo;
  std::uint64_t hi;
  multiply_wide(a, new_word - old_word, lo, hi);
  hi -= new_word < old_word ? a : 0;
  sum.lo += lo;
  sum.hi += hi + (sum.lo < lo ? 1 : 0);
}

}  // namespace sparsecast
