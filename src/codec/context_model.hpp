// SPDX-License-Identifier: Apache-2.0
#pragma once

// Arithmetic of the position codec `context` (docs/wire-format.md §4.3 and §5.6), shared by host and device. How likely
// an element is to change, and by how many ULP, depends on the exponent of its old word, which both ends know: an
// optimizer's steps have similar sizes, and the distance to the next number doubles with each exponent.

#include <cstdint>

#include "codec/codec_common.hpp"
#include "core/host_device.hpp"
#include "sparsecast/codec.hpp"
#include "sparsecast/tensor.hpp"

namespace sparsecast {

inline constexpr std::uint32_t kMostClasses = 16;
/// A `context` block ends with the tile in which the number of changes, counted from the start of the section, reaches
/// a multiple of this number. The parameters of up to 16 classes pay off only with that many changes.
inline constexpr std::uint32_t kContextBlockChanges = kLargeBlockChanges;
/// Number of different keys. Keys are bytes, from 0 to 255.
inline constexpr std::uint32_t kContextKeys = 256;
inline constexpr std::uint32_t kPositionCheckFactor = 0x9E3779B1U;

/// Position of the exponent field in the words of a floating dtype.
struct ExponentField {
  std::uint32_t shift = 0;
  std::uint32_t mask = 0;
  /// Number that is subtracted from an exponent field of more than 8 bits; 0 for other fields.
  std::uint32_t bias = 0;
};

SPARSECAST_HD constexpr ExponentField exponent_field(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return {7, 255, 0};
    case DType::kF16:
      return {10, 31, 0};
    case DType::kF32:
      return {23, 255, 0};
    case DType::kF64:
      return {52, 2047, 832};
    case DType::kF8E4M3:
      return {3, 15, 0};
    default:
      return {2, 31, 0};
  }
}

/// Returns the key of a word: its exponent field minus the bias, limited to 0 to 255.
template <class T>
SPARSECAST_HD std::uint32_t key_of(T word, const ExponentField& field) {
  const auto exponent = static_cast<std::uint32_t>(word >> field.shift) & field.mask;
  if (exponent < field.bias) return 0;
  return exponent - field.bias < kContextKeys ? exponent - field.bias : kContextKeys - 1;
}

/// Parameters of a `context` block that put its elements into classes by their keys (docs/wire-format.md §4.3).
struct ContextClasses {
  std::uint32_t hi = 0;     ///< Least key of class 0. Elements with this key or a greater one are in class 0.
  std::uint32_t count = 1;  ///< Number of classes, 1 to kMostClasses.
  std::uint32_t width = 1;  ///< Number of keys in each class after class 0; it is 1 or 2.
};

SPARSECAST_HD std::uint32_t class_of(std::uint32_t key, const ContextClasses& classes) {
  const std::uint32_t below = key < classes.hi ? (classes.hi - key + classes.width - 1) / classes.width : 0;
  return below < classes.count ? below : classes.count - 1;
}

/// Parameters of the values of a `context` block. The values of elements with keys below `rice_keys` are Rice-coded
/// with low_bits() low bits; the values of other elements are one ULP, or exceptions.
struct ContextValues {
  std::uint32_t rice_keys = 0;  ///< Values of elements with keys below this number, 0 to kContextKeys, are Rice-coded.
  std::uint32_t scale = 0;      ///< Number, 0 to 511, from which low_bits() subtracts the key.

  /// Returns the number of low bits of a magnitude that are stored without a code, for an element of `width` bits with
  /// this key. A key that is lower by one gives one bit more, because a change of the same size is twice as many ULP
  /// there.
  SPARSECAST_HD std::uint32_t low_bits(std::uint32_t key, std::uint32_t width) const {
    if (scale <= key) return 0;
    return scale - key < width - 1 ? scale - key : width - 1;
  }
};

/// Returns the number of bits in the tail of the code of a value's quotient. The code is that of quotients of `packed`
/// gaps, but such a quotient may have up to 63 bits.
SPARSECAST_HD std::uint32_t value_tail_bits(std::uint64_t quotient) {
  return quotient < kEscape ? 0 : static_cast<std::uint32_t>(bit_width64(quotient - (kEscape - 1))) - 1;
}

/// Returns twice the expected number of bits of the code of a quotient of `width` bits (docs/wire-format.md §5.6).
SPARSECAST_HD std::uint32_t quotient_cost(std::uint32_t width) {
  constexpr std::uint64_t kNarrow = 0x190D070402;  // 2, 4, 7, 13, 25: a byte each.
  return width < 5 ? static_cast<std::uint32_t>(kNarrow >> 8 * width & 0xFF) : 4 * width + 13;
}

/// Number of changes of a block for each key.
using KeyCounts = std::uint32_t[kContextKeys];

/// Returns the classes for changes whose keys are mostly from `lo` to `hi`; `hi` is at most 255 (docs/wire-format.md
/// §5.6).
SPARSECAST_HD ContextClasses classes_between(std::uint32_t hi, std::uint32_t lo) {
  ContextClasses classes;
  classes.hi = hi;
  const std::uint32_t range = hi > lo ? hi - lo : 0;
  classes.width = range < 8 ? 1 : 2;
  const std::uint32_t count = (range + classes.width - 1) / classes.width + 1;
  classes.count = count < kMostClasses ? count : kMostClasses;
  return classes;
}

/// Returns the classes for a block of n changes (docs/wire-format.md §5.6). counts[key] is the number of changes whose
/// element has this key.
SPARSECAST_HD ContextClasses choose_classes(const KeyCounts& counts, std::uint32_t n) {
  std::uint32_t above = 0;
  std::uint32_t hi = kContextKeys;
  while (hi > 0 && above * 16 < n) above += counts[--hi];
  std::uint32_t below = 0;
  std::uint32_t lo = 0;
  while (lo < kContextKeys && (below += counts[lo]) * 16 < n) ++lo;
  return classes_between(hi + 1 < kContextKeys ? hi + 1 : kContextKeys - 1, lo);
}

/// Returns ContextValues::rice_keys for a block (docs/wire-format.md §5.6). counts[key] is the number of changes whose
/// element has this key, and far[key] the number of such changes by more than one ULP.
SPARSECAST_HD std::uint32_t choose_rice_keys(const KeyCounts& counts, const KeyCounts& far) {
  std::uint32_t keys = 0;
  for (std::uint32_t key = 0; key < kContextKeys; ++key) {
    if (counts[key] == 0) continue;
    if (far[key] * 8 < counts[key]) break;
    keys = key + 1;
  }
  return keys;
}

}  // namespace sparsecast
