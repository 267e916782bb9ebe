// SPDX-License-Identifier: Apache-2.0
#include "codec/block_coding.hpp"

#include <bit>

#include "codec/bits.hpp"
#include "codec/codec_common.hpp"
#include "codec/rice_reader.hpp"
#include "codec/unpack_kernels.hpp"
#include "core/word.hpp"

namespace sparsecast {
namespace {

[[noreturn]] void bad_position() { throw Error(ErrorCode::kCorrupt, "a position lies outside its block"); }
[[noreturn]] void bad_length() { throw Error(ErrorCode::kCorrupt, "a block's payload has the wrong length"); }

ConstBytes take(ConstBytes payload, std::uint64_t bytes) {
  if (bytes > payload.size()) BitReader::overrun();
  return payload.first(bytes);
}

void require_zero_tail(ConstBytes part, std::uint64_t used) {
  for (std::uint64_t i = used; i < part.size(); ++i) {
    if (part[i] != std::byte{0}) throw Error(ErrorCode::kCorrupt, "padding bits of a block are set");
  }
}

std::uint64_t read_index32(ConstBytes payload, std::uint32_t count, std::uint32_t span, std::uint32_t* out) {
  const ConstBytes part = take(payload, std::uint64_t{count} * 4);
  std::uint64_t next = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto position = load_word<std::uint32_t>(part.data(), i);
    if (position < next || position >= span) bad_position();
    out[i] = position;
    next = std::uint64_t{position} + 1;
  }
  return part.size();
}

template <class Gap>
std::uint64_t read_gaps(ConstBytes payload, std::uint32_t count, std::uint32_t span, std::uint32_t* out) {
  const ConstBytes part = take(payload, padded_bytes(std::uint64_t{count} * 8 * sizeof(Gap)));
  std::uint64_t next = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint64_t position = next + load_word<Gap>(part.data(), i);
    if (position >= span) bad_position();
    out[i] = static_cast<std::uint32_t>(position);
    next = position + 1;
  }
  require_zero_tail(part, std::uint64_t{count} * sizeof(Gap));
  return part.size();
}

/// Adds the tails of the escaped quotients to the positions from each of them on. The previous loop has verified that
/// positions without tails are in the span.
void add_tails(BitReader& reader, const std::vector<Escape>& escapes, std::uint32_t count, std::uint32_t span,
               std::uint32_t kp, std::uint32_t* positions) {
  std::uint64_t shift = 0;
  for (std::size_t e = 0; e < escapes.size(); ++e) {
    const std::uint32_t end = e + 1 < escapes.size() ? escapes[e + 1].index : count;
    shift += reader.get(escapes[e].tail_bits) << kp;
    if (positions[end - 1] + shift >= span) bad_position();
    for (std::uint32_t i = escapes[e].index; i < end; ++i) positions[i] += static_cast<std::uint32_t>(shift);
  }
}

std::uint64_t read_packed(ConstBytes payload, std::uint32_t count, std::uint32_t span, std::uint32_t kp,
                          std::vector<std::uint32_t>& ones, std::vector<Escape>& escapes, std::uint32_t* out) {
  BitReader reader(payload);
  reader.skip(std::uint64_t{count} * kp);
  read_unary(reader, count, ones, out);
  const std::uint64_t mask = (std::uint64_t{1} << kp) - 1;
  std::uint64_t remainder_at = 0;
  std::uint64_t next = 0;
  escapes.clear();
  for (std::uint32_t i = 0; i < count; ++i, remainder_at += kp) {
    std::uint64_t quotient = out[i];
    if (quotient >= kEscape) {
      if (quotient > kMaxQuotientZeros) throw Error(ErrorCode::kCorrupt, "a quotient has too many zeros");
      const auto zeros = static_cast<std::uint32_t>(quotient);
      if (zeros > kEscape) escapes.push_back({i, zeros - kEscape});
      quotient = quotient_of_zeros(zeros);
    }
    const std::uint64_t position = next + (quotient << kp | (reader.peek(remainder_at) & mask));
    out[i] = static_cast<std::uint32_t>(position);
    next = position + 1;
  }
  // Positions increase, so that checking the last one is enough.
  if (next > span) bad_position();
  add_tails(reader, escapes, count, span, kp, out);
  return reader.finish_part();
}

/// Reads a bitmap into positions; `out` has room for cpu::kOnesSlack more.
std::uint64_t read_bitmap(ConstBytes payload, std::uint32_t count, std::uint32_t span, std::uint32_t* out) {
  const ConstBytes part = take(payload, padded_bytes(span));
  if (span % 32 != 0 && (load_word<std::uint32_t>(part.data(), span / 32) >> (span % 32)) != 0) {
    throw Error(ErrorCode::kCorrupt, "padding bits of a block are set");
  }
  const std::uint64_t found = cpu::count_ones(part);
  if (found > count) throw Error(ErrorCode::kCorrupt, "a bitmap has more bits set than its block has changes");
  if (found < count) throw Error(ErrorCode::kCorrupt, "a bitmap has fewer bits set than its block has changes");
  cpu::list_ones(part, 0, count, out);
  return part.size();
}

/// Reads words that fill the rest of the payload exactly.
template <class T>
void read_words(ConstBytes part, std::uint32_t count, T* out) {
  const std::uint64_t bytes = std::uint64_t{count} * sizeof(T);
  if (part.size() != padded_bytes(bytes * 8)) bad_length();
  std::memcpy(out, part.data(), bytes);
  require_zero_tail(part, bytes);
}

