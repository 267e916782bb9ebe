// SPDX-License-Identifier: Apache-2.0
#pragma once

// Old words of a block as the position codec `context` takes them (docs/wire-format.md §4.3): eight elements at a time,
// of which the classes are computed and counted without taking the elements apart. The exponent of a floating dtype
// lies in the upper 16 bits of its words, so that two elements make one word of two halves, whatever their dtype, and
// one instruction on both halves is half an instruction for each element.

#include "codec/context_model.hpp"
#include "cuda/common/views.cuh"

namespace sparsecast::cuda {

/// Elements that are loaded and counted together: at most 15, so that a count fits into 4 bits.
inline constexpr std::uint32_t kScanned = 8;

/// The old words of the elements of a block, in global memory.
template <class T>
struct OldWords {
  const T* data = nullptr;            ///< The first element of the block; of the tensor, where there is a view.
  const StridedView* view = nullptr;  ///< Places of the tensor's elements; null: they follow one another.
  std::uint64_t first = 0;            ///< Index of the block's first element in the tensor; 0 without a view.
  std::uint32_t span = 0;             ///< Elements of the block.
  bool vectors = false;               ///< No view, and `data` is aligned for loads of 16 bytes.

  __device__ T at(std::uint32_t position) const { return *in_global(data + place_of(view, first + position)); }
};

/// The words of kScanned elements, one after another as in contiguous memory. Absent elements are zeros.
template <class T>
struct ScannedWords {
  static constexpr std::uint32_t kWords = kScanned * sizeof(T) / 4;

  std::uint32_t words[kWords];

  /// Loads the elements from `at` on, which is aligned to 8 bytes, and to 16 for elements of 2 or more.
  __device__ void load(const T* at) {
    at = in_global(at);
    if constexpr (sizeof(T) == 1) {
      const uint2 two = *reinterpret_cast<const uint2*>(at);
      words[0] = two.x;
      words[1] = two.y;
    } else {
      SPARSECAST_UNROLL
      for (std::uint32_t v = 0; v < kWords / 4; ++v) {
        const uint4 four = reinterpret_cast<const uint4*>(at)[v];
        words[4 * v] = four.x;
        words[4 * v + 1] = four.y;
        words[4 * v + 2] = four.z;
        words[4 * v + 3] = four.w;
      }
    }
  }

  /// Loads the elements from `position` on that are in the block, wherever they are, one by one.
  __device__ void load_any(const OldWords<T>& old, std::uint32_t position) {
    SPARSECAST_UNROLL
    for (std::uint32_t w = 0; w < kWords; ++w) words[w] = 0;
    SPARSECAST_UNROLL
    for (std::uint32_t e = 0; e < kScanned; ++e) {
      if (position + e >= old.span) continue;
      const T word = old.at(position + e);
      if constexpr (sizeof(T) == 8) {
        words[2 * e] = static_cast<std::uint32_t>(word);
        words[2 * e + 1] = static_cast<std::uint32_t>(word >> 32);
      } else {
        constexpr std::uint32_t kInWord = 4 / sizeof(T);
        words[e / kInWord] |= static_cast<std::uint32_t>(word) << 8 * sizeof(T) * (e % kInWord);
      }
    }
  }

  /// Returns the sum of the words, as the check of a block takes them.
  __device__ std::uint32_t sum() const {
    std::uint32_t total = 0;
    SPARSECAST_UNROLL
    for (std::uint32_t w = 0; w < kWords; ++w) total += words[w];
    return total;
  }

