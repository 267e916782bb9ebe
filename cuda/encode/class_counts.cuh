// SPDX-License-Identifier: Apache-2.0
#pragma once

// Counts, with the threads of a CTA, how many elements of each class (docs/wire-format.md §4.3) come before a given
// element. Each thread counts 64 consecutive elements. The classes of a tile are stored as four bit planes, so that a
// few operations find the elements of one class among 32. Also computes the classes of eight old words, two at a time
// in the halves of a word.

#include "codec/context_model.hpp"
#include "cuda/common/cta_primitives.cuh"
#include "cuda/detect/change_mask.cuh"

namespace sparsecast::cuda {

/// Number of threads in a segment. One thread adds up the counts of a segment for one class.
inline constexpr std::uint32_t kSegment = 16;
static_assert(kThreads / kSegment == kSegment && kSegment == kMostClasses, "a thread for each class and segment");

/// For each class: the number of its elements that each thread has counted (at most 255), and sums of these numbers.
struct ClassCounts {
  alignas(16) std::uint8_t of[kMostClasses][kThreads];
  /// For each class and segment: the sum of `of` over all threads of lower segments.
  std::uint16_t segments[kMostClasses][kThreads / kSegment];
  std::uint32_t totals[kMostClasses];
};

/// Adds the four bytes in `bytes` to the two 16-bit sums in `sum`. fold() adds the two sums.
__device__ inline std::uint32_t add_bytes(std::uint32_t sum, std::uint32_t bytes) {
  return sum + (bytes & 0x00FF00FFU) + (bytes >> 8 & 0x00FF00FFU);
}
/// Returns the sum of the two halves of a word.
__device__ inline std::uint32_t fold(std::uint32_t halves) { return (halves & 0xFFFF) + (halves >> 16); }

/// Sets counts.segments and counts.totals from counts.of, to which each thread must have written its counts. Begins and
/// ends with a barrier.
__device__ inline void sum_segments(ClassCounts& counts) {
  __syncthreads();
  const std::uint32_t c = threadIdx.x / kSegment;
  const std::uint32_t segment = threadIdx.x % kSegment;
  const uint4 bytes = reinterpret_cast<const uint4*>(counts.of[c])[segment];
  const std::uint32_t own = fold(add_bytes(add_bytes(add_bytes(add_bytes(0, bytes.x), bytes.y), bytes.z), bytes.w));
  std::uint32_t sum = own;
  SPARSECAST_UNROLL
  for (unsigned distance = 1; distance < kSegment; distance *= 2) {
    const std::uint32_t lower = __shfl_up_sync(kAllLanes, sum, distance);
    if (segment >= distance) sum += lower;
  }
  counts.segments[c][segment] = static_cast<std::uint16_t>(sum - own);
  if (segment + 1 == kSegment) counts.totals[c] = sum;
  __syncthreads();
}

/// Returns the number of elements of class `c` that all threads with numbers below `thread` have counted.
__device__ inline std::uint32_t counted_before(const ClassCounts& counts, std::uint32_t c, std::uint32_t thread) {
  const uint4 bytes = reinterpret_cast<const uint4*>(counts.of[c])[thread / kSegment];
  const std::uint32_t lower = thread % kSegment;  // Number of bytes to add.
  const std::uint32_t words[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
  std::uint32_t sum = 0;
  SPARSECAST_UNROLL
  for (std::uint32_t w = 0; w < 4; ++w) {
    const std::uint32_t part = lower < 4 * w ? 0 : lower - 4 * w;
    sum = add_bytes(sum, part >= 4 ? words[w] : words[w] & ((1U << 8 * part) - 1));
  }
  return counts.segments[c][thread / kSegment] + fold(sum);
}

/// The classes of a tile's elements: bit i of bits[b] is bit b of the class of element i.
struct ClassPlanes {
  ChangeMask bits[4];
};

/// Returns a mask of the 32 elements in word number `w` of the planes; a bit is set if the element has class `c`.
__device__ inline std::uint32_t of_class(const ClassPlanes& planes, std::uint32_t w, std::uint32_t c) {
  std::uint32_t other = 0;
  SPARSECAST_UNROLL
  for (std::uint32_t b = 0; b < 4; ++b) other |= planes.bits[b].words[w] ^ (0 - (c >> b & 1));
  return ~other;
}

/// Returns a mask of the 32 elements whose classes are in `planes`, one word of each plane; a bit is set if the element
/// has class `c`. The compiler must know `c`.
__device__ inline std::uint32_t of_class(const std::uint32_t (&planes)[4], std::uint32_t c) {
  std::uint32_t bits = ~0U;
  SPARSECAST_UNROLL
  for (std::uint32_t b = 0; b < 4; ++b) bits &= (c >> b & 1) != 0 ? planes[b] : ~planes[b];
  return bits;
}

/// Stores in counts.of, for each of the first `classes` classes, the number of this thread's 64 elements that have the
/// class. Does not count elements whose bit in `leave` is set. The callers provide the barriers.
__device__ inline void count_own_classes(const ClassPlanes& planes, const ChangeMask& leave, std::uint32_t classes,
                                         ClassCounts& counts) {
  std::uint32_t words[2][4];
  std::uint32_t counted[2];
  SPARSECAST_UNROLL
  for (std::uint32_t j = 0; j < 2; ++j) {
    counted[j] = ~leave.words[2 * threadIdx.x + j];
    SPARSECAST_UNROLL
    for (std::uint32_t b = 0; b < 4; ++b) words[j][b] = planes.bits[b].words[2 * threadIdx.x + j];
  }
  SPARSECAST_UNROLL
  for (std::uint32_t c = 0; c < kMostClasses; ++c) {
    if (c == classes) break;
    counts.of[c][threadIdx.x] = static_cast<std::uint8_t>(__popc(of_class(words[0], c) & counted[0]) +
                                                          __popc(of_class(words[1], c) & counted[1]));
  }
}

/// Returns the number of elements of class `c` before element number `at` of the tile. Does not count elements whose
/// bit in `leave` is set.
__device__ inline std::uint32_t count_before(const ClassPlanes& planes, const ChangeMask& leave,
                                             const ClassCounts& counts, std::uint32_t c, std::uint32_t at) {
  const std::uint32_t w = at / 32;
  const std::uint32_t below = (1U << at % 32) - 1;
  std::uint32_t count = counted_before(counts, c, at / 64);
  if (w % 2 != 0) count += static_cast<std::uint32_t>(__popc(of_class(planes, w - 1, c) & ~leave.words[w - 1]));
  return count + static_cast<std::uint32_t>(__popc(of_class(planes, w, c) & ~leave.words[w] & below));
}

/// The bits of eight consecutive elements of a tile, as 32-bit words in the order in memory.
template <class T>
struct EightWords {
  std::uint32_t words[2 * sizeof(T)];
};

/// Returns elements 8 * at to 8 * at + 7, where element 0 is at `base`, which must be aligned to 16 bytes.
template <class T>
__device__ EightWords<T> load_eight(const std::byte* base, std::uint32_t at) {
  EightWords<T> eight;
  if constexpr (sizeof(T) == 1) {
    const uint2 both = in_global(reinterpret_cast<const uint2*>(base))[at];
    eight.words[0] = both.x;
    eight.words[1] = both.y;
  } else {
    SPARSECAST_UNROLL
    for (std::uint32_t v = 0; v < sizeof(T) / 2; ++v) {
      const uint4 four = in_global(reinterpret_cast<const uint4*>(base))[at * (sizeof(T) / 2) + v];
      eight.words[4 * v] = four.x;
      eight.words[4 * v + 1] = four.y;
      eight.words[4 * v + 2] = four.z;
      eight.words[4 * v + 3] = four.w;
    }
  }
  return eight;
}

/// Keys of eight consecutive elements. Each word holds two keys; the key of the element with the lower number is in the
/// low half.
struct EightKeys {
  std::uint32_t pairs[4];
};

template <class T>
__device__ EightKeys keys_of(const EightWords<T>& eight, const ExponentField& field) {
  EightKeys keys;
  if constexpr (sizeof(T) == 1) {
    SPARSECAST_UNROLL
    for (std::uint32_t w = 0; w < 2; ++w) {
      const std::uint32_t four = eight.words[w] >> field.shift & field.mask * 0x01010101U;
      keys.pairs[2 * w] = __byte_perm(four, 0, 0x4140);
      keys.pairs[2 * w + 1] = __byte_perm(four, 0, 0x4342);
    }
  } else if constexpr (sizeof(T) == 8) {
    const ExponentField high{field.shift - 32, field.mask, field.bias};
    SPARSECAST_UNROLL
    for (std::uint32_t p = 0; p < 4; ++p) {
      keys.pairs[p] = key_of(eight.words[4 * p + 1], high) | key_of(eight.words[4 * p + 3], high) << 16;
    }
  } else {
    SPARSECAST_UNROLL
    for (std::uint32_t p = 0; p < 4; ++p) {
      // The exponent of an f32 is in its upper half, so the lower half is not needed.
      const std::uint32_t two =
          sizeof(T) == 2 ? eight.words[p] : __byte_perm(eight.words[2 * p], eight.words[2 * p + 1], 0x7632);
      keys.pairs[p] = two >> field.shift % 16 & field.mask * 0x00010001U;
    }
  }
  return keys;
}

/// Returns max(0, min(a + b, most)), computed separately for the lower and the upper halves of the three words, as
/// signed 16-bit numbers.
__device__ inline std::uint32_t add_halves_within(std::uint32_t a, std::uint32_t b, std::uint32_t most) {
#if defined(__CUDA_ARCH__)
  return __viaddmin_s16x2_relu(a, b, most);
#else
  std::uint32_t result = 0;
  for (std::uint32_t half = 0; half < 32; half += 16) {
    const auto part = [half](std::uint32_t x) { return static_cast<std::int16_t>(x >> half); };
    const int sum = part(a) + part(b);
    const int least = sum < part(most) ? sum : part(most);
    result |= static_cast<std::uint32_t>(least < 0 ? 0 : least) << half;
  }
  return result;
#endif
}

/// Computes the classes of two keys at a time. Each field holds a parameter of class_of(); `offset` and `most` have it
/// in both halves.
struct ClassPairs {
  std::uint32_t offset;
  std::uint32_t most;
  std::uint32_t shift;

  __device__ explicit ClassPairs(const ContextClasses& classes)
      // of() complements the key: hi - key is (255 - key) - (255 - hi).
      : offset(((classes.hi + classes.width - 1 - 255) & 0xFFFF) * 0x00010001U),
        most((classes.count * classes.width - 1) * 0x00010001U),
        shift(classes.width - 1) {}

  /// Returns the classes of two keys. The keys are in the halves of `keys`, and their classes in the halves of the
  /// result.
  __device__ std::uint32_t of(std::uint32_t keys) const {
    return add_halves_within(keys ^ 0x00FF00FFU, offset, most) >> shift & 0x000F000FU;
  }
};

/// Stores in `planes` the classes of elements 8 * at to 8 * at + 7 of the tile, whose keys are `keys`.
__device__ inline void store_classes(ClassPlanes& planes, std::uint32_t at, const EightKeys& keys,
                                     const ClassPairs& classes) {
  // `bits` holds eight classes of four bits, those of elements with odd numbers in the upper half. Two exchanges of
  // bits bring the bits of each plane into one byte, in order of the elements.
  std::uint32_t bits = classes.of(keys.pairs[0]) | classes.of(keys.pairs[2]) << 4 | classes.of(keys.pairs[1]) << 8 |
                       classes.of(keys.pairs[3]) << 12;
  std::uint32_t moved = (bits ^ bits >> 15) & 0x0000AAAAU;
  bits ^= moved ^ moved << 15;
  moved = (bits ^ bits >> 6) & 0x00CC00CCU;
  bits ^= moved ^ moved << 6;
  planes.bits[0].bytes[at] = static_cast<std::uint8_t>(bits);
  planes.bits[2].bytes[at] = static_cast<std::uint8_t>(bits >> 8);
  planes.bits[1].bytes[at] = static_cast<std::uint8_t>(bits >> 16);
  planes.bits[3].bytes[at] = static_cast<std::uint8_t>(bits >> 24);
}

}  // namespace sparsecast::cuda
