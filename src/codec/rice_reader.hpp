// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reading of the exceptions among ulp magnitudes (docs/wire-format.md §4.2), which the value parts of `context` and of
// the other position codecs have in common. rice_writer.hpp writes them.

#include <cstdint>
#include <vector>

#include "codec/bits.hpp"
#include "codec/block_coding.hpp"

namespace sparsecast {

[[noreturn]] inline void distance_does_not_fit() {
  throw Error(ErrorCode::kCorrupt, "a distance in ULP does not fit its element");
}

/// Reads number, indices and lengths of the exceptions among `count` changes into `list`; what is below the highest bit
/// of each, less than `high_bits` bits, follows in the string. Throws Error{kCorrupt}.
inline void read_exceptions(BitReader& reader, std::uint32_t count, std::uint32_t ke, std::uint32_t high_bits,
                            std::vector<Escape>& list) {
  const std::uint64_t exceptions = reader.get_exp_golomb();
  if (exceptions > count) throw Error(ErrorCode::kCorrupt, "more exceptions than changes");
  if (exceptions == 0 && ke != 0) throw Error(ErrorCode::kCorrupt, "a parameter without exceptions");
  std::uint64_t remainder_at = reader.position();
  reader.skip(exceptions * ke);
  const std::uint64_t remainder_mask = (std::uint64_t{1} << ke) - 1;
  list.resize(exceptions);
  std::uint64_t next = 0;
  for (Escape& exception : list) {
    const std::uint64_t quotient = reader.get_unary(count);
    const std::uint64_t index = next + (quotient << ke | (reader.peek(remainder_at) & remainder_mask));
    if (index >= count) throw Error(ErrorCode::kCorrupt, "an exception lies outside its block");
    exception.index = static_cast<std::uint32_t>(index);
    next = index + 1;
    remainder_at += ke;
  }
  for (Escape& exception : list) {
    exception.tail_bits = static_cast<std::uint32_t>(reader.get_unary(63));
    if (exception.tail_bits >= high_bits) distance_does_not_fit();
  }
}

}  // namespace sparsecast
