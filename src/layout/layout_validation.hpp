// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sparsecast/layout.hpp"

namespace sparsecast {

/// Returns the end of its ties for each tensor. Throws Error{kUsage} for ties that are none: see Layout.
std::vector<std::uint32_t> resolve_ties(const TensorTable& table, std::span<const TiedTensor> ties);

/// Throws Error{kUsage} unless every rank is as Layout documents it.
void validate_ranks(const TensorTable& table, std::span<const RankLayout> ranks,
                    std::span<const std::uint32_t> originals);

}  // namespace sparsecast
