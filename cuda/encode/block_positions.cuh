// SPDX-License-Identifier: Apache-2.0
#pragma once

// The position part of a block (docs/wire-format.md §4.1, §5.2, §5.4), coded by all threads of a CTA together.

#include "codec/codec_common.hpp"
#include "cuda/common/cta_primitives.cuh"
#include "cuda/encode/bit_sink.cuh"

namespace sparsecast::cuda {

/// Positions of the changes of a block, relative to its first element.
struct PositionList {
  const std::uint32_t* positions = nullptr;
  std::uint32_t count = 0;
  std::uint32_t span = 0;

  __device__ std::uint32_t gap(std::uint32_t i) const {
    return i == 0 ? positions[0] : positions[i] - positions[i - 1] - 1;
  }
};

struct PositionPlan {
  PositionCodec codec = PositionCodec::kPacked;
  std::uint32_t kp = 0;
  std::uint32_t bytes = 0;         ///< Size of the position part, padded to 4 bytes.
  std::uint32_t quotient_bit = 0;  ///< packed: bit at which the quotients of this thread start.
  std::uint32_t tail_bit = 0;      ///< packed: bit at which their tails start.
};

inline constexpr std::uint32_t kSumBits = 21;  ///< Enough for the bits of all quotients of a block.

/// Returns the numbers of bits of all quotients (without their ones) for k, k - 1 and k - 2, packed into one word.
__device__ inline std::uint64_t three_quotient_sums(const PositionList& list, std::uint32_t k, ScanShared& shared) {
  const Share share = share_of(list.count);
  std::uint64_t sums = 0;
  for (std::uint32_t i = share.begin; i < share.end; ++i) {
    const std::uint32_t gap = list.gap(i);
    for (std::uint32_t down = 0; down < 3 && down <= k; ++down) {
      const std::uint32_t quotient = gap >> (k - down);
      sums += std::uint64_t{quotient_zeros(quotient) + quotient_tail_bits(quotient)} << down * kSumBits;
    }
  }
  return cta_sum(shared, sums);
}

/// Returns the Rice parameter of docs/wire-format.md §5.2.
__device__ inline std::uint32_t choose_kp(const PositionList& list, ScanShared& shared) {
  std::uint32_t k = rice_parameter(list.positions[list.count - 1] + 1 - list.count, list.count);
  if (k == 0) return 0;
  std::uint64_t sums = three_quotient_sums(list, k, shared);
  std::uint32_t down = 0;
  const auto bits = [&](std::uint32_t parameter) {
    return std::uint64_t{list.count} * (parameter + 1) + (sums >> down * kSumBits & ((1U << kSumBits) - 1));
  };
  std::uint64_t best = bits(k);
  while (k > 0) {
    if (++down == 3) {
      sums = three_quotient_sums(list, k - 1, shared);
      down = 0;
    }
    const std::uint64_t lower = bits(k - 1);
    if (lower >= best) break;
    best = lower;
    --k;
  }
  return k;
}

__device__ inline PositionPlan plan_packed(const PositionList& list, ScanShared& shared) {
  PositionPlan plan;
  plan.kp = choose_kp(list, shared);
  const Share share = share_of(list.count);
  std::uint64_t own = 0;  // Bits of the quotients with their ones, and bits of the tails.
  for (std::uint32_t i = share.begin; i < share.end; ++i) {
    const std::uint32_t quotient = list.gap(i) >> plan.kp;
    own += std::uint64_t{quotient_zeros(quotient) + 1} << 32 | quotient_tail_bits(quotient);
  }
  const Scanned scanned = cta_scan(shared, own);
  const std::uint32_t remainders = list.count * plan.kp;
  const auto quotients = static_cast<std::uint32_t>(scanned.total >> 32);
  plan.quotient_bit = remainders + static_cast<std::uint32_t>(scanned.before >> 32);
  plan.tail_bit = remainders + quotients + static_cast<std::uint32_t>(scanned.before);
  plan.bytes = static_cast<std::uint32_t>(
      padded_bytes(std::uint64_t{remainders} + quotients + static_cast<std::uint32_t>(scanned.total)));
  return plan;
}

__device__ inline PositionPlan plan_gap16(const PositionList& list) {
  const Share share = share_of(list.count);
  bool wide = false;
  for (std::uint32_t i = share.begin; i < share.end; ++i) wide = wide || list.gap(i) > 0xFFFF;
  PositionPlan plan;
  plan.codec = PositionCodec::kGap16;
  plan.kp = __syncthreads_or(wide ? 1 : 0) != 0 ? 1 : 0;
  plan.bytes = static_cast<std::uint32_t>(padded_bytes(std::uint64_t{list.count} * (plan.kp != 0 ? 32 : 16)));
  return plan;
}

/// Chooses the position coding by docs/wire-format.md §5.4, before dense is considered.
__device__ inline PositionPlan plan_positions(const PositionList& list, PositionMode mode, ScanShared& shared) {
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
      return plan_gap16(list);
    case PositionMode::kBitmap:
      return bitmap;
    default: {
      const PositionPlan packed = plan_packed(list, shared);
      return mode == PositionMode::kAuto && bitmap.bytes < packed.bytes ? bitmap : packed;
    }
  }
}

__device__ inline void write_packed(const PositionList& list, const PositionPlan& plan, const Share& share,
                                    std::uint32_t* words) {
  BitSink remainders(words, std::uint64_t{share.begin} * plan.kp);
  BitSink quotients(words, plan.quotient_bit);
  BitSink tails(words, plan.tail_bit);
  for (std::uint32_t i = share.begin; i < share.end; ++i) {
    const std::uint32_t gap = list.gap(i);
    const std::uint32_t quotient = gap >> plan.kp;
    const std::uint32_t zeros = quotient_zeros(quotient);
    remainders.put(gap & ((1U << plan.kp) - 1), plan.kp);
    quotients.put_unary(zeros);
    tails.put(quotient - quotient_of_zeros(zeros), quotient_tail_bits(quotient));
  }
  remainders.flush();
  quotients.flush();
  tails.flush();
}

/// Writes the position part to `words`, which must be zero. Callers provide the barriers.
__device__ inline void write_positions(const PositionList& list, const PositionPlan& plan, std::uint32_t* words) {
  const Share share = share_of(list.count);
  switch (plan.codec) {
    case PositionCodec::kIndex32:
      for (std::uint32_t i = threadIdx.x; i < list.count; i += kThreads) words[i] = list.positions[i];
      break;
    case PositionCodec::kGap16: {
      const std::uint32_t width = plan.kp != 0 ? 32 : 16;
      BitSink gaps(words, std::uint64_t{share.begin} * width);
      for (std::uint32_t i = share.begin; i < share.end; ++i) gaps.put(list.gap(i), width);
      gaps.flush();
      break;
    }
    case PositionCodec::kBitmap:
      for (std::uint32_t i = threadIdx.x; i < list.count; i += kThreads) {
        atomicOr(&words[list.positions[i] / 32], 1U << list.positions[i] % 32);
      }
      break;
    default:
      write_packed(list, plan, share, words);
  }
}

}  // namespace sparsecast::cuda
