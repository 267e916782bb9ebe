// SPDX-License-Identifier: Apache-2.0
#pragma once

// Codes the value part of a block (docs/wire-format.md §4.2, §5.3) with all threads of a CTA or of a warp.

#include "codec/codec_common.hpp"
#include "cuda/common/coding_threads.cuh"
#include "cuda/encode/bit_sink.cuh"

namespace sparsecast::cuda {

template <class T>
inline constexpr std::uint32_t kWidthOf = 8 * sizeof(T);

struct ValuesShared {
  std::uint32_t by_width[65];
  unsigned long long best;
};

/// The coding of the value part of a block with `ulp` words, and the bit numbers at which this thread writes.
struct ValuePlan {
  /// Number of low bits of each magnitude that are stored as they are.
  std::uint32_t kv = 0;
  /// Rice parameter of the exceptions' gaps.
  std::uint32_t ke = 0;
  /// True if each magnitude is stored with its own length. In that case kv and ke are 0.
  bool lengths = false;
  /// Number of exceptions in the block.
  std::uint32_t exceptions = 0;
  std::uint32_t bytes = 0;      ///< Size of the value part in bytes, padded to a multiple of 4.
  std::uint32_t unary_bit = 0;  ///< Bit number at which the quotients of the gaps of this thread's exceptions begin.
  std::uint32_t width_bit = 0;  ///< Bit number at which the widths of the high parts of this thread's exceptions begin.
  /// Bit number at which the high parts of this thread's exceptions begin, or, with `lengths`, at which the bits of its
  /// magnitudes below their highest one bits begin.
  std::uint32_t high_bit = 0;
};

/// Finds the entries i among `count` entries for which is_exception(i) is true, and writes their indices to
/// `exceptions`, ascending. Returns the number of exceptions to all threads.
template <class Threads, class IsException>
__device__ std::uint32_t list_exceptions(std::uint32_t count, const IsException& is_exception,
                                         std::uint16_t* exceptions, const Threads& threads) {
  const Share share = Threads::share(count);
  std::uint64_t marked = 0;  // A bit for each entry of the share.
  std::uint64_t bit = 1;
  SPARSECAST_UNROLL_FOR(Threads)
  for (std::uint32_t i = share.begin; i < share.end; ++i) {
    if (is_exception(i)) marked |= bit;
    bit <<= 1;
  }
  const auto scanned = threads.scan(static_cast<std::uint32_t>(__popcll(marked)));
  std::uint16_t* out = exceptions + scanned.before;
  for (; marked != 0; marked &= marked - 1) {
    *out++ = static_cast<std::uint16_t>(share.begin +
                                        static_cast<std::uint32_t>(__ffsll(static_cast<long long>(marked))) - 1);
  }
  Threads::sync();
  return static_cast<std::uint32_t>(scanned.total);
}

/// Finds the entries among `count` entries whose magnitudes do not fit into `low_bits` bits, and writes their indices
/// to `exceptions`, ascending. Returns the number of exceptions to all threads.
template <class T, class Threads>
__device__ std::uint32_t list_exceptions(const T* words, std::uint32_t count, std::uint32_t low_bits,
                                         std::uint16_t* exceptions, const Threads& threads) {
  const auto excepted = [words, low_bits](std::uint32_t i) {
    const T word = words[i];
    // Without low bits, all words but 1 and -1 are exceptions.
    return low_bits == 0 ? (static_cast<T>(word + 1) & static_cast<T>(~T{2})) != 0
                         : ulp_magnitude(word) >> low_bits != 0;
  };
  return list_exceptions(count, excepted, exceptions, threads);
}

/// Sets plan.kv or plan.lengths to the cheaper of the two forms (docs/wire-format.md §5.3), for a block with many
/// magnitudes other than 0. With `quick`, sets plan.kv by the rule for quick blocks (§5.7). Each thread computes the
/// costs of some values of kv.
template <class T, class Threads>
__device__ void plan_magnitudes(const T* words, std::uint32_t count, bool quick, ValuesShared& shared,
                                ValuePlan& plan) {
  for (std::uint32_t b = Threads::rank(); b < 65; b += Threads::kCount) shared.by_width[b] = 0;
  if (Threads::rank() == 0) shared.best = ~0ULL;
  Threads::sync();
  for (std::uint32_t i = Threads::rank(); i < count; i += Threads::kCount) {
    atomicAdd(&shared.by_width[bit_width64(ulp_magnitude(words[i]))], 1U);
  }
  Threads::sync();
  for (std::uint32_t kv = Threads::rank(); kv < kWidthOf<T>; kv += Threads::kCount) {
    std::uint32_t exceptions;
    std::uint64_t cost = ulp_cost(shared.by_width, kWidthOf<T>, count, kv, exceptions);
    if (quick) cost = exceptions > quick_exceptions(count) ? 1 : 0;
    atomicMin(&shared.best, cost << 8 | kv);  // The smallest kv of equal costs wins.
  }
  Threads::sync();
  // No barrier here: by_width and best are not written again before the barriers of the code that follows.
  plan.lengths = !quick && lengths_cost(shared.by_width, kWidthOf<T>, count) < shared.best >> 8;
  plan.kv = plan.lengths ? 0 : static_cast<std::uint32_t>(shared.best & 0xFF);
}

/// Sets plan.high_bit and plan.bytes for the form with lengths: the bit number at which this thread writes the bits of
/// its magnitudes below their highest one bits, and the size of the value part.
template <class T, class Threads>
__device__ void place_lengths(const T* words, std::uint32_t count, const Threads& threads, ValuePlan& plan) {
  const Share share = Threads::share(count);
  std::uint32_t own = 0;
  SPARSECAST_UNROLL_FOR(Threads)
  for (std::uint32_t i = share.begin; i < share.end; ++i) own += bits_below_highest(ulp_magnitude(words[i]));
  const auto scanned = threads.scan(own);
  const std::uint32_t begin = count * (1 + length_field_bits(kWidthOf<T>));
  plan.high_bit = begin + static_cast<std::uint32_t>(scanned.before);
  plan.bytes = static_cast<std::uint32_t>(padded_bytes(begin + scanned.total));
}

/// Writes the signs of this thread's share of `count` words to the bit string `out`. The signs of all threads begin at
/// bit number `first_bit`.
template <class T, class Threads>
__device__ void write_signs(const T* words, std::uint32_t count, std::uint32_t* out, std::uint32_t first_bit = 0) {
  const Share share = Threads::share(count);
  for (std::uint32_t begin = share.begin; begin < share.end; begin += 32) {
    const std::uint32_t each = share.end - begin < 32 ? share.end - begin : 32;
    std::uint32_t signs = 0;
    for (std::uint32_t i = 0; i < each; ++i)
      signs |= static_cast<std::uint32_t>(words[begin + i] >> (kWidthOf<T> - 1)) << i;
    put_bits(out, first_bit + begin, signs, each);
  }
}

template <class T, class Threads>
__device__ void write_lengths(const T* words, std::uint32_t count, const ValuePlan& plan, std::uint32_t* out) {
  constexpr std::uint32_t kField = length_field_bits(kWidthOf<T>);
  write_signs<T, Threads>(words, count, out);
  const Share share = Threads::share(count);
  BitSink lengths(out, count + share.begin * kField);
  BitSink lows(out, plan.high_bit);
  SPARSECAST_UNROLL_FOR(Threads)
  for (std::uint32_t i = share.begin; i < share.end; ++i) {
    const std::uint64_t magnitude = ulp_magnitude(words[i]);
    const std::uint32_t bits = bits_below_highest(magnitude);
    lengths.put(static_cast<std::uint32_t>(bit_width64(magnitude)), kField);
    if (bits != 0) lows.put_long(magnitude ^ std::uint64_t{1} << bits, bits);
  }
  lengths.flush();
  lows.flush();
}

/// The exceptions of a block. Their gaps and their high parts (the magnitudes without their kv low bits) are computed
/// from these lists.
template <class T>
struct Exceptions {
  const T* words = nullptr;
  /// Index of each exception's entry, ascending.
  const std::uint16_t* index = nullptr;
  std::uint32_t kv = 0;

