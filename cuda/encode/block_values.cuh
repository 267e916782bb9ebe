// SPDX-License-Identifier: Apache-2.0
#pragma once

// The value part of a block (docs/wire-format.md §4.2, §5.3), coded by all threads of a CTA together.

#include "codec/codec_common.hpp"
#include "cuda/common/cta_primitives.cuh"
#include "cuda/encode/bit_sink.cuh"

namespace sparsecast::cuda {

template <class T>
inline constexpr std::uint32_t kWidthOf = 8 * sizeof(T);

struct ValuesShared {
  std::uint32_t by_width[65];
  unsigned long long best;
};

struct ValuePlan {
  std::uint32_t kv = 0;
  std::uint32_t ke = 0;
  bool lengths = false;
  std::uint32_t exceptions = 0;
  std::uint32_t bytes = 0;      ///< Size of the value part, padded to 4 bytes.
  std::uint32_t unary_bit = 0;  ///< Bit at which the gaps of the exceptions of this thread start.
  std::uint32_t width_bit = 0;  ///< Bit at which the widths of their high parts start.
  std::uint32_t high_bit = 0;   ///< Bit at which their high parts start.
};

/// Writes the indices of the entries whose magnitude has a bit at or above `low_bits` to `exceptions`, in order, and
/// returns their number.
template <class T>
__device__ std::uint32_t list_exceptions(const T* words, std::uint32_t count, std::uint32_t low_bits,
                                         std::uint16_t* exceptions, ScanShared& shared) {
  const Share share = share_of(count);
  std::uint32_t own = 0;
  for (std::uint32_t i = share.begin; i < share.end; ++i) own += ulp_magnitude(words[i]) >> low_bits != 0 ? 1 : 0;
  const Scanned scanned = cta_scan(shared, own);
  std::uint16_t* out = exceptions + scanned.before;
  for (std::uint32_t i = share.begin; i < share.end; ++i) {
    if (ulp_magnitude(words[i]) >> low_bits != 0) *out++ = static_cast<std::uint16_t>(i);
  }
  __syncthreads();
  return static_cast<std::uint32_t>(scanned.total);
}

/// Chooses kv or the form with lengths (docs/wire-format.md §5.3) when more than a quarter of the magnitudes are not 0.
/// Each thread costs one kv.
template <class T>
__device__ void plan_magnitudes(const T* words, std::uint32_t count, ValuesShared& shared, ValuePlan& plan) {
  for (std::uint32_t b = threadIdx.x; b < 65; b += kThreads) shared.by_width[b] = 0;
  if (threadIdx.x == 0) shared.best = ~0ULL;
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) {
    atomicAdd(&shared.by_width[bit_width64(ulp_magnitude(words[i]))], 1U);
  }
  __syncthreads();
  if (threadIdx.x < kWidthOf<T>) {
    std::uint32_t exceptions;
    const std::uint64_t cost = ulp_cost(shared.by_width, kWidthOf<T>, count, threadIdx.x, exceptions);
    atomicMin(&shared.best, cost << 8 | threadIdx.x);  // The smallest kv of equal costs wins.
  }
  __syncthreads();
  // Neither is written again before the barriers of the code that follows.
  plan.lengths = lengths_cost(shared.by_width, kWidthOf<T>, count) < shared.best >> 8;
  plan.kv = plan.lengths ? 0 : static_cast<std::uint32_t>(shared.best & 0xFF);
}

/// Plans the form with lengths: the bit at which this thread's bits below the highest ones go, and the size.
template <class T>
__device__ void place_lengths(const T* words, std::uint32_t count, ScanShared& scan, ValuePlan& plan) {
  const Share share = share_of(count);
  std::uint32_t own = 0;
  for (std::uint32_t i = share.begin; i < share.end; ++i) own += bits_below_highest(ulp_magnitude(words[i]));
  const Scanned scanned = cta_scan(scan, own);
  const std::uint32_t begin = count * (1 + length_field_bits(kWidthOf<T>));
  plan.high_bit = begin + static_cast<std::uint32_t>(scanned.before);
  plan.bytes = static_cast<std::uint32_t>(padded_bytes(begin + scanned.total));
}

template <class T>
__device__ void write_lengths(const T* words, std::uint32_t count, const ValuePlan& plan, std::uint32_t* out) {
  constexpr std::uint32_t kField = length_field_bits(kWidthOf<T>);
  const Share share = share_of(count);
  BitSink signs(out, share.begin);
  BitSink lengths(out, std::uint64_t{count} + std::uint64_t{share.begin} * kField);
  BitSink lows(out, plan.high_bit);
  for (std::uint32_t i = share.begin; i < share.end; ++i) {
    const std::uint64_t magnitude = ulp_magnitude(words[i]);
    const std::uint32_t bits = bits_below_highest(magnitude);
    signs.put(static_cast<std::uint32_t>(words[i] >> (kWidthOf<T> - 1)), 1);
    lengths.put(static_cast<std::uint32_t>(bit_width64(magnitude)), kField);
    if (bits != 0) lows.put_long(magnitude ^ std::uint64_t{1} << bits, bits);
  }
  signs.flush();
  lengths.flush();
  lows.flush();
}

/// Gaps and high parts of the exceptions of a block.
template <class T>
struct Exceptions {
  const T* words = nullptr;
  const std::uint16_t* index = nullptr;
  std::uint32_t kv = 0;

