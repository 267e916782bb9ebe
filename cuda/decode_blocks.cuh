#pragma once

// Decodes one block by all threads of a block of threads together, kDecodeChunk changes at a time, whatever their
// number; checks every rule of docs/wire-format.md §4 on the way. No bound comes from the payload unchecked: reads go
// through BitString, shared memory is indexed by counts that were clipped, elements are written below `span` only.
//
// A payload's streams follow one another and end where their codes say, so locate() first walks over those whose ends
// are not known: ones of the quotients, of the exceptions' gaps and widths. Then chunk after chunk is decoded, each
// stream going on where the chunk before ended.

#include "bit_string.cuh"
#include "codec/block.hpp"
#include "codec/codec_common.hpp"
#include "received.hpp"

namespace sparsecast::cuda {

inline constexpr std::uint32_t kEachDecoded = 4;
inline constexpr std::uint32_t kDecodeChunk = kEachDecoded * kThreads;

template <class T>
struct DecodeShared {
  ScanShared scan;
  std::uint32_t positions[kDecodeChunk];
  T coded[kDecodeChunk];
  std::uint32_t gap_ones[kThreads];
  std::uint32_t width_ones[kThreads];
  std::uint32_t next_exception;
  std::uint32_t high_bit;
};

/// The exceptions not yet decoded.
struct ExceptionCursor {
  std::uint32_t left = 0;
  std::uint32_t remainder_bit = 0;
  std::uint32_t gap_bit = 0;
  std::uint32_t width_bit = 0;
  std::uint32_t high_bit = 0;
  std::uint32_t next = 0;  ///< No exception has a lower index.
};

/// Decodes block after block; `refusal` is the thread's own, others may have found another.
template <class T>
class BlockDecoder {
 public:
  static constexpr std::uint32_t kWidth = 8 * sizeof(T);

  __device__ BlockDecoder(const ReceivedBlock& block, DecodeShared<T>& shared)
      : shared_(shared),
        coding_(Coding::unpack(block.coding)),
        span_(block.span),
        dense_(coding_.positions == PositionCodec::kDense),
        count_(dense_ ? block.span : block.changed),
        payload_{block.payload, block.payload_words} {}

  /// Calls sink(first, entries) for each chunk: entries [0, entries) of positions and coded words are those of changes
  /// `first` on. Ends at the chunk in which any thread found a refusal, without calling it.
  template <class Sink>
  __device__ Refusal decode(const Sink& sink) {
    if (payload_.count > kMostPayloadWords) return Refusal::kLength;
    locate_positions();
    if (__syncthreads_or(refusal_ != Refusal::kNone ? 1 : 0) != 0) return refusal_;
    locate_values();
    if (__syncthreads_or(refusal_ != Refusal::kNone ? 1 : 0) != 0) return refusal_;
    for (std::uint32_t first = 0; first < count_; first += kDecodeChunk) {
      const std::uint32_t entries = count_ - first < kDecodeChunk ? count_ - first : kDecodeChunk;
      read_positions(first, entries);
      read_values(first, entries);
      // Also the barrier between what was decoded and its use.
      if (__syncthreads_or(refusal_ != Refusal::kNone ? 1 : 0) != 0) break;
      sink(first, entries);
      __syncthreads();
    }
    return refusal_;
  }

 private:
  __device__ void refuse(Refusal refusal) {
    if (refusal_ == Refusal::kNone) refusal_ = refusal;
  }
  __device__ void require(bool holds, Refusal refusal) {
    if (!holds) refuse(refusal);
  }

  // ---- Where the parts are ----

  /// The position part takes `bits` bits; the values follow it.
  __device__ void end_positions(std::uint64_t bits) {
    const std::uint64_t words = (bits + 31) / 32;
    if (words > payload_.count) return refuse(Refusal::kOverrun);
    require(payload_.padded_at(static_cast<std::uint32_t>(bits)), Refusal::kPadding);
    values_ = {payload_.words + words, payload_.count - static_cast<std::uint32_t>(words)};
  }

