#pragma once

// Bit strings written by many threads at once, least significant bit first (docs/wire-format.md §1).

#include <cstdint>

#include "cuda/common/device_api.hpp"

namespace sparsecast::cuda {

/// Writes consecutive fields into words that were zero; several threads may write the parts of one word. What was put
/// is in memory after flush().
class BitSink {
 public:
  __device__ BitSink(std::uint32_t* words, std::uint64_t bit)
      : word_(words + bit / 32), used_(static_cast<std::uint32_t>(bit % 32)) {}

  /// The low `width` (0 to 32) bits; higher bits of value must be zero.
  __device__ void put(std::uint32_t value, std::uint32_t width) {
    gathered_ |= std::uint64_t{value} << used_;
    used_ += width;
    if (used_ >= 32) store();
  }
  /// The same for 0 to 64 bits.
  __device__ void put_long(std::uint64_t value, std::uint32_t width) {
    if (width > 32) {
      put(static_cast<std::uint32_t>(value), 32);
      value >>= 32;
      width -= 32;
    }
    put(static_cast<std::uint32_t>(value), width);
  }
  /// `zeros` zero bits, then a one.
  __device__ void put_unary(std::uint32_t zeros) {
    used_ += zeros;
    if (used_ >= 32) {
      store();
      word_ += used_ / 32;
      used_ %= 32;
    }
    put(1, 1);
  }
  __device__ void flush() {
    if (gathered_ != 0) atomicOr(word_, static_cast<std::uint32_t>(gathered_));
    gathered_ = 0;
  }

 private:
  /// The first word is complete; used_ may be far beyond, when zeros were put.
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
