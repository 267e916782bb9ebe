// SPDX-License-Identifier: Apache-2.0
#pragma once

// Codes the parts of a `context` block (docs/wire-format.md §4.3, §5.6) with all threads of a CTA. Changes are in the
// order of ContextEntries, sorted by class.

#include "cuda/encode/context_changes.cuh"

namespace sparsecast::cuda {

/// Number of different bit widths of a magnitude: 0 to the width of the element.
template <class T>
inline constexpr std::uint32_t kMagnitudeWidths = kWidthOf<T> + 1;
/// Number of distances of a key below `rice_keys` that are counted separately. Larger distances count as the largest of
/// them, because their values have all bits but one stored uncoded, whatever the scale is.
template <class T>
inline constexpr std::uint32_t kRiceDistances = kWidthOf<T> + 8;
/// Largest number of scales among which a writer chooses by docs/wire-format.md §5.6.
template <class T>
inline constexpr std::uint32_t kScales = kWidthOf<T> + 8;
/// Number of bits of the position part before the numbers of changes of the classes.
inline constexpr std::uint32_t kClassesBits = 8 + 4 + 1 + 32;
/// Number of bits of the value part before the signs.
inline constexpr std::uint32_t kContextValuesBits = 9 + 9;

/// Shared memory in which the CTA plans the coding of a block.
template <class T>
struct ContextPlanShared {
  // Indexed by class.
  std::uint32_t k[kMostClasses];     ///< Rice parameter whose cost is computed next; kDone if none is left.
  std::uint32_t kp[kMostClasses];    ///< Rice parameter with the lowest cost so far.
  std::uint32_t best[kMostClasses];  ///< Number of bits that the class's gaps take with the Rice parameter kp.
  /// Number of bits of the class's quotients with each of the parameters k, k - 1 and k - 2.
  std::uint32_t sums[kMostClasses][3];
  /// Bit number, in the position part, at which the remainders of the class begin.
  std::uint32_t remainder_bit[kMostClasses];
  std::uint32_t quotient_bit;  ///< Bit number, in the position part, at which the quotients of all classes begin.
  // For the values.
  std::uint32_t widths[kRiceDistances<T>][kMagnitudeWidths<T>];
  std::uint32_t costs[kScales<T>];
  unsigned long long least;
};
inline constexpr std::uint32_t kDone = ~std::uint32_t{0};

/// The changes of a block, sorted by class.
struct ClassRuns {
  /// Number of the first change of each class: a list of kMostClasses + 1 numbers in shared memory.
  const std::uint32_t* begin;
  ContextClasses classes;
  const std::uint8_t* keys;
  /// For each change, the number of unchanged elements of its class before it in the block (PositionCodec::kContext
  /// counts changed elements, too).
  const std::uint32_t* ranks;

