// SPDX-License-Identifier: Apache-2.0
#pragma once

// ExceptionDecoder: the exceptions among the ulp magnitudes of one block (docs/wire-format.md §4.2, point 3), read by
// all threads of a CTA together, kThreads at a time. locate() walks over the gaps and the widths to find where they
// end, which is not stored. read() then decodes the exceptions; each call continues where the call before ended.

#include "cuda/apply/decode_positions.cuh"

namespace sparsecast::cuda {

/// State of the decoding of a block's exceptions. Blocks whose magnitudes have lengths (Coding::lengths) use only
/// high_bit. The state is in shared memory to save registers, like PositionCursor.
struct ExceptionCursor {
  /// Number of exceptions that are not decoded yet.
  std::uint32_t left;
  /// Bit number, in the value part, of the remainder of the next exception's gap.
  std::uint32_t remainder_bit;
  /// Bit number of the quotient of the next exception's gap.
  std::uint32_t gap_bit;
  /// Bit number of the width of the next exception's high part.
  std::uint32_t width_bit;
  /// Bit number of the next exception's high part.
  std::uint32_t high_bit;
  std::uint32_t next;  ///< Lowest change index that the next exception may have.
};

struct ExceptionsShared {
  std::uint32_t gap_ones[kThreads];
  std::uint32_t width_ones[kThreads];
  ExceptionCursor exceptions;
};

/// Parameters of the exceptions of one block.
struct ExceptionFormat {
  std::uint32_t count;     ///< Number of changes in the block.
  std::uint32_t gap_rice;  ///< Rice parameter of the gaps, `ke` of the block's coding.
  /// The number of bits of an exception below its highest one bit must be less than this.
  std::uint32_t high_bits;
};

/// Decodes the exceptions of one block, with all threads of a CTA.
class ExceptionDecoder {
 public:
  __device__ ExceptionDecoder(const ExceptionFormat& format, const BitString& values, ExceptionsShared& shared,
                              ScanShared& scan, FirstInputError& found)
      : format_(format), values_(values), shared_(shared), scan_(scan), found_(found) {}

  /// Finds and checks the exceptions. They begin, with their number, at bit number `begin`. Returns the bit number
  /// after the last exception, or 0 after an input error. Must be called before read().
  __device__ std::uint64_t locate(std::uint64_t begin) {
    if (begin > values_.bits()) return refused(InputError::kOverrun);
    // All threads read the number of exceptions, each for itself.
    const auto at = static_cast<std::uint32_t>(begin);
    const std::uint64_t window = values_.get_long(at, 64);
    if (window == 0) return refused(InputError::kOverrun);
    const auto low_bits = static_cast<std::uint32_t>(__ffsll(static_cast<long long>(window))) - 1;
    // The number would exceed the changes of any block.
    if (low_bits > kMaxRiceParameter) return refused(InputError::kExceptions);
    const std::uint64_t remainders = begin + 2 * low_bits + 1;
    if (remainders > values_.bits()) return refused(InputError::kOverrun);
    const std::uint32_t number = (1U << low_bits | values_.get(at + low_bits + 1, low_bits)) - 1;
    if (number > format_.count || (number == 0 && format_.gap_rice != 0)) return refused(InputError::kExceptions);
    const std::uint64_t gaps = remainders + std::uint64_t{number} * format_.gap_rice;
    if (gaps > values_.bits()) return refused(InputError::kOverrun);
    ExceptionCursor cursor{};
    cursor.left = number;
    cursor.remainder_bit = static_cast<std::uint32_t>(remainders);
    cursor.gap_bit = static_cast<std::uint32_t>(gaps);
    return locate_widths(cursor);
  }

