// SPDX-License-Identifier: Apache-2.0
#pragma once

// ValueDecoder: the coded words of one block, read by all threads of a CTA together. locate() walks over the streams
// whose ends are not stated (gaps and widths of the exceptions) and checks that the payload ends where they end; read()
// then decodes chunk after chunk, each continuing where the one before ended.

#include "cuda/apply/decode_positions.cuh"

namespace sparsecast::cuda {

/// Exceptions that are not decoded yet; the form with lengths uses only high_bit. Kept in shared memory for the reason
/// that PositionCursor is.
struct ExceptionCursor {
  std::uint32_t left;
  std::uint32_t remainder_bit;
  std::uint32_t gap_bit;
  std::uint32_t width_bit;
  std::uint32_t high_bit;
  std::uint32_t next;  ///< Lowest index that the next exception may have.
};

template <class T>
struct DecodeShared : PositionsShared {
  T coded[kDecodeChunk];
  std::uint32_t gap_ones[kThreads];
  std::uint32_t width_ones[kThreads];
  ExceptionCursor exceptions;
};

template <class T>
class ValueDecoder {
 public:
  static constexpr std::uint32_t kWidth = 8 * sizeof(T);

  /// Decodes the words of `count` changes. PositionDecoder says why `coding` stays packed.
  __device__ ValueDecoder(std::uint32_t coding, std::uint32_t count, DecodeShared<T>& shared, FirstInputError& found)
      : shared_(shared), found_(found), coding_(coding), count_(count) {}

  /// Checks the structure of `values`, the payload after the positions.
  __device__ void locate(const BitString& values) {
    values_ = values;
    if (whole_words()) {
      const std::uint64_t bits = std::uint64_t{count_} * kWidth;
      if ((bits + 31) / 32 != values_.count) return found_.refuse(InputError::kLength);
      return end_values(bits);
    }
    if (coding().lengths) return locate_lengths();
    locate_exceptions();
  }

  /// Writes the words of changes [first, first + entries) to shared.coded.
  __device__ void read(std::uint32_t first, std::uint32_t entries) {
    if (whole_words()) {
      for (std::uint32_t i = threadIdx.x; i < entries; i += kThreads) {
        shared_.coded[i] = static_cast<T>(values_.get_long((first + i) * kWidth, kWidth));
      }
      return;
    }
    if (coding().lengths) return read_lengths(first, entries);
    for (std::uint32_t i = threadIdx.x; i < entries; i += kThreads) {
      shared_.coded[i] = code(low_magnitude(first + i), first + i);
    }
    read_exceptions(first + entries, first);
  }

 private:
  __device__ Coding coding() const { return Coding::unpack(coding_); }
  __device__ std::uint32_t kept_bits() const { return coding().kv; }
  __device__ std::uint32_t gap_rice() const { return coding().ke; }
  __device__ bool whole_words() const {
    return coding().positions == PositionCodec::kDense || coding().values != ValueCodec::kUlp;
  }

  /// Checks that the value part takes `bits` bits and that nothing follows.
  __device__ void end_values(std::uint64_t bits) {
    const std::uint64_t words = (bits + 31) / 32;
    if (words != values_.count)
      return found_.refuse(words > values_.count ? InputError::kOverrun : InputError::kLength);
    found_.require(values_.padded_at(static_cast<std::uint32_t>(bits)), InputError::kPadding);
  }

  __device__ void locate_lengths() {
    constexpr std::uint32_t kField = length_field_bits(kWidth);
    const std::uint64_t lows = std::uint64_t{count_} * (1 + kField);
    if (lows > values_.bits()) return found_.refuse(InputError::kOverrun);
    std::uint64_t own = 0;
    for (std::uint32_t i = threadIdx.x; i < count_; i += kThreads) {
      const std::uint32_t length = values_.get(count_ + i * kField, kField);
      if (length > 1) own += length - 1;
    }
    if (threadIdx.x == 0) shared_.exceptions.high_bit = static_cast<std::uint32_t>(lows);
    end_values(lows + cta_sum(shared_.scan, own));
  }