  __device__ std::uint32_t size(std::uint32_t c) const { return begin[c + 1] - begin[c]; }
  __device__ std::uint32_t class_at(std::uint32_t i) const { return class_of(keys[i], classes); }
  /// Returns the number of unchanged elements of class `c` between change `i`, which has this class, and the previous
  /// change of the class.
  __device__ std::uint32_t gap(std::uint32_t i, std::uint32_t c) const {
    return i == begin[c] ? ranks[i] : ranks[i] - ranks[i - 1];
  }
};

/// Adds the number of bits of this thread's quotients to shared.sums, for each class whose k is not kDone.
template <class T>
__device__ void sum_class_quotients(const ClassRuns& runs, std::uint32_t count, ContextPlanShared<T>& shared) {
  const Share share = CtaThreads::share(count);
  std::uint32_t i = share.begin;
  while (i < share.end) {
    const std::uint32_t c = runs.class_at(i);
    const std::uint32_t end = runs.begin[c + 1] < share.end ? runs.begin[c + 1] : share.end;
    const std::uint32_t k = shared.k[c];
    if (k != kDone) {
      ThreeSums bits;
      for (std::uint32_t j = i; j < end; ++j) {
        const std::uint32_t gap = runs.gap(j, c);
        SPARSECAST_UNROLL
        for (std::uint32_t down = 0; down < 3; ++down) {
          const std::uint32_t quotient = gap >> (k < down ? 0 : k - down);
          bits.of[down] += quotient_zeros(quotient) + quotient_tail_bits(quotient);
        }
      }
      SPARSECAST_UNROLL
      for (std::uint32_t down = 0; down < 3; ++down) atomicAdd(&shared.sums[c][down], bits.of[down]);
    }
    i = end;
  }
}

/// Sets shared.kp of each class to its Rice parameter, which is chosen by docs/wire-format.md §5.2. Ends with a
/// barrier.
template <class T>
__device__ void choose_class_parameters(const ClassRuns& runs, std::uint32_t count, ContextPlanShared<T>& shared) {
  const std::uint32_t c = threadIdx.x;
  const bool leads = c < kMostClasses;
  const std::uint32_t size = leads ? runs.size(c) : 0;
  if (leads) {
    // The rank of the last change is the number of unchanged elements before it: the sum of the gaps.
    shared.k[c] = size == 0 ? kDone : rice_parameter(runs.ranks[runs.begin[c + 1] - 1], size);
    shared.kp[c] = 0;
    shared.best[c] = size == 0 ? 0 : ~std::uint32_t{0};
    for (std::uint32_t& sum : shared.sums[c]) sum = 0;
  }
  bool lower = size != 0;
  __syncthreads();
  do {
    sum_class_quotients(runs, count, shared);
    __syncthreads();
    if (lower) {
      const std::uint32_t k = shared.k[c];
      SPARSECAST_UNROLL
      for (std::uint32_t down = 0; down < 3; ++down) {
        if (!lower || k < down) break;
        const std::uint32_t bits = size * (k - down + 1) + shared.sums[c][down];
        shared.sums[c][down] = 0;
        lower = bits < shared.best[c];
        if (!lower) break;
        shared.best[c] = bits;
        shared.kp[c] = k - down;
      }
      lower = lower && k >= 3;
      shared.k[c] = lower ? k - 3 : kDone;
    }
  } while (__syncthreads_or(lower ? 1 : 0) != 0);
}

/// The size of the position part of a `context` block, and the bit numbers at which this thread writes its quotients
/// and tails.
struct ContextPositionPlan {
  std::uint32_t quotient_bit = 0;
  std::uint32_t tail_bit = 0;
  std::uint32_t bytes = 0;  ///< Size of the position part in bytes, padded to a multiple of 4.
};

/// Sets shared.kp and the bit numbers in `shared`. Returns the plan of the position part for this thread. Ends with a
/// barrier.
template <class T>
__device__ ContextPositionPlan plan_context_positions(const ClassRuns& runs, std::uint32_t count,
                                                      const CtaThreads& threads, ContextPlanShared<T>& shared) {
  choose_class_parameters(runs, count, shared);
  if (threadIdx.x == 0) {
    std::uint32_t bit = kClassesBits + (runs.classes.count - 1) * bit_width32(count);
    for (std::uint32_t c = 0; c < kMostClasses; ++c) bit += runs.size(c) != 0 ? 5 : 0;
    for (std::uint32_t c = 0; c < kMostClasses; ++c) {
      shared.remainder_bit[c] = bit;
      bit += runs.size(c) * shared.kp[c];
    }
    shared.quotient_bit = bit;
  }
  const Share share = CtaThreads::share(count);
  TwoSums own;  // Bits of the quotients with their ones, and bits of the tails.
  for (std::uint32_t i = share.begin; i < share.end; ++i) {
    const std::uint32_t c = runs.class_at(i);
    const std::uint32_t quotient = runs.gap(i, c) >> shared.kp[c];
    own.first += quotient_zeros(quotient) + 1;
    own.second += quotient_tail_bits(quotient);
  }
  const TwoScans scanned = threads.scan(own);
  ContextPositionPlan plan;
  plan.quotient_bit = shared.quotient_bit + scanned.before.first;
  plan.tail_bit = shared.quotient_bit + scanned.total.first + scanned.before.second;
  plan.bytes =
      static_cast<std::uint32_t>(padded_bytes(shared.quotient_bit + scanned.total.first + scanned.total.second));
  return plan;
}

/// Writes this thread's share of the position part to `out`, which must be zero before. Thread 0 also writes the head
/// of the part, with the check sum `check`. The callers provide the barriers.
template <class T>
__device__ void write_context_positions(const ClassRuns& runs, std::uint32_t count, std::uint32_t check,
                                        const ContextPositionPlan& plan, const ContextPlanShared<T>& shared,
                                        std::uint32_t* out) {
  if (threadIdx.x == 0) {
    BitSink head(out, 0);
    head.put(runs.classes.hi, 8);
    head.put(runs.classes.count - 1, 4);
    head.put(runs.classes.width - 1, 1);
    head.put(check, 32);
    const std::uint32_t bits = bit_width32(count);
    for (std::uint32_t c = 0; c + 1 < runs.classes.count; ++c) head.put(runs.size(c), bits);
    for (std::uint32_t c = 0; c < kMostClasses; ++c) {
      if (runs.size(c) != 0) head.put(shared.kp[c], 5);
    }
    head.flush();
  }
  const Share share = CtaThreads::share(count);
  if (share.begin == share.end) return;
  const std::uint32_t first = runs.class_at(share.begin);
  BitSink remainders(out, shared.remainder_bit[first] + (share.begin - runs.begin[first]) * shared.kp[first]);
  std::uint32_t quotient_bit = plan.quotient_bit;
  std::uint32_t tail_bit = plan.tail_bit;
  for (std::uint32_t i = share.begin; i < share.end; ++i) {
    const std::uint32_t c = runs.class_at(i);
    const std::uint32_t gap = runs.gap(i, c);
    const std::uint32_t kp = shared.kp[c];
    remainders.put(gap & ((1U << kp) - 1), kp);
    const std::uint32_t quotient = gap >> kp;
    const std::uint32_t tail_bits = quotient_tail_bits(quotient);
    quotient_bit += quotient_zeros(quotient);
    set_bit(out, quotient_bit++);
    if (tail_bits != 0) put_bits(out, tail_bit, quotient - quotient_of_zeros(kEscape + tail_bits), tail_bits);
    tail_bit += tail_bits;
  }
  remainders.flush();
}

/// Returns to all threads the scale that lets the values whose keys are below `rice_keys` take the fewest bits.
/// `rice_keys` must not be 0. The callers provide the barrier after the call.
template <class T>
__device__ std::uint32_t choose_scale(const ContextEntries<T>& entries, std::uint32_t count, std::uint32_t rice_keys,
                                      ContextPlanShared<T>& shared) {
  constexpr std::uint32_t kDistances = kRiceDistances<T>;
  constexpr std::uint32_t kWidths = kMagnitudeWidths<T>;
  for (std::uint32_t i = threadIdx.x; i < kDistances * kWidths; i += kThreads) {
    shared.widths[i / kWidths][i % kWidths] = 0;
  }
  for (std::uint32_t s = threadIdx.x; s < kScales<T>; s += kThreads) shared.costs[s] = 0;
  if (threadIdx.x == 0) shared.least = ~0ULL;
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) {
    const std::uint32_t key = entries.keys[i];
    if (key >= rice_keys) continue;
    const std::uint32_t distance = rice_keys - 1 - key;
    atomicAdd(
        &shared.widths[distance < kDistances ? distance : kDistances - 1][bit_width64(ulp_magnitude(entries.words[i]))],
        1U);
  }
  __syncthreads();
  const std::uint32_t first = rice_keys > 8 ? rice_keys - 8 : 0;
  const std::uint32_t scales = rice_keys + kWidthOf<T> - first;
  for (std::uint32_t pair = threadIdx.x; pair < scales * kDistances; pair += kThreads) {
    const std::uint32_t s = pair / kDistances;
    const std::uint32_t distance = pair % kDistances;
    const int above = static_cast<int>(first + s + 1 + distance) - static_cast<int>(rice_keys);
    const std::uint32_t most = kWidthOf<T> - 1;
    const std::uint32_t low = above < 0 ? 0 : static_cast<std::uint32_t>(above) < most ? above : most;
    std::uint32_t cost = 0;
    for (std::uint32_t width = 0; width < kWidths; ++width) {
      const std::uint32_t changes = shared.widths[distance][width];
      if (changes == 0) continue;
      cost += changes * (2 * low + quotient_cost(width > low ? width - low : 0));
    }
    if (cost != 0) atomicAdd(&shared.costs[s], cost);
  }
  __syncthreads();
  for (std::uint32_t s = threadIdx.x; s < scales; s += kThreads) {
    atomicMin(&shared.least, static_cast<unsigned long long>(shared.costs[s]) << 16 | (first + s));
  }
  __syncthreads();
  return static_cast<std::uint32_t>(shared.least & 0xFFFF);  // The smallest of equal costs wins.
}