  /// Calls put(index, high) for each exception with an index below `end` that no earlier read() has taken. `index` is
  /// the index of its change, and `high` the number that the exception stores. A barrier precedes the calls; each call
  /// is made by one thread.
  template <class Put>
  __device__ void read(std::uint32_t end, const Put& put) {
    ExceptionCursor at = shared_.exceptions;
    while (at.left != 0) {
      const std::uint32_t wanted = batch(at.left);
      find_ones(values_, at.gap_bit, wanted, format_.count, shared_.gap_ones, scan_);
      find_ones(values_, at.width_bit, wanted, 63, shared_.width_ones, scan_);
      const std::uint64_t step = step_of(at.remainder_bit, at.gap_bit, wanted);
      const std::uint64_t next = at.next + cta_scan(scan_, step).before + step;
      const std::uint32_t bits =
          threadIdx.x < wanted ? zeros_before(shared_.width_ones, threadIdx.x, at.width_bit) % 64 : 0;
      const std::uint32_t high_bit = at.high_bit + static_cast<std::uint32_t>(cta_scan(scan_, bits).before);
      const bool here = threadIdx.x < wanted && next <= end;
      if (here) {
        put(static_cast<std::uint32_t>(next - 1), std::uint64_t{1} << bits | values_.get_long(high_bit, bits));
      }
      const auto taken = static_cast<std::uint32_t>(__syncthreads_count(here ? 1 : 0));
      if (taken == 0) return;
      if (threadIdx.x + 1 == taken) {
        shared_.exceptions = {at.left - taken,
                              at.remainder_bit + taken * format_.gap_rice,
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

 private:
  __device__ std::uint64_t refused(InputError reason) {
    found_.refuse(reason);
    return 0;
  }

  /// Walks over the gaps, which must stay within the block, then over the widths, and stores the complete state in
  /// shared memory. Returns the bit number after the high parts, or 0 after an input error.
  __device__ std::uint64_t locate_widths(ExceptionCursor& cursor) {
    std::uint32_t at = cursor.gap_bit;
    std::uint64_t next = 0;
    for (std::uint32_t first = 0; first < cursor.left; first += kThreads) {
      const std::uint32_t wanted = batch(cursor.left - first);
      if (find_ones(values_, at, wanted, format_.count, shared_.gap_ones, scan_) < wanted) {
        return refused(InputError::kOverrun);
      }
      next += cta_sum(scan_, step_of(cursor.remainder_bit + first * format_.gap_rice, at, wanted));
      at = shared_.gap_ones[wanted - 1] + 1;
      if (next > format_.count) return refused(InputError::kExceptions);
    }
    cursor.width_bit = at;
    std::uint64_t highs = 0;
    for (std::uint32_t first = 0; first < cursor.left; first += kThreads) {
      const std::uint32_t wanted = batch(cursor.left - first);
      if (find_ones(values_, at, wanted, 63, shared_.width_ones, scan_) < wanted) {
        return refused(InputError::kOverrun);
      }
      const std::uint32_t zeros = threadIdx.x < wanted ? zeros_before(shared_.width_ones, threadIdx.x, at) : 0;
      found_.require(threadIdx.x >= wanted || zeros < format_.high_bits, InputError::kMagnitude);
      highs += cta_sum(scan_, zeros);
      at = shared_.width_ones[wanted - 1] + 1;
    }
    cursor.high_bit = at;
    if (threadIdx.x == 0) shared_.exceptions = cursor;
    return at + highs;
  }

  __device__ static std::uint32_t batch(std::uint32_t left) { return left < kThreads ? left : kThreads; }

  /// Returns the gap before this thread's exception, plus one; the result is less than 2^46. Returns 0 if the thread
  /// has no exception.
  __device__ std::uint64_t step_of(std::uint32_t remainder_bit, std::uint32_t gap_bit, std::uint32_t wanted) const {
    if (threadIdx.x >= wanted) return 0;
    const std::uint64_t quotient = zeros_before(shared_.gap_ones, threadIdx.x, gap_bit);
    const std::uint32_t low = values_.get(remainder_bit + threadIdx.x * format_.gap_rice, format_.gap_rice);
    return (quotient << format_.gap_rice | low) + 1;
  }

  ExceptionFormat format_;
  BitString values_;
  ExceptionsShared& shared_;
  ScanShared& scan_;
  FirstInputError& found_;
};

}  // namespace sparsecast::cuda
