// SPDX-License-Identifier: Apache-2.0
#pragma once

// How the position codec `context` (docs/wire-format.md §4.3) reads the old words of a block: eight elements at a time,
// whose classes are computed and counted in packed form. The exponent of every floating dtype is in the upper 16 bits
// of its words (for bytes, in the byte), so that the exponents of two elements fit in the halves of one word. One
// instruction then works on two elements.

#include "codec/context_model.hpp"
#include "cuda/common/views.cuh"

namespace sparsecast::cuda {

/// Number of elements that are loaded and counted together: at most 15, so that a count fits into 4 bits.
inline constexpr std::uint32_t kScanned = 8;

/// Location of the old words of a block's elements in global memory.
template <class T>
struct OldWords {
  /// Address of the block's first element; with a view, address of element 0 of the tensor.
  const T* data = nullptr;
  const StridedView* view = nullptr;  ///< Layout of the tensor in memory; null if its elements are contiguous.
  std::uint64_t first = 0;            ///< With a view: index of the block's first element in the tensor; otherwise 0.
  std::uint32_t span = 0;             ///< Number of elements in the block.
  bool vectors = false;               ///< True if there is no view and `data` is aligned to 16 bytes.

  __device__ T at(std::uint32_t position) const { return *in_global(data + place_of(view, first + position)); }
};

/// Copy of the bits of kScanned consecutive elements, in the order that they have in contiguous memory. Elements beyond
/// the end of the block are zero.
template <class T>
struct ScannedWords {
  static constexpr std::uint32_t kWords = kScanned * sizeof(T) / 4;

  std::uint32_t words[kWords];

  /// Copies the kScanned contiguous elements from address `at` on. `at` must be aligned to 8 bytes, or to 16 bytes for
  /// elements of 2 or more bytes.
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

  /// Copies the kScanned elements from number `position` of the block on, one by one. Works for any view and alignment.
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

  /// Returns the sum of the 32-bit words. It is the part of the block's check sum that these elements contribute.
  __device__ std::uint32_t sum() const {
    std::uint32_t total = 0;
    SPARSECAST_UNROLL
    for (std::uint32_t w = 0; w < kWords; ++w) total += words[w];
    return total;
  }

  /// For pair p (0 to 3), returns the two 16-bit parts that hold the exponents of two elements: the part of element
  /// low_element(p) in the lower half, and the part of element high_element(p) in the upper half.
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

/// Computes the classes of two elements at a time. The result equals class_of(key_of(...)) for each element.
class PackedClasses {
 public:
  __device__ PackedClasses(const ExponentField& field, const ContextClasses& classes) {
    // Exponents are scaled by 2 or 4, so that the result is four times the class for either class width.
    const std::uint32_t scale = 3 - classes.width;
    const std::uint32_t highest = classes.hi + classes.width - 1;
    const std::uint32_t most = classes.count * classes.width - 1;
    shift_ = field.shift % 16 - scale;
    mask_ = both(field.mask << scale);
    offset_ = both((highest + field.bias - field.mask) << scale);
    most_ = both((most < highest ? most : highest) << scale);
  }

  /// Returns the class of each of two elements times 4, in the two halves of the result: the shift of the 4-bit count
  /// of the class in NibbleCounts. The halves of `pair` are the elements' 16-bit parts, as ScannedWords::pair() returns
  /// them.
  __device__ std::uint32_t of(std::uint32_t pair) const {
    // The largest possible exponent minus this exponent; `offset_` turns it into the distance below `hi`.
    const std::uint32_t below = ~(pair >> shift_) & mask_;
    return __viaddmin_s16x2_relu(below, offset_, most_) & 0xFFFCFFFCU;
  }

 private:
  /// Returns a word whose two halves are both the low 16 bits of `number`, which may be negative.
  __device__ static std::uint32_t both(std::uint32_t number) { return (number & 0xFFFF) * 0x10001; }

  std::uint32_t shift_;
  std::uint32_t mask_;
  std::uint32_t offset_;
  std::uint32_t most_;
};

/// Type of a word that holds, in 4 bits for each class, a number of elements; class 0 is in the lowest bits. It has 32
/// bits for 8 classes, or 64 bits for 16 classes (kManyClasses).
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

/// Returns the number of elements of each class among the first `count` elements of `scanned`.
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
      // The funnel shift shifts by the low 5 bits of its last argument.
      if (scanned.low_element(p) < count) counts += __funnelshift_l(0U, 1U, two);
      if (scanned.high_element(p) < count) counts += __funnelshift_l(0U, 1U, two >> 16);
    }
  }
  return counts;
}

/// Returns a mask in which bit i is set if element i of `scanned` has class `four_times_class` / 4.
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
