// SPDX-License-Identifier: Apache-2.0
#pragma once

// Arithmetic of the position codec `context` (docs/wire-format.md §4.3 and §5.6), shared by host and device. How likely
// an element is to change, and by how many ULP, follows from the exponent of its old word, which both ends know: an
// optimizer's steps are of one size, and the distance to the next number doubles with the exponent.

#include <cstdint>

#include "codec/codec_common.hpp"
#include "core/host_device.hpp"
#include "sparsecast/codec.hpp"
#include "sparsecast/tensor.hpp"

namespace sparsecast {

inline constexpr std::uint32_t kMostClasses = 16;
/// A block ends with the tile in which the section's count of changes passes a multiple of this. The parameters of up
/// to 16 classes pay off only with that many changes.
inline constexpr std::uint32_t kContextBlockChanges = kLargeBlockChanges;
/// Number of keys, which are bytes; a bound above all of them.
inline constexpr std::uint32_t kContextKeys = 256;
inline constexpr std::uint32_t kPositionCheckFactor = 0x9E3779B1U;

/// Position of the exponent field in the words of a floating dtype.
struct ExponentField {
  std::uint32_t shift = 0;
  std::uint32_t mask = 0;
  std::uint32_t bias = 0;  ///< Subtracted, for fields of more than 8 bits.
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

/// Returns the key of a word: its exponent, 0 to 255.
template <class T>
SPARSECAST_HD std::uint32_t key_of(T word, const ExponentField& field) {
  const auto exponent = static_cast<std::uint32_t>(word >> field.shift) & field.mask;
  if (exponent < field.bias) return 0;
  return exponent - field.bias < kContextKeys ? exponent - field.bias : kContextKeys - 1;
}

/// Parameters of a block (docs/wire-format.md §4.3).
struct ContextClasses {
  std::uint32_t hi = 0;     ///< Keys from this one on are class 0.
  std::uint32_t count = 1;  ///< 1 to kMostClasses.
  std::uint32_t width = 1;  ///< Number of keys of a class, 1 or 2.
};

SPARSECAST_HD std::uint32_t class_of(std::uint32_t key, const ContextClasses& classes) {
  const std::uint32_t below = key < classes.hi ? (classes.hi - key + classes.width - 1) / classes.width : 0;
  return below < classes.count ? below : classes.count - 1;
}

/// Parameters of the values: changes with keys below `rice_keys` are Rice-coded with low_bits(key), others are one ULP
/// or exceptions.
struct ContextValues {
  std::uint32_t rice_keys = 0;  ///< 0 to kContextKeys.
  std::uint32_t scale = 0;      ///< 0 to 511.

  /// Returns the number of low bits of a magnitude that are stored as they are. A change of one size is twice as many
  /// ULP at the next lower exponent.
  SPARSECAST_HD std::uint32_t low_bits(std::uint32_t key, std::uint32_t width) const {
    if (scale <= key) return 0;
    return scale - key < width - 1 ? scale - key : width - 1;
  }
};

/// Returns the tail bits of a value's quotient, which is coded as in `packed`, but with up to 63 bits.
SPARSECAST_HD std::uint32_t value_tail_bits(std::uint64_t quotient) {
  return quotient < kEscape ? 0 : static_cast<std::uint32_t>(bit_width64(quotient - (kEscape - 1))) - 1;
}

/// Returns twice the expected bits of the code of a quotient of `width` bits (docs/wire-format.md §5.6).
SPARSECAST_HD std::uint32_t quotient_cost(std::uint32_t width) {
  constexpr std::uint64_t kNarrow = 0x190D070402;  // 2, 4, 7, 13, 25: a byte each.
  return width < 5 ? static_cast<std::uint32_t>(kNarrow >> 8 * width & 0xFF) : 4 * width + 13;
}

/// Number of changes of a block by key.
using KeyCounts = std::uint32_t[kContextKeys];

/// Returns the classes from `hi`, at most 255, down to `lo` (docs/wire-format.md §5.6).
SPARSECAST_HD ContextClasses classes_between(std::uint32_t hi, std::uint32_t lo) {
  ContextClasses classes;
  classes.hi = hi;
  const std::uint32_t range = hi > lo ? hi - lo : 0;
  classes.width = range < 8 ? 1 : 2;
  const std::uint32_t count = (range + classes.width - 1) / classes.width + 1;
  classes.count = count < kMostClasses ? count : kMostClasses;
  return classes;
}

/// Returns the classes for n changes with these keys (docs/wire-format.md §5.6).
SPARSECAST_HD ContextClasses choose_classes(const KeyCounts& counts, std::uint32_t n) {
  std::uint32_t above = 0;
  std::uint32_t hi = kContextKeys;
  while (hi > 0 && above * 16 < n) above += counts[--hi];
  std::uint32_t below = 0;
  std::uint32_t lo = 0;
  while (lo < kContextKeys && (below += counts[lo]) * 16 < n) ++lo;
  return classes_between(hi + 1 < kContextKeys ? hi + 1 : kContextKeys - 1, lo);
}

/// Returns the bound on keys below which changes are Rice-coded (docs/wire-format.md §5.6). `far` counts the changes of
/// more than one ULP.
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
