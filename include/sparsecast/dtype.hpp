// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "sparsecast/export.hpp"

namespace sparsecast {

/// Element types. The numbers are part of the wire format (docs/wire-format.md): never renumber.
enum class DType : std::uint8_t {
  kBF16 = 1,
  kF16 = 2,
  kF32 = 3,
  kF64 = 4,
  kF8E4M3 = 5,
  kF8E5M2 = 6,
  kI8 = 7,
  kU8 = 8,
  kI16 = 9,
  kI32 = 10,
  kI64 = 11,
  kBool = 12,
};

/// Returns the bytes of one element: 1, 2, 4 or 8.
SPARSECAST_API std::size_t element_size(DType dtype) noexcept;

/// Returns true for sign-magnitude types, whose bits the `ulp` codec maps to ordered integers. False for integers and
/// bool, where that map is the identity.
SPARSECAST_API bool is_floating(DType dtype) noexcept;

/// Returns the name that safetensors uses: "BF16", "F8_E4M3", "I32", "BOOL", ...
SPARSECAST_API std::string_view to_string(DType dtype) noexcept;

/// Returns the dtype of such a name; nullopt for a name that sparsecast does not support.
SPARSECAST_API std::optional<DType> dtype_from_name(std::string_view name) noexcept;

/// Returns the dtype of a wire code; nullopt when it is unknown.
SPARSECAST_API std::optional<DType> dtype_from_code(std::uint8_t code) noexcept;

}  // namespace sparsecast
