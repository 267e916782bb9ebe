// SPDX-License-Identifier: Apache-2.0
#pragma once

// BitSink: bit strings that many threads write at once, least significant bit first (docs/wire-format.md §1).

#include <cstdint>

#include "cuda/common/device_api.hpp"

namespace sparsecast::cuda {

/// Sets bit number `bit` of the bit string at `words` to 1, atomically.
__device__ inline void set_bit(std::uint32_t* words, std::uint32_t bit) { atomicOr(&words[bit / 32], 1U << bit % 32); }

/// Writes the low `width` bits (at most 32) of `value`, whose higher bits must be zero, to the bit string at `words`,
/// from bit number `bit` on. The bits that it writes must be zero before. Several threads may write parts of the same
/// word.
__device__ inline void put_bits(std::uint32_t* words, std::uint32_t bit, std::uint32_t value, std::uint32_t width) {
  const std::uint64_t both = std::uint64_t{value} << bit % 32;
  atomicOr(&words[bit / 32], static_cast<std::uint32_t>(both));
  if (bit % 32 + width > 32) atomicOr(&words[bit / 32 + 1], static_cast<std::uint32_t>(both >> 32));
}

/// Writes consecutive fields to a bit string whose bits must be zero before. Several threads may write parts of the
/// same word. The fields are complete in memory only after flush().
class BitSink {
 public:
  /// Makes a sink whose first field begins at bit number `bit` of the bit string at `words`.
  __device__ BitSink(std::uint32_t* words, std::uint32_t bit) : word_(words + bit / 32), used_(bit % 32) {}

  /// Appends the low `width` bits (0 to 32) of `value`, whose higher bits must be zero.
  __device__ void put(std::uint32_t value, std::uint32_t width) {
    gathered_ |= std::uint64_t{value} << used_;
    used_ += width;
    if (used_ >= 32) store();
  }
  /// Appends the low `width` bits (0 to 64) of `value`, whose higher bits must be zero.
  __device__ void put_long(std::uint64_t value, std::uint32_t width) {
    if (width > 32) {
      put(static_cast<std::uint32_t>(value), 32);
      value >>= 32;
      width -= 32;
    }
    put(static_cast<std::uint32_t>(value), width);
  }
  /// Writes to memory the fields that put() has gathered and not yet stored.
  __device__ void flush() {
    if (gathered_ != 0) atomicOr(word_, static_cast<std::uint32_t>(gathered_));
    gathered_ = 0;
  }

 private:
  /// Stores the first of the two gathered words, which is complete, to memory.
  __device__ void store() {
    if (static_cast<std::uint32_t>(gathered_) != 0) atomicOr(word_, static_cast<std::uint32_t>(gathered_));
    gathered_ >>= 32;
    ++word_;
    used_ -= 32;
  }

  std::uint32_t* word_;
  std::uint64_t gathered_ = 0;
  std::uint32_t used_;
};

}  // namespace sparsecast::cuda