  /// The value part takes `bits` bits, and nothing follows.
  __device__ void end_values(std::uint64_t bits) {
    const std::uint64_t words = (bits + 31) / 32;
    if (words != values_.count) return refuse(words > values_.count ? Refusal::kOverrun : Refusal::kLength);
    require(values_.padded_at(static_cast<std::uint32_t>(bits)), Refusal::kPadding);
  }

  __device__ void locate_positions() {
    switch (coding_.positions) {
      case PositionCodec::kIndex32:
        return end_positions(std::uint64_t{count_} * 32);
      case PositionCodec::kGap16:
        return end_positions(std::uint64_t{count_} * (coding_.kp != 0 ? 32 : 16));
      case PositionCodec::kPacked:
        return locate_packed();
      case PositionCodec::kBitmap:
        return locate_bitmap();
      case PositionCodec::kDense:
        return end_positions(0);
    }
  }

  __device__ void locate_bitmap() {
    end_positions(span_);
    // All threads have found the same.
    if (refusal_ != Refusal::kNone) return;
    std::uint32_t own = 0;
    for (std::uint32_t w = threadIdx.x; w < (span_ + 31) / 32; w += kThreads) {
      own += static_cast<std::uint32_t>(__popc(payload_.word(w)));
    }
    require(block_sum(shared_.scan, own) == count_, Refusal::kBitmapCount);
    ones_bit_ = 0;
  }

  __device__ void locate_packed() {
    const std::uint64_t quotients = std::uint64_t{count_} * coding_.kp;
    if (quotients + count_ > payload_.bits()) return refuse(Refusal::kOverrun);
    ones_bit_ = static_cast<std::uint32_t>(quotients);
    std::uint32_t at = ones_bit_;
    std::uint64_t tails = 0;
    for (std::uint32_t first = 0; first < count_; first += kDecodeChunk) {
      const std::uint32_t wanted = count_ - first < kDecodeChunk ? count_ - first : kDecodeChunk;
      if (find_ones(payload_, at, wanted, kMaxQuotientZeros, shared_.positions, shared_.scan) < wanted) {
        return refuse(Refusal::kOverrun);
      }
      std::uint64_t own = 0;
      for (std::uint32_t i = threadIdx.x; i < wanted; i += kThreads) {
        const std::uint32_t zeros = zeros_before(shared_.positions, i, at);
        require(zeros <= kMaxQuotientZeros, Refusal::kQuotient);
        if (zeros > kEscape) own += zeros - kEscape;
      }
      tails += block_sum(shared_.scan, own);
      at = shared_.positions[wanted - 1] + 1;
    }
    tail_bit_ = at;
    end_positions(at + tails);
  }

  __device__ void locate_values() {
    if (dense_ || coding_.values != ValueCodec::kUlp) {
      const std::uint64_t bits = std::uint64_t{count_} * kWidth;
      if ((bits + 31) / 32 != values_.count) return refuse(Refusal::kLength);
      return end_values(bits);
    }
    if (coding_.lengths) return locate_lengths();
    locate_exceptions();
  }

  __device__ void locate_lengths() {
    constexpr std::uint32_t kField = length_field_bits(kWidth);
    const std::uint64_t lows = std::uint64_t{count_} * (1 + kField);
    if (lows > values_.bits()) return refuse(Refusal::kOverrun);
    std::uint64_t own = 0;
    for (std::uint32_t i = threadIdx.x; i < count_; i += kThreads) {
      const std::uint32_t length = values_.get(count_ + i * kField, kField);
      if (length > 1) own += length - 1;
    }
    exceptions_.high_bit = static_cast<std::uint32_t>(lows);
    end_values(lows + block_sum(shared_.scan, own));
  }

