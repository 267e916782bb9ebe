// SPDX-License-Identifier: Apache-2.0
#pragma once

// Writing of gaps as Rice codes with escapes (docs/wire-format.md §4.1), and of the exceptions among ulp magnitudes
// (§4.2): what the position codecs `packed` and `context` have in common.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "codec/bits.hpp"
#include "codec/codec_common.hpp"
#include "codec/kernels.hpp"

namespace sparsecast {

/// Gaps between positions (docs/wire-format.md §4.1).
inline void list_gaps(const std::uint32_t* positions, std::uint32_t count, std::uint32_t* gaps) {
  gaps[0] = positions[0];
  for (std::uint32_t i = 1; i < count; ++i) gaps[i] = positions[i] - positions[i - 1] - 1;
}

/// docs/wire-format.md §5.2: sets kp and returns the bits of the packed part.
inline std::uint64_t choose_kp(const std::uint32_t* positions, const std::uint32_t* gaps, std::uint32_t count,
                               std::uint32_t& kp) {
  const auto bits_with = [&](std::uint32_t k) {
    return std::uint64_t{count} * (k + 1) + cpu::quotient_bits(gaps, count, k);
  };
  kp = rice_parameter(positions[count - 1] + 1 - count, count);
  std::uint64_t bits = bits_with(kp);
  while (kp > 0) {
    const std::uint64_t lower = bits_with(kp - 1);
    if (lower >= bits) break;
    bits = lower;
    --kp;
  }
  return bits;
}

/// Two neighbouring gaps, the first in the low half.
inline std::uint64_t gap_pair(const std::uint32_t* gaps) {
  std::uint64_t pair;
  std::memcpy(&pair, gaps, sizeof(pair));
  return pair;
}

/// The remainders of all gaps, `kp` bits each, eight in one store where they fit.
inline void put_remainders(const std::uint32_t* gaps, std::uint32_t count, std::uint32_t kp, BitWriter& writer) {
  const std::uint64_t mask = (std::uint64_t{1} << kp) - 1;
  const std::uint64_t both = mask | mask << 32;
  const auto two = [&](const std::uint32_t* at) {
    const std::uint64_t pair = gap_pair(at) & both;
    return (pair | pair >> (32 - kp)) & (mask | mask << kp);
  };
  std::uint32_t i = 0;
  if (8 * kp <= 56) {
    for (; i + 8 <= count; i += 8) {
      const std::uint64_t low = two(gaps + i) | two(gaps + i + 2) << (2 * kp);
      const std::uint64_t high = two(gaps + i + 4) | two(gaps + i + 6) << (2 * kp);
      writer.put(low | high << (4 * kp), 8 * kp);
    }
  }
  if (4 * kp <= 56) {
    for (; i + 4 <= count; i += 4) writer.put(two(gaps + i) | two(gaps + i + 2) << (2 * kp), 4 * kp);
  }
  for (; i < count; ++i) writer.put(gaps[i] & mask, kp);
}

/// The codes of two quotients below kEscape: at [first + kEscape * second] bits, and their number from bit 24 on.
struct QuotientPairs {
  constexpr QuotientPairs() {
    for (std::uint32_t first = 0; first < kEscape; ++first) {
      for (std::uint32_t second = 0; second < kEscape; ++second) {
        const std::uint32_t end = first + 1 + second;
        codes[first + kEscape * second] = 1U << first | 1U << end | (end + 1) << 24;
      }
    }
  }
  std::uint32_t codes[kEscape * kEscape] = {};
};
inline constexpr QuotientPairs kQuotientPairs;

/// The quotients of all gaps, several in one store; lists those that are escaped.
inline void put_quotients(const std::uint32_t* gaps, std::uint32_t count, std::uint32_t kp, BitWriter& writer,
                          std::vector<std::uint32_t>& escaped) {
  const auto put_one = [&](std::uint32_t quotient) {
    writer.put_unary(quotient_zeros(quotient));
    if (quotient >= kEscape) escaped.push_back(quotient);
  };
  static_assert(std::has_single_bit(kEscape), "so that one comparison tells of all four");
  const auto two = [&](const std::uint32_t* at) {
    return std::uint64_t{kQuotientPairs.codes[(at[0] >> kp) + kEscape * (at[1] >> kp)]};
  };
  std::uint32_t i = 0;
  for (; i + 4 <= count; i += 4) {
    if ((gaps[i] | gaps[i + 1] | gaps[i + 2] | gaps[i + 3]) >> kp < kEscape) {
      const std::uint64_t low = two(gaps + i);
      const std::uint64_t high = two(gaps + i + 2);
      const std::uint64_t low_bits = low >> 24;
      writer.put((low & 0xFFFFFFU) | (high & 0xFFFFFFU) << low_bits,
                 static_cast<std::uint32_t>(low_bits + (high >> 24)));
    } else {
      for (std::uint32_t j = 0; j < 4; ++j) put_one(gaps[i + j] >> kp);
    }
  }
  for (; i < count; ++i) put_one(gaps[i] >> kp);
}

/// The tails of the escaped quotients, in order.
inline void put_tails(const std::vector<std::uint32_t>& escaped, BitWriter& writer) {
  for (const std::uint32_t quotient : escaped) {
    writer.put(quotient - quotient_of_zeros(quotient_zeros(quotient)), quotient_tail_bits(quotient));
  }
}

/// Rice parameter of the gaps between `count` exceptions, whose indices increase; 0 when there are none.
inline std::uint32_t exceptions_parameter(const std::uint32_t* index, std::uint32_t count) {
  return count == 0 ? 0 : rice_parameter(index[count - 1] + 1 - count, count);
}

/// The exceptions: their number, the gaps between their indices, and high(e), not 0, of each.
template <class High>
void put_exceptions(const std::uint32_t* index, std::uint32_t count, std::uint32_t ke, const High& high,
                    BitWriter& writer) {
  writer.put_exp_golomb(count);
  const auto gap = [index](std::uint32_t e) { return e == 0 ? index[0] : index[e] - index[e - 1] - 1; };
  const auto high_width = [&](std::uint32_t e) { return bits_below_highest(high(e)); };
  for (std::uint32_t e = 0; e < count; ++e) writer.put(gap(e) & ((1U << ke) - 1), ke);
  for (std::uint32_t e = 0; e < count; ++e) writer.put_unary(gap(e) >> ke);
  for (std::uint32_t e = 0; e < count; ++e) writer.put_unary(high_width(e));
  for (std::uint32_t e = 0; e < count; ++e) {
    writer.put_long(high(e) ^ std::uint64_t{1} << high_width(e), high_width(e));
  }
}

}  // namespace sparsecast
