// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "sparsecast/export.hpp"

namespace sparsecast {

/// Element types. The numbers are part of the wire format (docs/wire-format.md): never renumber. An element of kI4X2
/// and kF4X2 is a byte that holds two numbers: shapes and positions count bytes.
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
  kI4X2 = 13,  ///< Two integers of 4 bits (two's complement, or with an offset) in a byte.
  kF4X2 = 14,  ///< Two fp4 e2m1 numbers in a byte, as torch.float4_e2m1fn_x2 and the data of MXFP4 and NVFP4 have them.
  kF8E8M0 = 15,  ///< A power of two, 2^(byte - 127), and 255 a NaN: UE8M0 scales. Bytes are in the order of numbers.
};

/// Returns the bytes of one element: 1, 2, 4 or 8.
SPARSECAST_API std::size_t element_size(DType dtype) noexcept;

/// Returns true for the floating dtypes with a sign, of a byte or more, whose bits the `ulp` codec maps to ordered
/// integers. False for integers, bool, pairs and kF8E8M0.
SPARSECAST_API bool is_floating(DType dtype) noexcept;

/// Returns true for kI4X2 and kF4X2, for which the `ulp` codec counts the steps of both halves of a byte.
SPARSECAST_API bool is_pair(DType dtype) noexcept;

/// Returns true for the dtypes that format 1.3 added: pairs and kF8E8M0.
SPARSECAST_API bool is_added(DType dtype) noexcept;

/// Returns the name that safetensors uses: "BF16", "F8_E4M3", "I32", "F8_E8M0", ... and "I4X2" and "F4X2", which are
/// the names of sparsecast alone: safetensors has "F4", whose shapes count numbers, and nothing for integers of 4 bits.
SPARSECAST_API std::string_view to_string(DType dtype) noexcept;

/// Returns the dtype of such a name; nullopt for a name that sparsecast does not support.
SPARSECAST_API std::optional<DType> dtype_from_name(std::string_view name) noexcept;

/// Returns the dtype of a wire code; nullopt when it is unknown.
SPARSECAST_API std::optional<DType> dtype_from_code(std::uint8_t code) noexcept;

}  // namespace sparsecast