  __device__ void locate_exceptions() {
    const std::uint64_t begin = std::uint64_t{count_} * (1 + kept_bits());
    if (begin > values_.bits()) return found_.refuse(InputError::kOverrun);
    // All threads read the number of exceptions.
    const auto at = static_cast<std::uint32_t>(begin);
    const std::uint64_t window = values_.get_long(at, 64);
    if (window == 0) return found_.refuse(InputError::kOverrun);
    const auto low_bits = static_cast<std::uint32_t>(__ffsll(static_cast<long long>(window))) - 1;
    if (low_bits > kMaxRiceParameter)
      return found_.refuse(InputError::kExceptions);  // More than the changes of any block.
    const std::uint64_t remainders = begin + 2 * low_bits + 1;
    if (remainders > values_.bits()) return found_.refuse(InputError::kOverrun);
    const std::uint32_t number = (1U << low_bits | values_.get(at + low_bits + 1, low_bits)) - 1;
    if (number > count_ || (number == 0 && gap_rice() != 0)) return found_.refuse(InputError::kExceptions);
    const std::uint64_t gaps = remainders + std::uint64_t{number} * gap_rice();
    if (gaps > values_.bits()) return found_.refuse(InputError::kOverrun);
    ExceptionCursor cursor{};
    cursor.left = number;
    cursor.remainder_bit = static_cast<std::uint32_t>(remainders);
    cursor.gap_bit = static_cast<std::uint32_t>(gaps);
    locate_widths(cursor);
  }

  /// Walks over the gaps, which must stay within the block, then over the widths, which give the end of the high parts.
  __device__ void locate_widths(ExceptionCursor& cursor) {
    std::uint32_t at = cursor.gap_bit;
    std::uint64_t next = 0;
    for (std::uint32_t first = 0; first < cursor.left; first += kThreads) {
      const std::uint32_t wanted = batch(cursor.left - first);
      if (find_ones(values_, at, wanted, count_, shared_.gap_ones, shared_.scan) < wanted) {
        return found_.refuse(InputError::kOverrun);
      }
      next += cta_sum(shared_.scan, exception_step(cursor.remainder_bit + first * gap_rice(), at, wanted));
      at = shared_.gap_ones[wanted - 1] + 1;
      if (next > count_) return found_.refuse(InputError::kExceptions);
    }
    cursor.width_bit = at;
    std::uint64_t highs = 0;
    for (std::uint32_t first = 0; first < cursor.left; first += kThreads) {
      const std::uint32_t wanted = batch(cursor.left - first);
      if (find_ones(values_, at, wanted, 63, shared_.width_ones, shared_.scan) < wanted) {
        return found_.refuse(InputError::kOverrun);
      }
      const std::uint32_t zeros = threadIdx.x < wanted ? zeros_before(shared_.width_ones, threadIdx.x, at) : 0;
      found_.require(threadIdx.x >= wanted || zeros + 1 + kept_bits() < kWidth, InputError::kMagnitude);
      highs += cta_sum(shared_.scan, zeros);
      at = shared_.width_ones[wanted - 1] + 1;
    }
    cursor.high_bit = at;
    if (threadIdx.x == 0) shared_.exceptions = cursor;
    end_values(at + highs);
  }

  __device__ static std::uint32_t batch(std::uint32_t left) { return left < kThreads ? left : kThreads; }

  /// Returns the distance from the index after the previous exception to the index after the one of this thread; 0 if
  /// the thread has none. Less than 2^46.
  __device__ std::uint64_t exception_step(std::uint32_t remainder_bit, std::uint32_t gap_bit, std::uint32_t wanted) {
    if (threadIdx.x >= wanted) return 0;
    const std::uint64_t quotient = zeros_before(shared_.gap_ones, threadIdx.x, gap_bit);
    const std::uint32_t low = values_.get(remainder_bit + threadIdx.x * gap_rice(), gap_rice());
    return (quotient << gap_rice() | low) + 1;
  }

  __device__ std::uint64_t low_magnitude(std::uint32_t i) const {
    return values_.get_long(count_ + i * kept_bits(), kept_bits());
  }

