#pragma once

#include <optional>
#include <string_view>

#include "sparsecast/dtype.hpp"

namespace sparsecast {

/// What PyTorch calls the dtype, without "torch.": "bfloat16", "float8_e4m3fn", ...
std::string_view torch_name(DType dtype) noexcept;
/// Inverse of torch_name; empty for a name that sparsecast does not carry.
std::optional<DType> dtype_from_torch_name(std::string_view name) noexcept;

}  // namespace sparsecast
