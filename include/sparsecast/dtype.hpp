// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "sparsecast/export.hpp"

namespace sparsecast {

/// Element types: all that safetensors defines. The numbers are part of the wire format (docs/wire-format.md): never
/// renumber. An element of kI4X2 or kF4X2 is a byte that holds two numbers. An element of kF6E2M3 or kF6E3M2 is a byte
/// of a row in which four numbers take three bytes. Shapes and positions of these four dtypes count bytes.
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
  kI4X2 = 13,    ///< Two integers of 4 bits (two's complement, or with an offset) in a byte.
  kF4X2 = 14,    ///< Two fp4 e2m1 numbers in a byte, as in torch.float4_e2m1fn_x2 and the data of MXFP4 and NVFP4.
  kF8E8M0 = 15,  ///< UE8M0 scales: 2^(byte - 127); 255 is NaN. Bytes sort as their numbers.
  kU16 = 16,
  kU32 = 17,
  kU64 = 18,
  kC64 = 19,  ///< A complex number of two f32, the real part first. Its 8 bytes count as an integer.
  /// AMD's fp8, whose only NaN has the bits of -0. No rule about NaNs or the order of floats is used for it.
  kF8E4M3Fnuz = 20,
  kF8E5M2Fnuz = 21,
  kF6E2M3 = 22,
  kF6E3M2 = 23,
};

/// Returns the bytes of one element: 1, 2, 4 or 8.
SPARSECAST_API std::size_t element_size(DType dtype) noexcept;

/// Returns true for the floating dtypes with a sign, of a byte or more, whose bits the `ulp` codec maps to ordered
/// integers. False for integers, bool, pairs and the dtypes from kF8E8M0 on.
SPARSECAST_API bool is_floating(DType dtype) noexcept;

/// Returns true for kI4X2 and kF4X2, for which the `ulp` codec counts the steps of both halves of a byte.
SPARSECAST_API bool is_pair(DType dtype) noexcept;

/// Returns true for kF6E2M3 and kF6E3M2, for which three bytes hold four numbers.
SPARSECAST_API bool is_fp6(DType dtype) noexcept;

/// Returns the name that safetensors uses: "BF16", "F8_E4M3", "I32", "F8_E8M0", ... "I4X2" and "F4X2" are names of
/// sparsecast alone: safetensors has "F4", whose shapes count numbers, and no integers of 4 bits. safetensors also has
/// "F6_E2M3" and "F6_E3M2", but their shapes count numbers there.
SPARSECAST_API std::string_view to_string(DType dtype) noexcept;

/// Returns the dtype with this name in safetensors or sparsecast; nullopt for a name that sparsecast does not support.
SPARSECAST_API std::optional<DType> dtype_from_name(std::string_view name) noexcept;

/// Returns the dtype of a wire code; nullopt when it is unknown.
SPARSECAST_API std::optional<DType> dtype_from_code(std::uint8_t code) noexcept;

}  // namespace sparsecast
