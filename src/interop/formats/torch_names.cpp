#include "interop/formats/torch_names.hpp"

#include <array>
#include <utility>

namespace sparsecast {
namespace {

constexpr std::array<std::pair<DType, std::string_view>, 12> kNames = {{{DType::kBF16, "bfloat16"},
                                                                        {DType::kF16, "float16"},
                                                                        {DType::kF32, "float32"},
                                                                        {DType::kF64, "float64"},
                                                                        {DType::kF8E4M3, "float8_e4m3fn"},
                                                                        {DType::kF8E5M2, "float8_e5m2"},
                                                                        {DType::kI8, "int8"},
                                                                        {DType::kU8, "uint8"},
                                                                        {DType::kI16, "int16"},
                                                                        {DType::kI32, "int32"},
                                                                        {DType::kI64, "int64"},
                                                                        {DType::kBool, "bool"}}};

}  // namespace

std::string_view torch_name(DType dtype) noexcept {
  for (const auto& [known, name] : kNames) {
    if (known == dtype) return name;
  }
  return "unknown";
}

std::optional<DType> dtype_from_torch_name(std::string_view name) noexcept {
  for (const auto& [dtype, known] : kNames) {
    if (known == name) return dtype;
  }
  return std::nullopt;
}

}  // namespace sparsecast
