// SPDX-License-Identifier: Apache-2.0
#pragma once

// The position part of a `context` block (docs/wire-format.md §4.3), read by all threads of a CTA together. It gives
// the classes and the rank of each change; reading them does not need the weights.

#include "codec/context_model.hpp"
#include "cuda/apply/decode_positions.cuh"
#include "cuda/common/coding_threads.cuh"

namespace sparsecast::cuda {

/// Parameters of the position part of a `context` block. Changes are numbered in stored order: by class, and within a
/// class by position.
struct ContextHead {
  /// For each class, the number of its first change; begin[kMostClasses] is the number of all changes.
  std::uint32_t begin[kMostClasses + 1];
  /// Rice parameter of each class.
  std::uint32_t rice[kMostClasses];
  std::uint32_t remainder_bit[kMostClasses];  ///< Bit number, in the payload, of the first remainder of each class.
  /// Bit number, in the payload, of the first quotient.
  std::uint32_t quotient_bit;
  /// Check sum of the block's old words and positions.
  std::uint32_t check;
  ContextClasses classes;
  /// For each class that has changes: the sum of the steps of all changes of the earlier classes. The step of a change
  /// is its gap plus one.
  std::uint64_t steps_before[kMostClasses];

  /// Returns the class of change number `i`.
  __device__ std::uint32_t class_of_change(std::uint32_t i) const {
    std::uint32_t c = 0;
    while (i >= begin[c + 1]) ++c;
    return c;
  }
};

/// Decodes the position part of a `context` block to the ranks of the block's changes.
class RankDecoder {
 public:
  /// Makes a decoder of the ranks of `count` changes among `span` elements, from the payload of the block. decode()
  /// sets `head`, and records input errors in `found`.
  __device__ RankDecoder(const BitString& payload, std::uint32_t span, std::uint32_t count, PositionsShared& shared,
                         ContextHead& head, FirstInputError& found)
      : payload_(payload), span_(span), count_(count), shared_(shared), head_(head), found_(found) {}

  /// Writes the rank of each change to `ranks`. Returns the words of the payload after the position part. After an
  /// input error, which found.any() reports to all threads, neither the ranks nor the returned words are valid.
  __device__ BitString decode(std::uint32_t* ranks) {
    // Each change takes at least two bits: its sign, and the one bit that ends its quotient.
    if (std::uint64_t{count_} * 2 > payload_.bits()) return refused(InputError::kOverrun);
    if (threadIdx.x < 32) read_head();
    if (found_.any()) return {};
    // `ranks` keeps each change's number of zeros (below 32) and its remainder (up to 22 bits) until add_up() reads its
    // tail.
    const QuotientsEnd codes =
        walk_quotients(payload_, head_.quotient_bit, count_, kMaxQuotientZeros, shared_, found_,
                       [&](std::uint32_t i, std::uint32_t zeros) { ranks[i] = remainder_of(i) << 5 | zeros % 32; });
    if (found_.any()) return {};
    const std::uint64_t words = (codes.end + 31) / 32;
    if (words > payload_.count) return refused(InputError::kOverrun);
    found_.require(payload_.padded_at(static_cast<std::uint32_t>(codes.end)), InputError::kPadding);
    add_up(codes.tails, ranks);
    return {payload_.words + words, payload_.count - static_cast<std::uint32_t>(words)};
  }

 private:
  static constexpr std::uint32_t kHeadBits = 8 + 4 + 1 + 32;

  __device__ BitString refused(InputError reason) {
    found_.refuse(reason);
    return {};
  }

  /// Reads the parameters of all classes into head_. Only the lanes of the first warp call it; lane l reads the
  /// parameters of class l.
  __device__ void read_head() {
    const std::uint32_t lane = WarpThreads::rank();
    ContextClasses classes;
    classes.hi = payload_.get(0, 8);
    classes.count = payload_.get(8, 4) + 1;
    classes.width = payload_.get(12, 1) + 1;
    const std::uint32_t count_bits = bit_width32(count_);
    std::uint32_t size = lane + 1 < classes.count ? payload_.get(kHeadBits + lane * count_bits, count_bits) : 0;
    const auto sizes = WarpThreads::scan(size);
    if (sizes.total > count_) found_.refuse(InputError::kClasses);
    if (lane + 1 == classes.count) size = sizes.total < count_ ? count_ - sizes.total : 0;
    const std::uint32_t present = __ballot_sync(kAllLanes, size != 0 ? 1 : 0);
    const std::uint32_t rice_bits = kHeadBits + (classes.count - 1) * count_bits;
    const auto before = static_cast<std::uint32_t>(__popc(present & ((1U << lane) - 1)));
    const std::uint32_t rice = size != 0 ? payload_.get(rice_bits + 5 * before, 5) : 0;
    found_.require(rice <= kMaxRiceParameter, InputError::kClasses);
    // The sum is below 2^28, because the sizes add up to at most 2^22 unless there is an error.
    const auto remainders = WarpThreads::scan(size * rice);
    const std::uint32_t begin = rice_bits + 5 * static_cast<std::uint32_t>(__popc(present));
    const std::uint64_t quotients = std::uint64_t{begin} + remainders.total;
    found_.require(quotients + count_ <= payload_.bits(), InputError::kOverrun);
    if (lane < kMostClasses) {
      head_.begin[lane] = lane < classes.count ? sizes.before : count_;
      head_.rice[lane] = rice;
      head_.remainder_bit[lane] = begin + remainders.before;
    }
    if (lane == 0) {
      head_.begin[kMostClasses] = count_;
      head_.quotient_bit = static_cast<std::uint32_t>(quotients);
      head_.check = payload_.get(13, 32);
      head_.classes = classes;
    }
  }