/// Returns `width` bits from `bit` on, for a magnitude of an element T; `width` is less than the element's.
template <class T>
std::uint64_t peek_bits(const BitReader& reader, std::uint64_t bit, std::uint64_t width) {
  if constexpr (sizeof(T) == 8) return reader.peek_long(bit, width);
  return reader.peek(bit) & ((std::uint64_t{1} << width) - 1);
}

/// Turns the magnitudes in `out` into coded words, with the signs at the beginning of the part. The part ends at the
/// reader's position.
template <class T>
void finish_ulp(BitReader& reader, ConstBytes part, std::uint32_t count, T* out) {
  if (!cpu::sign_magnitudes(part, count, sizeof(T), out)) distance_does_not_fit();
  if (reader.finish_part() != part.size()) bad_length();
}

template <class T>
void read_ulp(ConstBytes part, std::uint32_t count, const Coding& coding, ExceptionScratch& scratch, T* out) {
  constexpr std::uint32_t kWidth = 8 * sizeof(T);
  BitReader reader(part);
  reader.skip(count);
  reader.skip(std::uint64_t{count} * coding.kv);
  cpu::read_fields(part, count, count, coding.kv, sizeof(T), out);
  // With the low bits, less than half the range of a word.
  const std::uint64_t tail_bits = read_exceptions(reader, count, coding.ke, kWidth - 1 - coding.kv, scratch);
  std::uint64_t tail_at = reader.position();
  reader.skip(tail_bits);
  for (const auto& [index, bits] : scratch.list) {
    const std::uint64_t high = std::uint64_t{1} << bits | peek_bits<T>(reader, tail_at, bits);
    out[index] = static_cast<T>(out[index] | high << coding.kv);
    tail_at += bits;
  }
  finish_ulp(reader, part, count, out);
}

/// Reads values in the form with lengths.
template <class T>
void read_lengths(ConstBytes part, std::uint32_t count, T* out) {
  constexpr std::uint32_t kField = length_field_bits(8 * sizeof(T));
  BitReader reader(part);
  reader.skip(std::uint64_t{count} * (1 + kField));
  std::uint64_t tail_at = reader.position();
  std::uint64_t tail_bits = 0;
  cpu::read_fields(part, count, count, kField, sizeof(T), out);
  for (std::uint32_t i = 0; i < count; ++i) tail_bits += out[i] - (out[i] != 0 ? 1U : 0U);
  reader.skip(tail_bits);
  for (std::uint32_t i = 0; i < count; ++i) {
    // A 0 has only a length, and a 1 only its highest bit.
    const std::uint64_t some = out[i] != 0 ? 1 : 0;
    const std::uint64_t bits = out[i] - some;
    out[i] = static_cast<T>(some << bits | peek_bits<T>(reader, tail_at, bits));
    tail_at += bits;
  }
  finish_ulp(reader, part, count, out);
}

}  // namespace

template <class T>
void decode_block(const BlockRef& block, DecodedBlock<T>& out, const OldBits* old) {
  const Coding& coding = block.coding;
  if (coding.positions == PositionCodec::kDense) {
    grow(out.coded, block.span);
    out.dense = true;
    out.bitmap = nullptr;
    out.count = block.span;
    read_words(block.payload, block.span, out.coded.data());
    return;
  }
  const std::uint32_t count = block.changed;
  grow(out.positions, count + cpu::kOnesSlack);
  grow(out.coded, count);
  out.dense = false;
  out.bitmap = coding.positions == PositionCodec::kBitmap ? block.payload.data() : nullptr;
  out.count = count;
  if (coding.positions == PositionCodec::kContext) {
    if (old == nullptr) {
      throw Error(ErrorCode::kUsage, "the positions of a `context` block are known only with the weights of its base");
    }
    decode_context(block, *old, out);
    return;
  }
  std::uint32_t* positions = out.positions.data();
  std::uint64_t used = 0;
  switch (coding.positions) {
    case PositionCodec::kIndex32:
      used = read_index32(block.payload, count, block.span, positions);
      break;
    case PositionCodec::kGap16:
      used = coding.kp != 0 ? read_gaps<std::uint32_t>(block.payload, count, block.span, positions)
                            : read_gaps<std::uint16_t>(block.payload, count, block.span, positions);
      break;
    case PositionCodec::kBitmap:
      used = read_bitmap(block.payload, count, block.span, positions);
      break;
    default:
      used =
          read_packed(block.payload, count, block.span, coding.kp, out.exceptions.ones, out.exceptions.list, positions);
  }
  const ConstBytes values = block.payload.subspan(used);
  if (coding.lengths) {
    read_lengths(values, count, out.coded.data());
  } else if (coding.values == ValueCodec::kUlp) {
    read_ulp(values, count, coding, out.exceptions, out.coded.data());
  } else {
    read_words(values, count, out.coded.data());
  }
}

template void decode_block(const BlockRef&, DecodedBlock<std::uint8_t>&, const OldBits*);
template void decode_block(const BlockRef&, DecodedBlock<std::uint16_t>&, const OldBits*);
template void decode_block(const BlockRef&, DecodedBlock<std::uint32_t>&, const OldBits*);
template void decode_block(const BlockRef&, DecodedBlock<std::uint64_t>&, const OldBits*);

}  // namespace sparsecast
