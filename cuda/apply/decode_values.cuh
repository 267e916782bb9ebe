// SPDX-License-Identifier: Apache-2.0
#pragma once

// ValueDecoder: the coded words of one block, read by all threads of a CTA together. locate() walks over the streams
// whose ends are not stored (gaps and widths of the exceptions) and checks that the payload ends with them. read() then
// decodes chunk after chunk; each call continues where the call before ended.

#include "cuda/apply/decode_exceptions.cuh"

namespace sparsecast::cuda {

template <class T>
struct DecodeShared : PositionsShared, ExceptionsShared {
  T coded[kDecodeChunk];
};

template <class T>
class ValueDecoder {
 public:
  static constexpr std::uint32_t kWidth = 8 * sizeof(T);

  /// Makes a decoder of the coded words of `count` changes with the packed Coding `coding`. `coding` stays packed,
  /// because unpacking a field again is cheaper than keeping it in a register. The decoder records input errors in
  /// `found`.
  __device__ ValueDecoder(std::uint32_t coding, std::uint32_t count, DecodeShared<T>& shared, FirstInputError& found)
      : shared_(shared), found_(found), coding_(coding), count_(count) {}

  /// Takes `values`, the words of the payload after the positions, and checks that they have the length and the padding
  /// that the coding requires. Must be called before read().
  __device__ void locate(const BitString& values) {
    values_ = values;
    if (whole_words()) {
      const std::uint64_t bits = std::uint64_t{count_} * kWidth;
      if ((bits + 31) / 32 != values_.count) return found_.refuse(InputError::kLength);
      return end_values(bits);
    }
    if (coding().lengths) return locate_lengths();
    const std::uint64_t end = exceptions().locate(std::uint64_t{count_} * (1 + kept_bits()));
    if (found_.input_error == InputError::kNone) end_values(end);
  }

  /// Decodes changes [first, first + entries) and writes their coded words to shared.coded. Successive calls must be
  /// for successive changes.
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
    exceptions().read(first + entries, [&](std::uint32_t index, std::uint64_t high) {
      // The chunk's low parts were written before the barriers inside read().
      if (index >= first) shared_.coded[index - first] = code(high << kept_bits() | low_magnitude(index), index);
    });
  }

 private:
  __device__ Coding coding() const { return Coding::unpack(coding_); }
  __device__ std::uint32_t kept_bits() const { return coding().kv; }
  __device__ ExceptionDecoder exceptions() {
    return {{count_, coding().ke, kWidth - 1 - kept_bits()}, values_, shared_, shared_.scan, found_};
  }
  __device__ bool whole_words() const {
    return coding().positions == PositionCodec::kDense || coding().values != ValueCodec::kUlp;
  }

  /// Records an input error unless the value part ends after `bits` bits, with zeros to the end of the last word.
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

  __device__ std::uint64_t low_magnitude(std::uint32_t i) const {
    return values_.get_long(count_ + i * kept_bits(), kept_bits());
  }

  /// Returns the coded word of change number i. Records an input error if the magnitude is too large for the element
  /// type.
  __device__ T code(std::uint64_t magnitude, std::uint32_t i) {
    constexpr std::uint64_t kHalf = std::uint64_t{1} << (kWidth - 1);
    const bool negative = values_.get(i, 1) != 0;
    found_.require(magnitude < kHalf - (negative ? 0 : 1), InputError::kMagnitude);
    return ulp_from_magnitude(static_cast<T>(magnitude), negative);
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
