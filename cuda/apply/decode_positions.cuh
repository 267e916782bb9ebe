// SPDX-License-Identifier: Apache-2.0
#pragma once

// PositionDecoder: the positions of one block, read by all threads of a CTA together. locate() walks over the codes to
// find where the position part ends, which is not stored. read() then decodes chunk after chunk; each call continues
// where the call before ended.

#include "codec/block.hpp"
#include "codec/codec_common.hpp"
#include "cuda/apply/bit_string.cuh"
#include "cuda/apply/input_error.cuh"

namespace sparsecast::cuda {

/// Number of changes that one thread decodes at a time.
inline constexpr std::uint32_t kEachDecoded = 4;
/// Number of changes that all threads of a CTA decode together: a chunk.
inline constexpr std::uint32_t kDecodeChunk = kEachDecoded * kThreads;

/// State from which the decoding of the next chunk continues, the same for all threads. It is in shared memory because
/// registers limit the number of resident CTAs. Thread 0 updates it after a barrier that follows the reads of all
/// threads.
struct PositionCursor {
  /// Only for packed and bitmap: bit number of the next change's quotient (packed), or of the next element (bitmap).
  std::uint32_t ones_bit;
  std::uint32_t tail_bit;  ///< Only for packed: bit number of the next tail.
  std::uint32_t next;      ///< Lowest position in the block that the next change may have.
};

struct PositionsShared {
  ScanShared scan;
  PositionCursor position_cursor;
  std::uint32_t positions[kDecodeChunk];
};

/// Bit numbers at which the two parts of quotient codes end: the unary part, and the tails that follow it.
struct QuotientsEnd {
  std::uint32_t tails = 0;  ///< Bit number of the first tail: the bit after the last one bit of the unary part.
  std::uint64_t end = 0;    ///< Bit number after the last tail; 0 if the string ends before the last one bit.
};

/// Walks over the codes of `count` quotients from bit number `at` on, each with at most `most_zeros` zeros. One thread
/// calls visit(i, zeros) for each quotient number i. Leaves the bit numbers of the last chunk's one bits in
/// shared.positions. Records input errors in `found`.
template <class Visit>
__device__ QuotientsEnd walk_quotients(const BitString& bits, std::uint32_t at, std::uint32_t count,
                                       std::uint32_t most_zeros, PositionsShared& shared, FirstInputError& found,
                                       const Visit& visit) {
  std::uint64_t tails = 0;
  for (std::uint32_t first = 0; first < count; first += kDecodeChunk) {
    const std::uint32_t wanted = count - first < kDecodeChunk ? count - first : kDecodeChunk;
    if (find_ones(bits, at, wanted, most_zeros, shared.positions, shared.scan) < wanted) {
      found.refuse(InputError::kOverrun);
      return {};
    }
    std::uint64_t own = 0;
    for (std::uint32_t i = threadIdx.x; i < wanted; i += kThreads) {
      const std::uint32_t zeros = zeros_before(shared.positions, i, at);
      found.require(zeros <= most_zeros, InputError::kQuotient);
      if (zeros > kEscape) own += zeros - kEscape;
      visit(first + i, zeros);
    }
    tails += cta_sum(shared.scan, own);
    at = shared.positions[wanted - 1] + 1;
  }
  return {at, at + tails};
}

/// Decodes the positions of one block, with all threads of a CTA.
class PositionDecoder {
 public:
  /// Makes a decoder of the positions of `count` changes among `span` elements, with the packed Coding `coding`.
  /// `coding` stays packed: unpacking a field again is cheaper than keeping it in a register for the whole block. The
  /// decoder records input errors in `found`.
  __device__ PositionDecoder(std::uint32_t coding, std::uint32_t span, std::uint32_t count, const BitString& payload,
                             PositionsShared& shared, FirstInputError& found)
      : shared_(shared), found_(found), payload_(payload), coding_(coding), span_(span), count_(count) {}