  __device__ void locate_exceptions() {
    const std::uint64_t begin = std::uint64_t{count_} * (1 + coding_.kv);
    if (begin > values_.bits()) return refuse(Refusal::kOverrun);
    // Their number, which all threads read.
    const auto at = static_cast<std::uint32_t>(begin);
    const std::uint64_t window = values_.get_long(at, 64);
    if (window == 0) return refuse(Refusal::kOverrun);
    const auto low_bits = static_cast<std::uint32_t>(__ffsll(static_cast<long long>(window))) - 1;
    if (low_bits > kMaxRiceParameter) return refuse(Refusal::kExceptions);  // More than any block's changes.
    const std::uint64_t remainders = begin + 2 * low_bits + 1;
    if (remainders > values_.bits()) return refuse(Refusal::kOverrun);
    const std::uint32_t number = (1U << low_bits | values_.get(at + low_bits + 1, low_bits)) - 1;
    if (number > count_ || (number == 0 && coding_.ke != 0)) return refuse(Refusal::kExceptions);
    const std::uint64_t gaps = remainders + std::uint64_t{number} * coding_.ke;
    if (gaps > values_.bits()) return refuse(Refusal::kOverrun);
    exceptions_.left = number;
    exceptions_.remainder_bit = static_cast<std::uint32_t>(remainders);
    exceptions_.gap_bit = static_cast<std::uint32_t>(gaps);
    locate_widths();
  }

  /// The gaps, which must stay within the block; then the widths and with them the end of the high parts.
  __device__ void locate_widths() {
    std::uint32_t at = exceptions_.gap_bit;
    std::uint64_t next = 0;
    for (std::uint32_t first = 0; first < exceptions_.left; first += kThreads) {
      const std::uint32_t wanted = batch(exceptions_.left - first);
      if (find_ones(values_, at, wanted, count_, shared_.gap_ones, shared_.scan) < wanted) {
        return refuse(Refusal::kOverrun);
      }
      next += block_sum(shared_.scan, exception_step(exceptions_.remainder_bit + first * coding_.ke, at, wanted));
      at = shared_.gap_ones[wanted - 1] + 1;
      if (next > count_) return refuse(Refusal::kExceptions);
    }
    exceptions_.width_bit = at;
    std::uint64_t highs = 0;
    for (std::uint32_t first = 0; first < exceptions_.left; first += kThreads) {
      const std::uint32_t wanted = batch(exceptions_.left - first);
      if (find_ones(values_, at, wanted, 63, shared_.width_ones, shared_.scan) < wanted) {
        return refuse(Refusal::kOverrun);
      }
      const std::uint32_t zeros = threadIdx.x < wanted ? zeros_before(shared_.width_ones, threadIdx.x, at) : 0;
      require(threadIdx.x >= wanted || zeros + 1 + coding_.kv < kWidth, Refusal::kMagnitude);
      highs += block_sum(shared_.scan, zeros);
      at = shared_.width_ones[wanted - 1] + 1;
    }
    exceptions_.high_bit = at;
    end_values(at + highs);
  }

  __device__ static std::uint32_t batch(std::uint32_t left) { return left < kThreads ? left : kThreads; }

  /// From the index after the exception before to the one after this thread's, 0 without one. Below 2^46.
  __device__ std::uint64_t exception_step(std::uint32_t remainder_bit, std::uint32_t gap_bit, std::uint32_t wanted) {
    if (threadIdx.x >= wanted) return 0;
    const std::uint64_t quotient = zeros_before(shared_.gap_ones, threadIdx.x, gap_bit);
    const std::uint32_t low = values_.get(remainder_bit + threadIdx.x * coding_.ke, coding_.ke);
    return (quotient << coding_.ke | low) + 1;
  }

  // ---- Positions of a chunk ----

  __device__ void read_positions(std::uint32_t first, std::uint32_t entries) {
    switch (coding_.positions) {
      case PositionCodec::kIndex32:
        return read_index32(first, entries);
      case PositionCodec::kBitmap:
        // They are as many as were counted, and none is in the padding.
        find_ones(payload_, ones_bit_, entries, span_, shared_.positions, shared_.scan);
        ones_bit_ = shared_.positions[entries - 1] + 1;
        return;
      case PositionCodec::kDense:
        for (std::uint32_t i = threadIdx.x; i < entries; i += kThreads) shared_.positions[i] = first + i;
        return;
      default:
        return read_gaps(first, entries);
    }
  }

  __device__ void read_index32(std::uint32_t first, std::uint32_t entries) {
    for (std::uint32_t i = threadIdx.x; i < entries; i += kThreads) {
      const std::uint32_t position = payload_.word(first + i);
      const bool grows = first + i == 0 || position > payload_.word(first + i - 1);
      require(grows && position < span_, Refusal::kPosition);
      shared_.positions[i] = position;
    }
  }