  /// Returns the coded word of change i; an input error if the magnitude does not fit.
  __device__ T code(std::uint64_t magnitude, std::uint32_t i) {
    constexpr std::uint64_t kHalf = std::uint64_t{1} << (kWidth - 1);
    const bool negative = values_.get(i, 1) != 0;
    found_.require(magnitude < kHalf - (negative ? 0 : 1), InputError::kMagnitude);
    return ulp_from_magnitude(static_cast<T>(magnitude), negative);
  }

  /// Decodes the exceptions with an index below `end` and overwrites their words in shared.coded, whose first entry is
  /// change `chunk`.
  __device__ void read_exceptions(std::uint32_t end, std::uint32_t chunk) {
    ExceptionCursor at = shared_.exceptions;
    while (at.left != 0) {
      const std::uint32_t wanted = batch(at.left);
      find_ones(values_, at.gap_bit, wanted, count_, shared_.gap_ones, shared_.scan);
      find_ones(values_, at.width_bit, wanted, 63, shared_.width_ones, shared_.scan);
      const std::uint64_t step = exception_step(at.remainder_bit, at.gap_bit, wanted);
      const std::uint64_t next = at.next + cta_scan(shared_.scan, step).before + step;
      const std::uint32_t bits =
          threadIdx.x < wanted ? zeros_before(shared_.width_ones, threadIdx.x, at.width_bit) % 64 : 0;
      const std::uint32_t high_bit = at.high_bit + static_cast<std::uint32_t>(cta_scan(shared_.scan, bits).before);
      const bool here = threadIdx.x < wanted && next <= end;
      if (here) {
        const auto index = static_cast<std::uint32_t>(next - 1);
        const std::uint64_t high = std::uint64_t{1} << bits | values_.get_long(high_bit, bits);
        // The low parts of the chunk were written before the barriers above.
        if (index >= chunk) shared_.coded[index - chunk] = code(high << kept_bits() | low_magnitude(index), index);
      }
      const auto taken = static_cast<std::uint32_t>(__syncthreads_count(here ? 1 : 0));
      if (taken == 0) return;
      if (threadIdx.x + 1 == taken) {
        shared_.exceptions = {at.left - taken,
                              at.remainder_bit + taken * gap_rice(),
                              shared_.gap_ones[taken - 1] + 1,
                              shared_.width_ones[taken - 1] + 1,
                              high_bit + bits,
                              static_cast<std::uint32_t>(next)};
      }
      __syncthreads();
      if (taken < wanted) return;
      at = shared_.exceptions;
    }
  }

  __device__ void read_lengths(std::uint32_t first, std::uint32_t entries) {
    constexpr std::uint32_t kField = length_field_bits(kWidth);
    const std::uint32_t own = threadIdx.x * kEachDecoded;
    const std::uint32_t begin = shared_.exceptions.high_bit;
    std::uint32_t lengths[kEachDecoded] = {};
    std::uint32_t bits = 0;
    SPARSECAST_UNROLL
    for (std::uint32_t e = 0; e < kEachDecoded; ++e) {
      if (own + e < entries) lengths[e] = values_.get(count_ + (first + own + e) * kField, kField);
      if (lengths[e] > 1) bits += lengths[e] - 1;
    }
    const auto scanned = cta_scan(shared_.scan, bits);
    std::uint32_t at = begin + static_cast<std::uint32_t>(scanned.before);
    SPARSECAST_UNROLL
    for (std::uint32_t e = 0; e < kEachDecoded; ++e) {
      if (own + e >= entries) continue;
      std::uint64_t magnitude = lengths[e];
      if (lengths[e] > 1) {
        magnitude = std::uint64_t{1} << (lengths[e] - 1) | values_.get_long(at, lengths[e] - 1);
        at += lengths[e] - 1;
      }
      shared_.coded[own + e] = code(magnitude, first + own + e);
    }
    if (threadIdx.x == 0) shared_.exceptions.high_bit = begin + static_cast<std::uint32_t>(scanned.total);
  }

  DecodeShared<T>& shared_;
  FirstInputError& found_;
  BitString values_;
  std::uint32_t coding_;
  std::uint32_t count_;
};

}  // namespace sparsecast::cuda