  /// Finds the end of the position part. Returns the words of the payload after it, or an empty string after an input
  /// error. Must be called before read().
  __device__ BitString locate() {
    switch (codec()) {
      case PositionCodec::kIndex32:
        return end(std::uint64_t{count_} * 32);
      case PositionCodec::kGap16:
        return end(std::uint64_t{count_} * gap_bits());
      case PositionCodec::kPacked:
        return locate_packed();
      case PositionCodec::kBitmap:
        return locate_bitmap();
      case PositionCodec::kDense:
        return end(0);
      case PositionCodec::kContext:  // Decoded by decode_context.cuh.
        break;
    }
    return {};
  }

  /// Decodes changes [first, first + entries) and writes their positions to shared.positions. Successive calls must be
  /// for successive changes.
  __device__ void read(std::uint32_t first, std::uint32_t entries) {
    switch (codec()) {
      case PositionCodec::kIndex32:
        return read_index32(first, entries);
      case PositionCodec::kBitmap:
        // locate_bitmap() has counted the one bits and found none in the padding.
        find_ones(payload_, cursor().ones_bit, entries, span_, shared_.positions, shared_.scan);
        if (threadIdx.x == 0) cursor().ones_bit = shared_.positions[entries - 1] + 1;
        return;
      case PositionCodec::kDense:
        for (std::uint32_t i = threadIdx.x; i < entries; i += kThreads) shared_.positions[i] = first + i;
        return;
      default:
        return read_gaps(first, entries);
    }
  }

 private:
  __device__ PositionCursor& cursor() { return shared_.position_cursor; }
  __device__ PositionCodec codec() const { return Coding::unpack(coding_).positions; }
  __device__ std::uint32_t rice() const { return Coding::unpack(coding_).kp; }
  __device__ std::uint32_t gap_bits() const { return rice() != 0 ? 32 : 16; }

  /// Returns the words of the payload after a position part of `bits` bits; they hold the values. Records an input
  /// error if the payload is shorter or the padding is not zero.
  __device__ BitString end(std::uint64_t bits) {
    const std::uint64_t words = (bits + 31) / 32;
    if (words > payload_.count) return refused(InputError::kOverrun);
    found_.require(payload_.padded_at(static_cast<std::uint32_t>(bits)), InputError::kPadding);
    return {payload_.words + words, payload_.count - static_cast<std::uint32_t>(words)};
  }
  __device__ BitString refused(InputError reason) {
    found_.refuse(reason);
    return {};
  }

  __device__ BitString locate_bitmap() {
    const BitString values = end(span_);
    // end() finds the same error in all threads, so no barrier is needed.
    if (found_.input_error != InputError::kNone) return {};
    std::uint32_t own = 0;
    for (std::uint32_t w = threadIdx.x; w < (span_ + 31) / 32; w += kThreads) {
      own += static_cast<std::uint32_t>(__popc(payload_.word(w)));
    }
    found_.require(cta_sum(shared_.scan, own) == count_, InputError::kBitmapCount);
    if (threadIdx.x == 0) cursor().ones_bit = 0;
    return values;
  }

  __device__ BitString locate_packed() {
    const std::uint64_t quotients = std::uint64_t{count_} * rice();
    if (quotients + count_ > payload_.bits()) return refused(InputError::kOverrun);
    const auto begin = static_cast<std::uint32_t>(quotients);
    const QuotientsEnd codes = walk_quotients(payload_, begin, count_, kMaxQuotientZeros, shared_, found_,
                                              [](std::uint32_t, std::uint32_t) {});
    if (codes.end == 0) return {};
    if (threadIdx.x == 0) {
      cursor().ones_bit = begin;
      cursor().tail_bit = codes.tails;
    }
    return end(codes.end);
  }

  __device__ void read_index32(std::uint32_t first, std::uint32_t entries) {
    for (std::uint32_t i = threadIdx.x; i < entries; i += kThreads) {
      const std::uint32_t position = payload_.word(first + i);
      const bool grows = first + i == 0 || position > payload_.word(first + i - 1);
      found_.require(grows && position < span_, InputError::kPosition);
      shared_.positions[i] = position;
    }
  }

