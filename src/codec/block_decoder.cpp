// SPDX-License-Identifier: Apache-2.0
#include "codec/block_coding.hpp"

#include <bit>

#include "codec/bits.hpp"
#include "codec/codec_common.hpp"
#include "codec/rice_reader.hpp"
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

/// Adds the tails of the escaped quotients to the positions from each of them on. The loop before has verified
/// positions without tails to lie in the span.
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
                          std::vector<Escape>& escapes, std::uint32_t* out) {
  BitReader reader(payload);
  const std::uint64_t quotients_at = std::uint64_t{count} * kp;
  if (quotients_at + count > reader.end()) BitReader::overrun();
  const std::uint64_t mask = (std::uint64_t{1} << kp) - 1;
  // Ones of the quotient string are taken from a window of 32 bits at a time; the distance between two of them is a
  // quotient. `last_one` + 1 is where the current quotient's zeros begin.
  std::uint64_t window_at = quotients_at;
  std::uint64_t begin = quotients_at;
  std::uint64_t remainder_at = 0;
  std::uint64_t next = 0;
  std::uint32_t i = 0;
  escapes.clear();
  while (i < count) {
    if (window_at >= reader.end()) BitReader::overrun();
    std::uint64_t window = reader.peek(window_at) & 0xFFFFFFFFU;
    while (window != 0 && i < count) {
      const std::uint64_t one = window_at + static_cast<std::uint64_t>(std::countr_zero(window));
      window &= window - 1;
      std::uint64_t quotient = one - begin;
      if (quotient >= kEscape) {
        if (quotient > kMaxQuotientZeros) throw Error(ErrorCode::kCorrupt, "a quotient has too many zeros");
        const auto zeros = static_cast<std::uint32_t>(quotient);
        if (zeros > kEscape) escapes.push_back({i, zeros - kEscape});
        quotient = quotient_of_zeros(zeros);
      }
      const std::uint64_t gap = quotient << kp | (reader.peek(remainder_at) & mask);
      const std::uint64_t position = next + gap;
      if (position >= span) bad_position();
      out[i++] = static_cast<std::uint32_t>(position);
      next = position + 1;
      begin = one + 1;
      remainder_at += kp;
    }
    window_at += 32;
  }
  reader.seek(begin);
  add_tails(reader, escapes, count, span, kp, out);
  return reader.finish_part();
}

std::uint64_t read_bitmap(ConstBytes payload, std::uint32_t count, std::uint32_t span, std::uint32_t* out) {
  const ConstBytes part = take(payload, padded_bytes(span));
  std::uint32_t found = 0;
  for (std::uint32_t first = 0; first < span; first += 32) {
    auto word = load_word<std::uint32_t>(part.data(), first / 32);
    if (span - first < 32 && (word >> (span - first)) != 0) {
      throw Error(ErrorCode::kCorrupt, "padding bits of a block are set");
    }
    if (static_cast<std::uint32_t>(std::popcount(word)) > count - found) {
      throw Error(ErrorCode::kCorrupt, "a bitmap has more bits set than its block has changes");
    }
    for (; word != 0; word &= word - 1) {
      out[found++] = first + static_cast<std::uint32_t>(std::countr_zero(word));
    }
  }
  if (found != count) throw Error(ErrorCode::kCorrupt, "a bitmap has fewer bits set than its block has changes");
  return part.size();
}

/// Words that fill the rest of the payload exactly.
template <class T>
void read_words(ConstBytes part, std::uint32_t count, T* out) {
  const std::uint64_t bytes = std::uint64_t{count} * sizeof(T);
  if (part.size() != padded_bytes(bytes * 8)) bad_length();
  std::memcpy(out, part.data(), bytes);
  require_zero_tail(part, bytes);
}

template <class T>
void require_magnitude(std::uint64_t magnitude, bool negative) {
  constexpr std::uint64_t kHalf = std::uint64_t{1} << (8 * sizeof(T) - 1);
  if (magnitude >= kHalf - (negative ? 0 : 1)) distance_does_not_fit();
}