  __device__ std::uint32_t remainder_of(std::uint32_t i) const {
    const std::uint32_t c = head_.class_of_change(i);
    return payload_.get(head_.remainder_bit[c] + (i - head_.begin[c]) * head_.rice[c], head_.rice[c]);
  }

  /// Completes the quotients with their tails, which begin at bit number `tail_bit`, and replaces the codes in `ranks`
  /// by ranks. The rank of a change is the sum of the steps (gap plus one) of its class up to this change, minus one.
  __device__ void add_up(std::uint32_t tail_bit, std::uint32_t* ranks) {
    std::uint64_t sum = 0;
    for (std::uint32_t first = 0; first < count_; first += kDecodeChunk) {
      const std::uint32_t own = first + threadIdx.x * kEachDecoded;
      std::uint32_t codes[kEachDecoded] = {};
      std::uint32_t tails = 0;
      SPARSECAST_UNROLL
      for (std::uint32_t e = 0; e < kEachDecoded; ++e) {
        if (own + e < count_) codes[e] = ranks[own + e];
        tails += codes[e] % 32 > kEscape ? codes[e] % 32 - kEscape : 0;
      }
      const auto tails_before = cta_scan(shared_.scan, tails);
      const std::uint32_t begin_class = own < count_ ? head_.class_of_change(own) : 0;
      std::uint64_t steps[kEachDecoded] = {};
      std::uint64_t own_steps = 0;
      std::uint32_t bit = tail_bit + static_cast<std::uint32_t>(tails_before.before);
      std::uint32_t c = begin_class;
      SPARSECAST_UNROLL
      for (std::uint32_t e = 0; e < kEachDecoded; ++e) {
        if (own + e >= count_) continue;
        while (own + e >= head_.begin[c + 1]) ++c;
        const std::uint32_t zeros = codes[e] % 32;
        const std::uint32_t tail_bits = zeros > kEscape ? zeros - kEscape : 0;
        const std::uint64_t quotient = std::uint64_t{quotient_of_zeros(zeros)} + payload_.get(bit, tail_bits);
        const std::uint64_t gap = quotient << head_.rice[c] | codes[e] >> 5;
        found_.require(gap < span_, InputError::kRank);
        steps[e] = gap < span_ ? gap + 1 : 0;
        own_steps += steps[e];
        bit += tail_bits;
      }
      const auto steps_before = cta_scan(shared_.scan, own_steps);
      std::uint64_t next = sum + steps_before.before;
      c = begin_class;
      SPARSECAST_UNROLL
      for (std::uint32_t e = 0; e < kEachDecoded; ++e) {
        if (own + e >= count_) continue;
        while (own + e >= head_.begin[c + 1]) ++c;
        if (own + e == head_.begin[c]) head_.steps_before[c] = next;
        next += steps[e];
      }
      __syncthreads();
      next = sum + steps_before.before;
      c = begin_class;
      SPARSECAST_UNROLL
      for (std::uint32_t e = 0; e < kEachDecoded; ++e) {
        if (own + e >= count_) continue;
        while (own + e >= head_.begin[c + 1]) ++c;
        next += steps[e];
        const std::uint64_t rank = next - head_.steps_before[c] - 1;
        found_.require(rank < span_, InputError::kRank);
        ranks[own + e] = static_cast<std::uint32_t>(rank);
      }
      sum += steps_before.total;
      tail_bit += static_cast<std::uint32_t>(tails_before.total);
    }
  }

  BitString payload_;
  std::uint32_t span_;
  std::uint32_t count_;
  PositionsShared& shared_;
  ContextHead& head_;
  FirstInputError& found_;
};

}  // namespace sparsecast::cuda