  /// gap16 and packed: a thread takes consecutive entries, so that sums are scanned once.
  __device__ void read_gaps(std::uint32_t first, std::uint32_t entries) {
    const std::uint32_t own = threadIdx.x * kEachDecoded;
    std::uint64_t steps[kEachDecoded] = {};
    if (coding_.positions == PositionCodec::kPacked) {
      read_packed_gaps(first, entries, steps);
    } else {
      const std::uint32_t width = coding_.kp != 0 ? 32 : 16;
      SPARSECAST_UNROLL
      for (std::uint32_t e = 0; e < kEachDecoded; ++e) {
        if (own + e < entries) steps[e] = std::uint64_t{payload_.get((first + own + e) * width, width)} + 1;
      }
    }
    std::uint64_t sum = 0;
    SPARSECAST_UNROLL
    for (std::uint32_t e = 0; e < kEachDecoded; ++e) sum += steps[e];
    const Scanned scanned = block_scan(shared_.scan, sum);
    std::uint64_t next = next_position_ + scanned.before;
    SPARSECAST_UNROLL
    for (std::uint32_t e = 0; e < kEachDecoded; ++e) {
      next += steps[e];
      if (own + e < entries) {
        require(next <= span_, Refusal::kPosition);
        shared_.positions[own + e] = static_cast<std::uint32_t>(next - 1);
      }
    }
    next_position_ += scanned.total;
  }

  __device__ void read_packed_gaps(std::uint32_t first, std::uint32_t entries, std::uint64_t (&steps)[kEachDecoded]) {
    // Those of a block of one chunk are there since locate_packed.
    if (count_ > kDecodeChunk) {
      find_ones(payload_, ones_bit_, entries, kMaxQuotientZeros, shared_.positions, shared_.scan);
    }
    const std::uint32_t own = threadIdx.x * kEachDecoded;
    std::uint32_t zeros[kEachDecoded] = {};
    std::uint32_t tails = 0;
    SPARSECAST_UNROLL
    for (std::uint32_t e = 0; e < kEachDecoded; ++e) {
      if (own + e >= entries) continue;
      zeros[e] = zeros_before(shared_.positions, own + e, ones_bit_);
      if (zeros[e] > kEscape) tails += zeros[e] - kEscape;
    }
    const std::uint32_t end = shared_.positions[entries - 1] + 1;
    const Scanned scanned = block_scan(shared_.scan, tails);
    std::uint32_t tail_bit = tail_bit_ + static_cast<std::uint32_t>(scanned.before);
    SPARSECAST_UNROLL
    for (std::uint32_t e = 0; e < kEachDecoded; ++e) {
      if (own + e >= entries) continue;
      // locate_packed has refused more zeros than this.
      const std::uint32_t tail_bits = zeros[e] > kEscape ? (zeros[e] - kEscape) % 32 : 0;
      const std::uint64_t quotient =
          std::uint64_t{quotient_of_zeros(kEscape + tail_bits)} + payload_.get(tail_bit, tail_bits);
      const std::uint32_t remainder = payload_.get((first + own + e) * coding_.kp, coding_.kp);
      steps[e] = ((zeros[e] < kEscape ? zeros[e] : quotient) << coding_.kp | remainder) + 1;
      tail_bit += tail_bits;
    }
    ones_bit_ = end;
    tail_bit_ += static_cast<std::uint32_t>(scanned.total);
  }

  // ---- Values of a chunk ----

  __device__ void read_values(std::uint32_t first, std::uint32_t entries) {
    if (dense_ || coding_.values != ValueCodec::kUlp) {
      for (std::uint32_t i = threadIdx.x; i < entries; i += kThreads) {
        shared_.coded[i] = static_cast<T>(values_.get_long((first + i) * kWidth, kWidth));
      }
      return;
    }
    if (coding_.lengths) return read_lengths(first, entries);
    for (std::uint32_t i = threadIdx.x; i < entries; i += kThreads) {
      shared_.coded[i] = code(low_magnitude(first + i), first + i);
    }
    read_exceptions(first + entries, first);
  }

