// SPDX-License-Identifier: Apache-2.0
#pragma once

// Bit strings, least significant bit first (docs/wire-format.md §1).

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "codec/codec_common.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {

static_assert(std::endian::native == std::endian::little, "sparsecast stores words as they lie in memory");

/// Writes fields of bits one after another into a buffer, from a given bit on. From that bit on, the buffer must be
/// zero. Bits are gathered in a register and stored without being read back, because a load that overlaps a fresh store
/// would stall. Each put may store zeros in the 8 bytes after its last bit, so the buffer must have room for them.
class BitWriter {
 public:
  BitWriter(std::byte* base, std::uint64_t bit)
      : begin_(base), at_(base + (bit >> 3)), used_(static_cast<std::uint32_t>(bit & 7)) {
    gathered_ = static_cast<std::uint64_t>(*at_);
  }

  /// Writes the low `width` (0 to 56) bits of value; higher bits of value must be zero.
  void put(std::uint64_t value, std::uint32_t width) {
    gathered_ |= value << used_;
    used_ += width;
    std::memcpy(at_, &gathered_, 8);
    at_ += used_ >> 3;
    gathered_ >>= used_ & ~7U;
    used_ &= 7;
  }
  /// Writes the low `width` (0 to 64) bits of value; higher bits of value must be zero.
  void put_long(std::uint64_t value, std::uint32_t width) {
    if (width > 32) {
      put(value & 0xFFFFFFFFU, 32);
      value >>= 32;
      width -= 32;
    }
    put(value, width);
  }
  /// Writes a unary code: `quotient` zero bits, then a one.
  void put_unary(std::uint64_t quotient) {
    if (quotient < 48) {
      put(std::uint64_t{1} << quotient, static_cast<std::uint32_t>(quotient) + 1);
      return;
    }
    // The skipped bits are zero already; the gathered bits were stored by the previous put.
    const std::uint64_t bit = used_ + quotient;
    at_ += bit >> 3;
    used_ = static_cast<std::uint32_t>(bit & 7);
    gathered_ = 0;
    put(1, 1);
  }
  void put_exp_golomb(std::uint64_t v) {
    const std::uint32_t low = static_cast<std::uint32_t>(std::bit_width(v + 1)) - 1;
    put_unary(low);
    put_long((v + 1) & ~(std::uint64_t{1} << low), low);
  }
  std::uint64_t position() const { return static_cast<std::uint64_t>(at_ - begin_) * 8 + used_; }

 private:
  std::byte* begin_;
  std::byte* at_;
  std::uint64_t gathered_ = 0;  ///< The bits from *at_ on; bit number used_ and all higher bits are zero.
  std::uint32_t used_;
};

/// Reads fields of bits from a bounded bit string. A read past its end is Error{kCorrupt}.
class BitReader {
 public:
  explicit BitReader(std::span<const std::byte> bytes) : bytes_(bytes), end_(bytes.size() * 8) {}

  std::span<const std::byte> bytes() const { return bytes_; }
  std::uint64_t position() const { return bit_; }
  std::uint64_t end() const { return end_; }
  void seek(std::uint64_t bit) {
    if (bit > end_) overrun();
    bit_ = bit;
  }

  void skip(std::uint64_t bits) {
    if (bits > end_ - bit_) overrun();
    bit_ += bits;
  }

  /// Returns the bits from number `bit` of the string on, at least 57 of them, with zeros beyond the end. Consumes
  /// nothing.
  [[gnu::always_inline]] std::uint64_t peek(std::uint64_t bit) const {
    const std::uint64_t byte = bit >> 3;
    std::uint64_t word = 0;
    if (byte + 8 <= bytes_.size()) {
      std::memcpy(&word, bytes_.data() + byte, 8);
    } else if (byte < bytes_.size()) {
      std::memcpy(&word, bytes_.data() + byte, bytes_.size() - byte);
    }
    return word >> (bit & 7);
  }

  /// Returns `width` (0 to 63) bits from number `bit` of the string on, with zeros beyond the end. Consumes nothing.
  std::uint64_t peek_long(std::uint64_t bit, std::uint64_t width) const {
    const std::uint64_t word = (peek(bit) & 0xFFFFFFFFU) | peek(bit + 32) << 32;
    return word & ((std::uint64_t{1} << width) - 1);
  }

  std::uint64_t get(std::uint32_t width) {
    if (width == 0) return 0;
    if (width > 56) {
      const std::uint64_t low = get(32);
      return low | get(width - 32) << 32;
    }
    if (width > end_ - bit_) overrun();
    const std::uint64_t value = peek(bit_) & ((std::uint64_t{1} << width) - 1);
    bit_ += width;
    return value;
  }

  /// Reads a unary code: returns the number of zero bits before the next one bit, and consumes all of them. More than
  /// `limit` zeros are Error{kCorrupt}.
  std::uint64_t get_unary(std::uint64_t limit) {
    std::uint64_t quotient = 0;
    for (;;) {
      if (bit_ >= end_) overrun();
      const std::uint64_t word = peek(bit_) & ((std::uint64_t{1} << 56) - 1);
      const auto zeros = static_cast<std::uint32_t>(std::countr_zero(word | std::uint64_t{1} << 56));
      quotient += zeros;
      bit_ += zeros;
      if (quotient > limit) throw Error(ErrorCode::kCorrupt, "a unary code is longer than its block allows");
      if (zeros < 56) break;
    }
    if (bit_ >= end_) overrun();
    ++bit_;
    return quotient;
  }

  std::uint64_t get_exp_golomb() {
    const auto low = static_cast<std::uint32_t>(get_unary(63));
    return ((std::uint64_t{1} << low) | get(low)) - 1;
  }

  /// Ends the part of a block that this reader reads, which is padded to 4 bytes. Returns the size of the part in
  /// bytes. Throws Error{kCorrupt} unless the padding bits are zero.
  std::uint64_t finish_part() {
    const std::uint64_t bytes = padded_bytes(bit_);
    if (bytes > bytes_.size()) overrun();
    const std::uint64_t left = bytes * 8 - bit_;
    if (left != 0 && (peek(bit_) & ((std::uint64_t{1} << left) - 1)) != 0) {
      throw Error(ErrorCode::kCorrupt, "padding bits of a block are set");
    }
    return bytes;
  }

  [[noreturn]] static void overrun() { throw Error(ErrorCode::kCorrupt, "a code runs past the end of its block"); }

 private:
  std::span<const std::byte> bytes_;
  std::uint64_t bit_ = 0;
  std::uint64_t end_;
};

}  // namespace sparsecast
