// SPDX-License-Identifier: Apache-2.0
#pragma once

// Tells whether the storage bits of a float are a NaN; shared by host and device.

#include <cstdint>

#include "core/host_device.hpp"
#include "sparsecast/tensor.hpp"

namespace sparsecast {

/// Bit pattern of a format's NaNs. In every format that sparsecast supports, an element is a NaN when its magnitude
/// (its bits without the sign) is above a bound: the magnitude of infinity or, in E4M3, which has no infinity, the
/// greatest finite magnitude.
struct NanPattern {
  std::uint64_t magnitude_bits = 0;  ///< Mask of all bits but the sign.
  /// Greatest magnitude that is not a NaN; all ones in a dtype without NaNs.
  std::uint64_t greatest = ~std::uint64_t{0};
  /// Bits of a positive quiet NaN, which no conversion on the way to a masked copy turns into a number.
  std::uint64_t fill = 0;
};

constexpr NanPattern nan_pattern(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return {0x7FFF, 0x7F80, 0x7FC0};
    case DType::kF16:
      return {0x7FFF, 0x7C00, 0x7E00};
    case DType::kF32:
      return {0x7FFFFFFF, 0x7F800000, 0x7FC00000};
    case DType::kF64:
      return {0x7FFFFFFFFFFFFFFF, 0x7FF0000000000000, 0x7FF8000000000000};
    case DType::kF8E4M3:
      return {0x7F, 0x7E, 0x7F};
    case DType::kF8E5M2:
      return {0x7F, 0x7C, 0x7E};
    default:
      return {};
  }
}

/// Returns true when `bits` are a NaN of the format; T is the unsigned integer type with the size of an element.
template <class T>
SPARSECAST_HD bool is_nan_bits(const NanPattern& pattern, T bits) {
  return static_cast<T>(bits & static_cast<T>(pattern.magnitude_bits)) > static_cast<T>(pattern.greatest);
}

}  // namespace sparsecast