/// A Rice-coded value: the number of its low bits, which are stored uncoded, and the quotient above them.
struct RiceValue {
  std::uint32_t low_bits;
  std::uint64_t quotient;

  __device__ std::uint32_t tail_bits() const { return value_tail_bits(quotient); }
  __device__ std::uint32_t zeros() const {
    return quotient < kEscape ? static_cast<std::uint32_t>(quotient) : kEscape + tail_bits();
  }
};
template <class T>
__device__ RiceValue rice_value(const ContextEntries<T>& entries, const ContextValues& values, std::uint32_t i) {
  const std::uint32_t low = values.low_bits(entries.keys[i], kWidthOf<T>);
  return {low, static_cast<std::uint64_t>(ulp_magnitude(entries.words[i])) >> low};
}

/// The coding of the value part of a `context` block, and the bit numbers at which this thread writes.
struct ContextValuePlan {
  ContextValues values;
  ValuePlan exceptions;
  /// Bit number at which the low bits of this thread's Rice-coded values begin.
  std::uint32_t low_bit = 0;
  /// Bit number at which the exceptions of all threads begin.
  std::uint32_t exceptions_bit = 0;
  std::uint32_t quotient_bit = 0;
  std::uint32_t tail_bit = 0;
  std::uint32_t bytes = 0;  ///< Size of the value part in bytes, padded to a multiple of 4.
};