  __device__ std::uint32_t gap(std::uint32_t j) const { return j == 0 ? index[0] : index[j] - index[j - 1] - 1U; }
  __device__ T high(std::uint32_t j) const { return static_cast<T>(ulp_magnitude(words[index[j]]) >> kv); }
};

/// Sets plan.ke, and the bit numbers in `plan` at which this thread writes its exceptions. The exceptions of all
/// threads, plan.exceptions in number, begin at bit number `begin_bit`. Returns the bit number after them.
template <class T, class Threads>
__device__ std::uint32_t place_exceptions(const Exceptions<T>& exceptions, std::uint32_t begin_bit,
                                          const Threads& threads, ValuePlan& plan) {
  if (plan.exceptions != 0) {
    plan.ke = rice_parameter(exceptions.index[plan.exceptions - 1] + 1U - plan.exceptions, plan.exceptions);
  }
  const Share share = Threads::share(plan.exceptions);
  TwoSums own;  // Zeros of the quotients of the gaps, and bits of the high parts.
  SPARSECAST_UNROLL_FOR(Threads)
  for (std::uint32_t j = share.begin; j < share.end; ++j) {
    own.first += exceptions.gap(j) >> plan.ke;
    own.second += bits_below_highest(exceptions.high(j));
  }
  const TwoScans scanned = threads.scan(own);
  std::uint32_t bit = begin_bit + exp_golomb_bits(plan.exceptions) + plan.exceptions * plan.ke;
  plan.unary_bit = bit + share.begin + scanned.before.first;
  bit += plan.exceptions + scanned.total.first;
  plan.width_bit = bit + share.begin + scanned.before.second;
  bit += plan.exceptions + scanned.total.second;
  plan.high_bit = bit + scanned.before.second;
  return bit + scanned.total.second;
}

/// Returns the plan of the value part for `count` `ulp` words. Writes the indices of the exceptions to `index`.
template <class T, class Threads>
__device__ ValuePlan plan_ulp(const T* words, std::uint32_t count, bool quick, std::uint16_t* index,
                              const Threads& threads, ValuesShared& shared) {
  ValuePlan plan;
  plan.exceptions = list_exceptions(words, count, 0, index, threads);
  if (quick ? plan.exceptions > quick_exceptions(count) : plan.exceptions * 4 > count) {
    plan_magnitudes<T, Threads>(words, count, quick, shared, plan);
    if (plan.lengths) {
      place_lengths(words, count, threads, plan);
      return plan;
    }
    if (plan.kv != 0) plan.exceptions = list_exceptions(words, count, plan.kv, index, threads);
  }
  const Exceptions<T> exceptions{words, index, plan.kv};
  plan.bytes =
      static_cast<std::uint32_t>(padded_bytes(place_exceptions(exceptions, count * (1 + plan.kv), threads, plan)));
  return plan;
}

/// Writes this thread's exceptions to the bit string `out`. The exceptions of all threads begin at bit number
/// `begin_bit`.
template <class T, class Threads>
__device__ void write_exceptions(const Exceptions<T>& exceptions, const ValuePlan& plan, std::uint32_t begin_bit,
                                 std::uint32_t* out) {
  const std::uint32_t number_bits = exp_golomb_bits(plan.exceptions);
  if (Threads::rank() == 0) {
    set_bit(out, begin_bit + number_bits / 2);
    if (number_bits > 1)
      put_bits(out, begin_bit + number_bits / 2 + 1, (plan.exceptions + 1U) ^ 1U << number_bits / 2, number_bits / 2);
  }
  const Share share = Threads::share(plan.exceptions);
  std::uint32_t remainder_bit = begin_bit + number_bits + share.begin * plan.ke;
  std::uint32_t unary_bit = plan.unary_bit;
  std::uint32_t width_bit = plan.width_bit;
  BitSink highs(out, plan.high_bit);
  SPARSECAST_UNROLL_FOR(Threads)
  for (std::uint32_t j = share.begin; j < share.end; ++j) {
    const std::uint32_t gap = exceptions.gap(j);
    const T high = exceptions.high(j);
    const std::uint32_t bits = bits_below_highest(high);
    if (plan.ke != 0) put_bits(out, remainder_bit, gap & ((1U << plan.ke) - 1), plan.ke);
    remainder_bit += plan.ke;
    unary_bit += gap >> plan.ke;
    set_bit(out, unary_bit++);
    width_bit += bits;
    set_bit(out, width_bit++);
    highs.put_long(static_cast<T>(high ^ T{1} << bits), bits);
  }
  highs.flush();
}

/// Writes this thread's share of the `ulp` words to `out`, which must be zero before, in the coding of `plan`. `index`
/// holds the indices of the exceptions. The callers provide the barriers before and after the call.
template <class T, class Threads>
__device__ void write_ulp(const T* words, std::uint32_t count, const std::uint16_t* index, const ValuePlan& plan,
                          std::uint32_t* out) {
  if (plan.lengths) {
    write_lengths<T, Threads>(words, count, plan, out);
    return;
  }
  write_signs<T, Threads>(words, count, out);
  if (plan.kv != 0) {
    const Share share = Threads::share(count);
    BitSink lows(out, count + share.begin * plan.kv);
    const std::uint64_t low_mask = (std::uint64_t{1} << plan.kv) - 1;
    SPARSECAST_UNROLL_FOR(Threads)
    for (std::uint32_t i = share.begin; i < share.end; ++i) lows.put_long(ulp_magnitude(words[i]) & low_mask, plan.kv);
    lows.flush();
  }
  write_exceptions<T, Threads>(Exceptions<T>{words, index, plan.kv}, plan, count * (1 + plan.kv), out);
}

/// Writes this thread's share of the coded words, uncompressed, to `out`, which must be zero before.
template <class T, class Threads>
__device__ void write_words(const T* words, std::uint32_t count, std::uint32_t* out) {
  const Share share = Threads::share(count);
  BitSink sink(out, share.begin * kWidthOf<T>);
  SPARSECAST_UNROLL_FOR(Threads)
  for (std::uint32_t i = share.begin; i < share.end; ++i) sink.put_long(words[i], kWidthOf<T>);
  sink.flush();
}

}  // namespace sparsecast::cuda