  /// Returns halves of two elements, with their exponents: pair p (0 to 3) has element low_element(p) in its lower half
  /// and high_element(p) in its upper one.
  __device__ std::uint32_t pair(std::uint32_t p) const {
    if constexpr (sizeof(T) == 1) return words[p / 2] >> 8 * (p % 2);
    if constexpr (sizeof(T) == 2) return words[p];
    constexpr std::uint32_t kStep = sizeof(T) / 4;
    if constexpr (sizeof(T) >= 4)
      return __byte_perm(words[2 * p * kStep + kStep - 1], words[(2 * p + 2) * kStep - 1], 0x7632);
  }
  __device__ static constexpr std::uint32_t low_element(std::uint32_t p) {
    return sizeof(T) == 1 ? p / 2 * 4 + p % 2 : 2 * p;
  }
  __device__ static constexpr std::uint32_t high_element(std::uint32_t p) {
    return low_element(p) + (sizeof(T) == 1 ? 2 : 1);
  }
};

/// Computes class_of(key_of(...)) of two halves at a time.
class PackedClasses {
 public:
  __device__ PackedClasses(const ExponentField& field, const ContextClasses& classes) {
    // Twice or four times the exponent, so that the result is four times the class for either width.
    const std::uint32_t scale = 3 - classes.width;
    const std::uint32_t highest = classes.hi + classes.width - 1;
    const std::uint32_t most = classes.count * classes.width - 1;
    shift_ = field.shift % 16 - scale;
    mask_ = both(field.mask << scale);
    offset_ = both((highest + field.bias - field.mask) << scale);
    most_ = both((most < highest ? most : highest) << scale);
  }

  /// Returns four times the class of each half.
  __device__ std::uint32_t of(std::uint32_t pair) const {
    // The largest exponent less this one, from which `offset_` makes the distance below `hi`.
    const std::uint32_t below = ~(pair >> shift_) & mask_;
    return __viaddmin_s16x2_relu(below, offset_, most_) & 0xFFFCFFFCU;
  }

 private:
  /// The 16 low bits of a number, of either sign, in both halves.
  __device__ static std::uint32_t both(std::uint32_t number) { return (number & 0xFFFF) * 0x10001; }

  std::uint32_t shift_;
  std::uint32_t mask_;
  std::uint32_t offset_;
  std::uint32_t most_;
};

/// Numbers of elements of 8 or of 16 classes, 4 bits each from class 0 in the lowest.
template <bool kManyClasses>
struct NibbleCountsOf {
  using Type = std::uint32_t;
};
template <>
struct NibbleCountsOf<true> {
  using Type = std::uint64_t;
};
template <bool kManyClasses>
using NibbleCounts = typename NibbleCountsOf<kManyClasses>::Type;

/// Counts the classes of the first `count` elements.
template <bool kManyClasses, class T>
__device__ NibbleCounts<kManyClasses> count_classes(const ScannedWords<T>& scanned, const PackedClasses& classes,
                                                    std::uint32_t count) {
  constexpr NibbleCounts<kManyClasses> kOne = 1;
  NibbleCounts<kManyClasses> counts = 0;
  SPARSECAST_UNROLL
  for (std::uint32_t p = 0; p < kScanned / 2; ++p) {
    const std::uint32_t two = classes.of(scanned.pair(p));
    if constexpr (kManyClasses) {
      if (scanned.low_element(p) < count) counts += kOne << (two & 63);
      if (scanned.high_element(p) < count) counts += kOne << (two >> 16);
    } else {
      // Shifts of the high word by the low 5 bits of a number.
      if (scanned.low_element(p) < count) counts += __funnelshift_l(0U, 1U, two);
      if (scanned.high_element(p) < count) counts += __funnelshift_l(0U, 1U, two >> 16);
    }
  }
  return counts;
}

/// Returns which of the elements are of the class `four_times_class` / 4, as bits.
template <class T>
__device__ std::uint32_t elements_of_class(const ScannedWords<T>& scanned, const PackedClasses& classes,
                                           std::uint32_t four_times_class) {
  std::uint32_t bits = 0;
  SPARSECAST_UNROLL
  for (std::uint32_t p = 0; p < kScanned / 2; ++p) {
    const std::uint32_t two = classes.of(scanned.pair(p));
    if ((two & 0xFFFF) == four_times_class) bits |= 1U << scanned.low_element(p);
    if (two >> 16 == four_times_class) bits |= 1U << scanned.high_element(p);
  }
  return bits;
}

}  // namespace sparsecast::cuda