/// Returns the plan of the value part: its parameters, and the bit numbers at which this thread writes. Also writes the
/// indices of the exceptions to entries.exceptions.
template <class T>
__device__ ContextValuePlan plan_context_values(const ContextEntries<T>& entries, std::uint32_t count,
                                                std::uint32_t rice_keys, const CtaThreads& threads,
                                                ContextPlanShared<T>& shared) {
  ContextValuePlan plan;
  plan.values.rice_keys = rice_keys;
  if (rice_keys != 0) plan.values.scale = choose_scale(entries, count, rice_keys, shared);
  const Share share = CtaThreads::share(count);
  TwoSums own;  // Low bits, and bits of the quotients with their one bits.
  std::uint32_t tails = 0;
  for (std::uint32_t i = share.begin; rice_keys != 0 && i < share.end; ++i) {
    if (entries.keys[i] >= rice_keys) continue;
    const RiceValue value = rice_value(entries, plan.values, i);
    own.first += value.low_bits;
    own.second += value.zeros() + 1;
    tails += value.tail_bits();
  }
  const TwoScans scanned = threads.scan(own);
  const auto scanned_tails = threads.scan(tails);
  const auto excepted = [&](std::uint32_t i) {
    return entries.keys[i] >= rice_keys && ulp_magnitude(entries.words[i]) != 0;
  };
  plan.exceptions.exceptions = list_exceptions(count, excepted, entries.exceptions, threads);
  plan.low_bit = kContextValuesBits + count + scanned.before.first;
  plan.exceptions_bit = kContextValuesBits + count + scanned.total.first;
  const std::uint32_t bit = place_exceptions(Exceptions<T>{entries.words, entries.exceptions, 0}, plan.exceptions_bit,
                                             threads, plan.exceptions);
  plan.quotient_bit = bit + scanned.before.second;
  plan.tail_bit = bit + scanned.total.second + scanned_tails.before;
  plan.bytes = static_cast<std::uint32_t>(padded_bytes(bit + scanned.total.second + scanned_tails.total));
  return plan;
}

/// Writes this thread's share of the value part to `out`, which must be zero before. Thread 0 also writes the head of
/// the part. The callers provide the barriers.
template <class T>
__device__ void write_context_values(const ContextEntries<T>& entries, std::uint32_t count,
                                     const ContextValuePlan& plan, std::uint32_t* out) {
  if (threadIdx.x == 0) {
    put_bits(out, 0, plan.values.rice_keys | plan.values.scale << 9, kContextValuesBits);
  }
  write_signs<T, CtaThreads>(entries.words, count, out, kContextValuesBits);
  write_exceptions<T, CtaThreads>(Exceptions<T>{entries.words, entries.exceptions, 0}, plan.exceptions,
                                  plan.exceptions_bit, out);
  if (plan.values.rice_keys == 0) return;
  const Share share = CtaThreads::share(count);
  BitSink lows(out, plan.low_bit);
  BitSink tails(out, plan.tail_bit);
  std::uint32_t quotient_bit = plan.quotient_bit;
  for (std::uint32_t i = share.begin; i < share.end; ++i) {
    if (entries.keys[i] >= plan.values.rice_keys) continue;
    const RiceValue value = rice_value(entries, plan.values, i);
    const std::uint64_t magnitude = ulp_magnitude(entries.words[i]);
    lows.put_long(magnitude ^ value.quotient << value.low_bits, value.low_bits);
    quotient_bit += value.zeros();
    set_bit(out, quotient_bit++);
    const std::uint32_t bits = value.tail_bits();
    if (bits != 0) tails.put_long((value.quotient - (kEscape - 1)) ^ std::uint64_t{1} << bits, bits);
  }
  lows.flush();
  tails.flush();
}

}  // namespace sparsecast::cuda