  __device__ std::uint64_t low_magnitude(std::uint32_t i) const {
    return values_.get_long(count_ + i * coding_.kv, coding_.kv);
  }

  /// The coded word of change i, whose magnitude must fit.
  __device__ T code(std::uint64_t magnitude, std::uint32_t i) {
    constexpr std::uint64_t kHalf = std::uint64_t{1} << (kWidth - 1);
    const bool negative = values_.get(i, 1) != 0;
    require(magnitude < kHalf - (negative ? 0 : 1), Refusal::kMagnitude);
    return ulp_from_magnitude(static_cast<T>(magnitude), negative);
  }

  /// Those below `end`, over the words without them.
  __device__ void read_exceptions(std::uint32_t end, std::uint32_t chunk) {
    while (exceptions_.left != 0) {
      const std::uint32_t wanted = batch(exceptions_.left);
      ExceptionCursor& at = exceptions_;
      find_ones(values_, at.gap_bit, wanted, count_, shared_.gap_ones, shared_.scan);
      find_ones(values_, at.width_bit, wanted, 63, shared_.width_ones, shared_.scan);
      const std::uint64_t step = exception_step(at.remainder_bit, at.gap_bit, wanted);
      const std::uint64_t next = at.next + block_scan(shared_.scan, step).before + step;
      const std::uint32_t bits =
          threadIdx.x < wanted ? zeros_before(shared_.width_ones, threadIdx.x, at.width_bit) % 64 : 0;
      const std::uint32_t high_bit = at.high_bit + static_cast<std::uint32_t>(block_scan(shared_.scan, bits).before);
      const bool here = threadIdx.x < wanted && next <= end;
      if (here) {
        const auto index = static_cast<std::uint32_t>(next - 1);
        const std::uint64_t high = std::uint64_t{1} << bits | values_.get_long(high_bit, bits);
        // The chunk's low parts were written before the barriers above.
        if (index >= chunk) shared_.coded[index - chunk] = code(high << coding_.kv | low_magnitude(index), index);
      }
      const auto taken = static_cast<std::uint32_t>(__syncthreads_count(here ? 1 : 0));
      if (taken == 0) return;
      if (threadIdx.x + 1 == taken) {
        shared_.next_exception = static_cast<std::uint32_t>(next);
        shared_.high_bit = high_bit + bits;
      }
      at.left -= taken;
      at.remainder_bit += taken * coding_.ke;
      at.gap_bit = shared_.gap_ones[taken - 1] + 1;
      at.width_bit = shared_.width_ones[taken - 1] + 1;
      __syncthreads();
      at.next = shared_.next_exception;
      at.high_bit = shared_.high_bit;
      if (taken < wanted) return;
    }
  }

  __device__ void read_lengths(std::uint32_t first, std::uint32_t entries) {
    constexpr std::uint32_t kField = length_field_bits(kWidth);
    const std::uint32_t own = threadIdx.x * kEachDecoded;
    std::uint32_t lengths[kEachDecoded] = {};
    std::uint32_t bits = 0;
    SPARSECAST_UNROLL
    for (std::uint32_t e = 0; e < kEachDecoded; ++e) {
      if (own + e < entries) lengths[e] = values_.get(count_ + (first + own + e) * kField, kField);
      if (lengths[e] > 1) bits += lengths[e] - 1;
    }
    const Scanned scanned = block_scan(shared_.scan, bits);
    std::uint32_t at = exceptions_.high_bit + static_cast<std::uint32_t>(scanned.before);
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
    exceptions_.high_bit += static_cast<std::uint32_t>(scanned.total);
  }

  DecodeShared<T>& shared_;
  Coding coding_;
  std::uint32_t span_;
  bool dense_;
  std::uint32_t count_;
  BitString payload_;
  BitString values_;
  std::uint32_t ones_bit_ = 0;  ///< packed, bitmap: where the next chunk's ones are,
  std::uint32_t tail_bit_ = 0;  ///< and packed's tails.
  std::uint64_t next_position_ = 0;
  ExceptionCursor exceptions_;  ///< Of the form with lengths only high_bit.
  Refusal refusal_ = Refusal::kNone;
};

}  // namespace sparsecast::cuda