template <class T>
void read_ulp(ConstBytes part, std::uint32_t count, const Coding& coding, std::vector<Escape>& list, T* out) {
  constexpr std::uint32_t kWidth = 8 * sizeof(T);
  BitReader reader(part);
  const std::uint64_t low_at = count;
  const std::uint64_t exceptions_at = low_at + std::uint64_t{count} * coding.kv;
  if (exceptions_at > reader.end()) BitReader::overrun();
  if (coding.kv == 0) {
    // Almost every change is one ULP: all of them first, then the exceptions are put over them.
    for (std::uint32_t first = 0; first < count; first += 32) {
      const std::uint64_t signs = reader.peek(first);
      const std::uint32_t end = std::min(count - first, 32U);
      for (std::uint32_t i = 0; i < end; ++i) {
        out[first + i] = static_cast<T>(1 - 2 * static_cast<int>(signs >> i & 1));
      }
    }
  } else {
    reader.seek(low_at);
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::uint64_t low = reader.get(coding.kv);
      const bool negative = (reader.peek(i) & 1) != 0;
      require_magnitude<T>(low, negative);
      out[i] = ulp_from_magnitude(static_cast<T>(low), negative);
    }
  }
  reader.seek(exceptions_at);
  read_exceptions(reader, count, coding.ke, kWidth - 1 - coding.kv, list);
  for (const auto& [index, tail_bits] : list) {
    const std::uint64_t high = std::uint64_t{1} << tail_bits | reader.get(tail_bits);
    const bool negative = (reader.peek(index) & 1) != 0;
    const T low = coding.kv == 0 ? T{0} : ulp_magnitude(out[index]);
    const std::uint64_t magnitude = high << coding.kv | low;
    require_magnitude<T>(magnitude, negative);
    out[index] = ulp_from_magnitude(static_cast<T>(magnitude), negative);
  }
  if (reader.finish_part() != part.size()) bad_length();
}

/// The form with lengths.
template <class T>
void read_lengths(ConstBytes part, std::uint32_t count, T* out) {
  constexpr std::uint32_t kField = length_field_bits(8 * sizeof(T));
  constexpr std::uint64_t kFieldMask = (std::uint64_t{1} << kField) - 1;
  BitReader reader(part);
  reader.skip(std::uint64_t{count} * (1 + kField));
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint64_t length = reader.peek(count + std::uint64_t{i} * kField) & kFieldMask;
    std::uint64_t magnitude = length;  // Of 0 and 1 the length is all there is.
    if (length > 1) magnitude = std::uint64_t{1} << (length - 1) | reader.get(static_cast<std::uint32_t>(length) - 1);
    const bool negative = (reader.peek(i) & 1) != 0;
    require_magnitude<T>(magnitude, negative);
    out[i] = ulp_from_magnitude(static_cast<T>(magnitude), negative);
  }
  if (reader.finish_part() != part.size()) bad_length();
}

template <class Vector>
void grow(Vector& vector, std::size_t size) {
  if (vector.size() < size) vector.resize(size);
}

}  // namespace

template <class T>
void decode_block(const BlockRef& block, DecodedBlock<T>& out, const OldBits* old) {
  const Coding& coding = block.coding;
  if (coding.positions == PositionCodec::kDense) {
    grow(out.coded, block.span);
    out.dense = true;
    out.count = block.span;
    read_words(block.payload, block.span, out.coded.data());
    return;
  }
  const std::uint32_t count = block.changed;
  grow(out.positions, count);
  grow(out.coded, count);
  out.dense = false;
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
      used = read_packed(block.payload, count, block.span, coding.kp, out.escapes, positions);
  }
  const ConstBytes values = block.payload.subspan(used);
  if (coding.lengths) {
    read_lengths(values, count, out.coded.data());
  } else if (coding.values == ValueCodec::kUlp) {
    read_ulp(values, count, coding, out.escapes, out.coded.data());
  } else {
    read_words(values, count, out.coded.data());
  }
}

template void decode_block(const BlockRef&, DecodedBlock<std::uint8_t>&, const OldBits*);
template void decode_block(const BlockRef&, DecodedBlock<std::uint16_t>&, const OldBits*);
template void decode_block(const BlockRef&, DecodedBlock<std::uint32_t>&, const OldBits*);
template void decode_block(const BlockRef&, DecodedBlock<std::uint64_t>&, const OldBits*);

}  // namespace sparsecast