  __device__ std::uint32_t gap(std::uint32_t j) const { return j == 0 ? index[0] : index[j] - index[j - 1] - 1U; }
  __device__ std::uint64_t high(std::uint32_t j) const { return std::uint64_t{ulp_magnitude(words[index[j]])} >> kv; }
  __device__ std::uint32_t high_bits(std::uint32_t j) const { return bits_below_highest(high(j)); }
};

template <class T>
__device__ ValuePlan plan_ulp(const T* words, std::uint32_t count, std::uint16_t* index, ScanShared& scan,
                              ValuesShared& shared) {
  ValuePlan plan;
  plan.exceptions = list_exceptions(words, count, 0, index, scan);
  if (std::uint64_t{plan.exceptions} * 4 > count) {
    plan_magnitudes(words, count, shared, plan);
    if (plan.lengths) {
      place_lengths(words, count, scan, plan);
      return plan;
    }
    if (plan.kv != 0) plan.exceptions = list_exceptions(words, count, plan.kv, index, scan);
  }
  if (plan.exceptions != 0) {
    plan.ke = rice_parameter(index[plan.exceptions - 1] + 1U - plan.exceptions, plan.exceptions);
  }
  const Exceptions<T> exceptions{words, index, plan.kv};
  const Share share = share_of(plan.exceptions);
  std::uint64_t own = 0;  // Zeros of the quotients of the gaps, and bits of the high parts.
  for (std::uint32_t j = share.begin; j < share.end; ++j) {
    own += std::uint64_t{exceptions.gap(j) >> plan.ke} << 32 | exceptions.high_bits(j);
  }
  const Scanned scanned = cta_scan(scan, own);
  const auto quotients = static_cast<std::uint32_t>(scanned.total >> 32);
  const auto highs = static_cast<std::uint32_t>(scanned.total);
  const auto highs_before = static_cast<std::uint32_t>(scanned.before);
  std::uint32_t bit = count * (1 + plan.kv) + exp_golomb_bits(plan.exceptions) + plan.exceptions * plan.ke;
  plan.unary_bit = bit + share.begin + static_cast<std::uint32_t>(scanned.before >> 32);
  bit += plan.exceptions + quotients;
  plan.width_bit = bit + share.begin + highs_before;
  bit += plan.exceptions + highs;
  plan.high_bit = bit + highs_before;
  plan.bytes = static_cast<std::uint32_t>(padded_bytes(std::uint64_t{bit} + highs));
  return plan;
}

template <class T>
__device__ void write_exceptions(const Exceptions<T>& exceptions, const ValuePlan& plan, std::uint32_t begin_bit,
                                 std::uint32_t* out) {
  const std::uint32_t number_bits = exp_golomb_bits(plan.exceptions);
  if (threadIdx.x == 0) {
    BitSink number(out, begin_bit);
    number.put_unary(number_bits / 2);
    number.put_long((plan.exceptions + 1U) ^ 1U << number_bits / 2, number_bits / 2);
    number.flush();
  }
  const Share share = share_of(plan.exceptions);
  BitSink remainders(out, std::uint64_t{begin_bit} + number_bits + share.begin * plan.ke);
  BitSink quotients(out, plan.unary_bit);
  BitSink widths(out, plan.width_bit);
  BitSink highs(out, plan.high_bit);
  for (std::uint32_t j = share.begin; j < share.end; ++j) {
    const std::uint32_t gap = exceptions.gap(j);
    const std::uint32_t bits = exceptions.high_bits(j);
    remainders.put(gap & ((1U << plan.ke) - 1), plan.ke);
    quotients.put_unary(gap >> plan.ke);
    widths.put_unary(bits);
    highs.put_long(exceptions.high(j) ^ std::uint64_t{1} << bits, bits);
  }
  remainders.flush();
  quotients.flush();
  widths.flush();
  highs.flush();
}

/// Writes the `ulp` words to `out`, which must be zero. Callers provide the barriers.
template <class T>
__device__ void write_ulp(const T* words, std::uint32_t count, const std::uint16_t* index, const ValuePlan& plan,
                          std::uint32_t* out) {
  if (plan.lengths) {
    write_lengths(words, count, plan, out);
    return;
  }
  const Share share = share_of(count);
  BitSink signs(out, share.begin);
  BitSink lows(out, std::uint64_t{count} + std::uint64_t{share.begin} * plan.kv);
  const std::uint64_t low_mask = (std::uint64_t{1} << plan.kv) - 1;
  for (std::uint32_t i = share.begin; i < share.end; ++i) {
    signs.put(static_cast<std::uint32_t>(words[i] >> (kWidthOf<T> - 1)), 1);
    lows.put_long(ulp_magnitude(words[i]) & low_mask, plan.kv);
  }
  signs.flush();
  lows.flush();
  write_exceptions(Exceptions<T>{words, index, plan.kv}, plan, count * (1 + plan.kv), out);
}

/// Writes the coded words uncompressed to `out`, which must be zero.
template <class T>
__device__ void write_words(const T* words, std::uint32_t count, std::uint32_t* out) {
  const Share share = share_of(count);
  BitSink sink(out, std::uint64_t{share.begin} * kWidthOf<T>);
  for (std::uint32_t i = share.begin; i < share.end; ++i) sink.put_long(words[i], kWidthOf<T>);
  sink.flush();
}

}  // namespace sparsecast::cuda