  /// Does the work of read() for gap16 and packed positions. Each thread takes consecutive entries, so that one scan
  /// sums all gaps.
  __device__ void read_gaps(std::uint32_t first, std::uint32_t entries) {
    const std::uint32_t begin = first == 0 ? 0 : cursor().next;
    const std::uint32_t own = threadIdx.x * kEachDecoded;
    std::uint64_t steps[kEachDecoded] = {};
    if (codec() == PositionCodec::kPacked) {
      read_packed_gaps(first, entries, steps);
    } else {
      const std::uint32_t width = gap_bits();
      SPARSECAST_UNROLL
      for (std::uint32_t e = 0; e < kEachDecoded; ++e) {
        if (own + e < entries) steps[e] = std::uint64_t{payload_.get((first + own + e) * width, width)} + 1;
      }
    }
    std::uint64_t sum = 0;
    SPARSECAST_UNROLL
    for (std::uint32_t e = 0; e < kEachDecoded; ++e) sum += steps[e];
    const auto scanned = cta_scan(shared_.scan, sum);
    std::uint64_t next = begin + scanned.before;
    SPARSECAST_UNROLL
    for (std::uint32_t e = 0; e < kEachDecoded; ++e) {
      next += steps[e];
      if (own + e < entries) {
        found_.require(next <= span_, InputError::kPosition);
        shared_.positions[own + e] = static_cast<std::uint32_t>(next - 1);
      }
    }
    // A sum beyond the span may be truncated here, because the chunk's last position has just been refused.
    if (threadIdx.x == 0) cursor().next = begin + static_cast<std::uint32_t>(scanned.total);
  }

  __device__ void read_packed_gaps(std::uint32_t first, std::uint32_t entries, std::uint64_t (&steps)[kEachDecoded]) {
    // If the block has only one chunk, shared.positions still holds the one bits that locate_packed() found.
    const PositionCursor at = cursor();
    if (count_ > kDecodeChunk) {
      find_ones(payload_, at.ones_bit, entries, kMaxQuotientZeros, shared_.positions, shared_.scan);
    }
    const std::uint32_t own = threadIdx.x * kEachDecoded;
    std::uint32_t zeros[kEachDecoded] = {};
    std::uint32_t tails = 0;
    SPARSECAST_UNROLL
    for (std::uint32_t e = 0; e < kEachDecoded; ++e) {
      if (own + e >= entries) continue;
      zeros[e] = zeros_before(shared_.positions, own + e, at.ones_bit);
      if (zeros[e] > kEscape) tails += zeros[e] - kEscape;
    }
    const std::uint32_t ones_end = shared_.positions[entries - 1] + 1;
    const auto scanned = cta_scan(shared_.scan, tails);
    std::uint32_t tail_bit = at.tail_bit + static_cast<std::uint32_t>(scanned.before);
    SPARSECAST_UNROLL
    for (std::uint32_t e = 0; e < kEachDecoded; ++e) {
      if (own + e >= entries) continue;
      // locate_packed() has refused quotients with too many zeros.
      const std::uint32_t tail_bits = zeros[e] > kEscape ? (zeros[e] - kEscape) % 32 : 0;
      const std::uint64_t quotient =
          std::uint64_t{quotient_of_zeros(kEscape + tail_bits)} + payload_.get(tail_bit, tail_bits);
      const std::uint32_t remainder = payload_.get((first + own + e) * rice(), rice());
      steps[e] = ((zeros[e] < kEscape ? zeros[e] : quotient) << rice() | remainder) + 1;
      tail_bit += tail_bits;
    }
    if (threadIdx.x == 0) {
      cursor().ones_bit = ones_end;
      cursor().tail_bit = at.tail_bit + static_cast<std::uint32_t>(scanned.total);
    }
  }

  PositionsShared& shared_;
  FirstInputError& found_;
  BitString payload_;
  std::uint32_t coding_;
  std::uint32_t span_;
  std::uint32_t count_;
};

}  // namespace sparsecast::cuda
