// SPDX-License-Identifier: Apache-2.0
#pragma once

// Codes the position part of a block (docs/wire-format.md §4.1, §5.2, §5.4) with all threads of a CTA or of a warp.

#include "codec/codec_common.hpp"
#include "cuda/common/coding_threads.cuh"
#include "cuda/encode/bit_sink.cuh"

namespace sparsecast::cuda {

/// Positions of the changes of a block of `span` elements, relative to the first element of the block.
struct PositionList {
  const std::uint32_t* positions = nullptr;
  std::uint32_t count = 0;
  std::uint32_t span = 0;

  __device__ std::uint32_t gap(std::uint32_t i) const {
    return i == 0 ? positions[0] : positions[i] - positions[i - 1] - 1;
  }
};

/// The coding of the position part of a block, and the bit numbers at which this thread writes.
struct PositionPlan {
  PositionCodec codec = PositionCodec::kPacked;
  /// Rice parameter of the gaps; with gap16 instead 1 if the gaps have 32 bits, and 0 if they have 16 bits.
  std::uint32_t kp = 0;
  std::uint32_t bytes = 0;         ///< Size of the position part in bytes, padded to a multiple of 4.
  std::uint32_t quotient_bit = 0;  ///< Only for packed: bit number at which this thread's quotients begin.
  std::uint32_t tail_bit = 0;      ///< Only for packed: bit number at which the tails of this thread's quotients begin.
};

/// Sums over the quotients of one thread's share or of all threads. Each ThreeSums has the sums for three Rice
/// parameters: k, k - 1 and k - 2.
struct QuotientSums {
  ThreeSums bits;   ///< Number of bits of the quotients' codes, without the one bits that end the unary parts.
  ThreeSums tails;  ///< Number of the bits in `bits` that belong to tails.
};

/// Returns the sums over this thread's share of the positions. `k` is the highest of the three Rice parameters.
template <class Threads>
__device__ QuotientSums sum_own_quotients(const PositionList& list, std::uint32_t k) {
  const Share share = Threads::share(list.count);
  QuotientSums sums;
  std::uint32_t next = share.begin == 0 ? 0 : list.positions[share.begin - 1] + 1;
  SPARSECAST_UNROLL_FOR(Threads)
  for (std::uint32_t i = share.begin; i < share.end; ++i) {
    const std::uint32_t position = list.positions[i];
    const std::uint32_t gap = position - next;
    next = position + 1;
    SPARSECAST_UNROLL
    for (std::uint32_t down = 0; down < 3; ++down) {
      // The sums for parameters below 0 are not used.
      const std::uint32_t quotient = gap >> (k < down ? 0 : k - down);
      const std::uint32_t tail = quotient_tail_bits(quotient);
      sums.tails.of[down] += tail;
      sums.bits.of[down] += (quotient < kEscape ? quotient : kEscape) + 2 * tail;
    }
  }
  return sums;
}

/// Returns the plan of a packed position part: its Rice parameter, which is chosen by docs/wire-format.md §5.2, and the
/// bit numbers at which this thread writes.
template <class Threads>
__device__ PositionPlan plan_packed(const PositionList& list, const Threads& threads) {
  std::uint32_t k = rice_parameter(list.positions[list.count - 1] + 1 - list.count, list.count);
  PositionPlan plan;
  TwoSums own;  // Bits of the quotients with their ones, and bits of the tails.
  std::uint64_t best = ~std::uint64_t{0};
  bool lower = true;
  while (lower) {
    const QuotientSums sums = sum_own_quotients<Threads>(list, k);
    const ThreeSums all = threads.sum(sums.bits, k / 3 % 2);
    const Share share = Threads::share(list.count);
    SPARSECAST_UNROLL
    for (std::uint32_t down = 0; down < 3; ++down) {
      if (!lower || k < down) break;
      const std::uint64_t bits = std::uint64_t{list.count} * (k - down + 1) + all.of[down];
      lower = bits < best;
      if (!lower) break;
      best = bits;
      plan.kp = k - down;
      own = {sums.bits.of[down] - sums.tails.of[down] + share.end - share.begin, sums.tails.of[down]};
    }
    // Tries the next three parameters if the last one was the best so far.
    lower = lower && k >= 3;
    k -= 3;
  }
  const TwoScans scanned = threads.scan(own);
  const std::uint32_t remainders = list.count * plan.kp;
  plan.quotient_bit = remainders + scanned.before.first;
  plan.tail_bit = remainders + scanned.total.first + scanned.before.second;
  plan.bytes = static_cast<std::uint32_t>(padded_bytes(best));
  return plan;
}

template <class Threads>
__device__ PositionPlan plan_gap16(const PositionList& list, const Threads& threads) {
  const Share share = Threads::share(list.count);
  bool wide = false;
  SPARSECAST_UNROLL_FOR(Threads)
  for (std::uint32_t i = share.begin; i < share.end; ++i) wide = wide || list.gap(i) > 0xFFFF;
  PositionPlan plan;
  plan.codec = PositionCodec::kGap16;
  plan.kp = threads.any(wide) ? 1 : 0;
  plan.bytes = static_cast<std::uint32_t>(padded_bytes(std::uint64_t{list.count} * (plan.kp != 0 ? 32 : 16)));
  return plan;
}

/// Returns the plan of the position part in the coding that `mode` names. With kAuto, this is bitmap or packed,
/// whichever is smaller (docs/wire-format.md §5.4). The caller must consider `dense` itself.
template <class Threads>
__device__ PositionPlan plan_positions(const PositionList& list, PositionMode mode, const Threads& threads) {
  PositionPlan bitmap;
  bitmap.codec = PositionCodec::kBitmap;
  bitmap.bytes = static_cast<std::uint32_t>(padded_bytes(list.span));
  switch (mode) {
    case PositionMode::kIndex32: {
      PositionPlan plan;
      plan.codec = PositionCodec::kIndex32;
      plan.bytes = 4 * list.count;
      return plan;
    }
    case PositionMode::kGap16:
      return plan_gap16(list, threads);
    case PositionMode::kBitmap:
      return bitmap;
    default: {
      const PositionPlan packed = plan_packed(list, threads);
      return mode == PositionMode::kAuto && bitmap.bytes < packed.bytes ? bitmap : packed;
    }
  }
}

template <class Threads>
__device__ void write_packed(const PositionList& list, const PositionPlan& plan, std::uint32_t* words) {
  const Share share = Threads::share(list.count);
  BitSink remainders(words, share.begin * plan.kp);
  std::uint32_t quotient_bit = plan.quotient_bit;
  std::uint32_t tail_bit = plan.tail_bit;
  std::uint32_t next = share.begin == 0 ? 0 : list.positions[share.begin - 1] + 1;
  SPARSECAST_UNROLL_FOR(Threads)
  for (std::uint32_t i = share.begin; i < share.end; ++i) {
    const std::uint32_t position = list.positions[i];
    const std::uint32_t gap = position - next;
    next = position + 1;
    remainders.put(gap & ((1U << plan.kp) - 1), plan.kp);
    const std::uint32_t quotient = gap >> plan.kp;
    const std::uint32_t tail_bits = quotient_tail_bits(quotient);
    quotient_bit += (quotient < kEscape ? quotient : kEscape) + tail_bits;
    set_bit(words, quotient_bit++);
    if (tail_bits != 0) {
      put_bits(words, tail_bit, quotient - quotient_of_zeros(kEscape + tail_bits), tail_bits);
      tail_bit += tail_bits;
    }
  }
  remainders.flush();
}

/// Writes this thread's share of the position part to `words`, which must be zero before. The callers provide the
/// barriers before and after the call.
template <class Threads>
__device__ void write_positions(const PositionList& list, const PositionPlan& plan, std::uint32_t* words) {
  const Share share = Threads::share(list.count);
  switch (plan.codec) {
    case PositionCodec::kIndex32:
      for (std::uint32_t i = Threads::rank(); i < list.count; i += Threads::kCount) words[i] = list.positions[i];
      break;
    case PositionCodec::kGap16: {
      const std::uint32_t width = plan.kp != 0 ? 32 : 16;
      BitSink gaps(words, share.begin * width);
      SPARSECAST_UNROLL_FOR(Threads)
      for (std::uint32_t i = share.begin; i < share.end; ++i) gaps.put(list.gap(i), width);
      gaps.flush();
      break;
    }
    case PositionCodec::kBitmap:
      for (std::uint32_t i = Threads::rank(); i < list.count; i += Threads::kCount) set_bit(words, list.positions[i]);
      break;
    default:
      write_packed<Threads>(list, plan, words);
  }
}

}  // namespace sparsecast::cuda
