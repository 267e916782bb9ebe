// SPDX-License-Identifier: Apache-2.0
#pragma once

// Writing of gaps as Rice codes with escapes (docs/wire-format.md §4.1), and of the exceptions among ulp magnitudes
// (§4.2): the parts that the position codecs `packed` and `context` share.

#include <cstdint>
#include <vector>

#include "codec/bits.hpp"
#include "codec/codec_common.hpp"
#include "codec/kernels.hpp"
#include "codec/pack_kernels.hpp"

namespace sparsecast {

/// Chooses the Rice parameter of the gaps of a packed block (docs/wire-format.md §5.2), and sets `kp` to it. Returns
/// the number of bits that the positions take with this parameter. `gaps` are the gaps between the `count` positions.
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

/// Writes the tails of the quotients in `escaped`, in order (docs/wire-format.md §4.1).
inline void put_escaped_tails(const std::vector<std::uint32_t>& escaped, BitWriter& writer) {
  for (const std::uint32_t quotient : escaped) {
    writer.put(quotient - quotient_of_zeros(quotient_zeros(quotient)), quotient_tail_bits(quotient));
  }
}

/// Returns the Rice parameter for the gaps between `count` exceptions, whose indices increase; 0 when there are no
/// exceptions.
inline std::uint32_t exceptions_parameter(const std::uint32_t* index, std::uint32_t count) {
  return count == 0 ? 0 : rice_parameter(index[count - 1] + 1 - count, count);
}

/// Writes `count` exceptions: their number, the gaps between their indices `index` with Rice parameter `ke`, and the
/// numbers `high`, which are their magnitudes without the low bits and must not be 0. `gaps` is scratch memory of
/// `count` entries.
template <class Word>
void put_exceptions(const std::uint32_t* index, std::uint32_t count, std::uint32_t ke, const Word* high,
                    std::uint32_t* gaps, BitWriter& writer) {
  writer.put_exp_golomb(count);
  if (count == 0) return;
  cpu::list_gaps(index, count, gaps);
  cpu::put_fields(gaps, count, ke, writer);
  cpu::put_unary(gaps, count, ke, writer);
  cpu::put_unary_tail_widths(high, count, writer);
  cpu::put_tails(high, count, writer);
}

}  // namespace sparsecast
