// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reading of the exceptions among ulp magnitudes (docs/wire-format.md §4.2), which the value parts of `context` and of
// the other position codecs have in common. rice_writer.hpp writes them.

#include <cstdint>
#include <vector>

#include "codec/bits.hpp"
#include "codec/block_coding.hpp"
#include "codec/pack_kernels.hpp"
#include "codec/unpack_kernels.hpp"

namespace sparsecast {

[[noreturn]] inline void distance_does_not_fit() {
  throw Error(ErrorCode::kCorrupt, "a distance in ULP does not fit its element");
}

template <class Vector>
void grow(Vector& vector, std::size_t size) {
  if (vector.size() < size) vector.resize(size);
}

/// Reads `count` unary codes: writes to `zeros` the number of zero bits before each of the next `count` one bits.
/// `ones` is scratch memory. Throws Error{kCorrupt} when the string has fewer one bits.
inline void read_unary(BitReader& reader, std::uint32_t count, std::vector<std::uint32_t>& ones, std::uint32_t* zeros) {
  if (count == 0) return;
  grow(ones, count + cpu::kOnesSlack);
  if (cpu::list_ones(reader.bytes(), reader.position(), count, ones.data()) != count) BitReader::overrun();
  cpu::list_gaps(ones.data(), count, zeros);
  reader.skip(std::uint64_t{ones[count - 1]} + 1);
}

/// Reads the exceptions among `count` changes into scratch.list: for each exception its index and the number of bits
/// below its highest one bit, which must be less than `high_bits`. `ke` is the Rice parameter of the gaps between
/// indices. Returns the total number of these lower bits, which follow in the string and are not read. Throws
/// Error{kCorrupt}.
inline std::uint64_t read_exceptions(BitReader& reader, std::uint32_t count, std::uint32_t ke, std::uint32_t high_bits,
                                     ExceptionScratch& scratch) {
  const std::uint64_t exceptions = reader.get_exp_golomb();
  if (exceptions > count) throw Error(ErrorCode::kCorrupt, "more exceptions than changes");
  if (exceptions == 0 && ke != 0) throw Error(ErrorCode::kCorrupt, "a parameter without exceptions");
  const auto n = static_cast<std::uint32_t>(exceptions);
  std::uint64_t remainder_at = reader.position();
  reader.skip(exceptions * ke);
  const std::uint64_t remainder_mask = (std::uint64_t{1} << ke) - 1;
  scratch.list.resize(n);
  grow(scratch.zeros, n);
  read_unary(reader, n, scratch.ones, scratch.zeros.data());
  std::uint64_t next = 0;
  for (std::uint32_t e = 0; e < n; ++e, remainder_at += ke) {
    const std::uint64_t index =
        next + (std::uint64_t{scratch.zeros[e]} << ke | (reader.peek(remainder_at) & remainder_mask));
    scratch.list[e].index = static_cast<std::uint32_t>(index);
    next = index + 1;
  }
  // Indices increase, so that checking the last one is enough.
  if (next > count) throw Error(ErrorCode::kCorrupt, "an exception lies outside its block");
  read_unary(reader, n, scratch.ones, scratch.zeros.data());
  std::uint64_t tail_bits = 0;
  for (std::uint32_t e = 0; e < n; ++e) {
    if (scratch.zeros[e] >= high_bits) distance_does_not_fit();
    scratch.list[e].tail_bits = scratch.zeros[e];
    tail_bits += scratch.zeros[e];
  }
  return tail_bits;
}

}  // namespace sparsecast
