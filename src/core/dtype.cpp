// SPDX-License-Identifier: Apache-2.0
#include "sparsecast/tensor.hpp"

#include <array>

namespace sparsecast {
namespace {

struct DTypeRow {
  DType dtype;
  std::size_t bytes;
  bool floating;
  std::string_view name;
};

constexpr std::array<DTypeRow, 23> kRows = {{
    {DType::kBF16, 2, true, "BF16"},
    {DType::kF16, 2, true, "F16"},
    {DType::kF32, 4, true, "F32"},
    {DType::kF64, 8, true, "F64"},
    {DType::kF8E4M3, 1, true, "F8_E4M3"},
    {DType::kF8E5M2, 1, true, "F8_E5M2"},
    {DType::kI8, 1, false, "I8"},
    {DType::kU8, 1, false, "U8"},
    {DType::kI16, 2, false, "I16"},
    {DType::kI32, 4, false, "I32"},
    {DType::kI64, 8, false, "I64"},
    {DType::kBool, 1, false, "BOOL"},
    {DType::kI4X2, 1, false, "I4X2"},
    {DType::kF4X2, 1, false, "F4X2"},
    {DType::kF8E8M0, 1, false, "F8_E8M0"},
    {DType::kU16, 2, false, "U16"},
    {DType::kU32, 4, false, "U32"},
    {DType::kU64, 8, false, "U64"},
    {DType::kC64, 8, false, "C64"},
    {DType::kF8E4M3Fnuz, 1, false, "F8_E4M3FNUZ"},
    {DType::kF8E5M2Fnuz, 1, false, "F8_E5M2FNUZ"},
    {DType::kF6E2M3, 1, false, "F6_E2M3"},
    {DType::kF6E3M2, 1, false, "F6_E3M2"},
}};

// Wire codes count from 1 in the order of the rows.
const DTypeRow& row(DType dtype) { return kRows[static_cast<std::size_t>(dtype) - 1]; }

}  // namespace

std::size_t element_size(DType dtype) noexcept { return row(dtype).bytes; }
bool is_floating(DType dtype) noexcept { return row(dtype).floating; }
bool is_pair(DType dtype) noexcept { return dtype == DType::kI4X2 || dtype == DType::kF4X2; }
bool is_fp6(DType dtype) noexcept { return dtype == DType::kF6E2M3 || dtype == DType::kF6E3M2; }
std::string_view to_string(DType dtype) noexcept { return row(dtype).name; }

std::optional<DType> dtype_from_name(std::string_view name) noexcept {
  for (const DTypeRow& candidate : kRows) {
    if (candidate.name == name) return candidate.dtype;
  }
  return std::nullopt;
}

std::optional<DType> dtype_from_code(std::uint8_t code) noexcept {
  if (code == 0 || code > kRows.size()) return std::nullopt;
  return static_cast<DType>(code);
}

}  // namespace sparsecast
