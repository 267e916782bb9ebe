// SPDX-License-Identifier: Apache-2.0
#pragma once

// State digests of tensors with any strides in memory and any digest origin.

#include <span>
#include <vector>

#include "core/tensor_view.hpp"
#include "sparsecast/digest.hpp"

namespace sparsecast {

/// Returns the part of the digest that elements [first, first + count) of a tensor contribute.
StateDigest digest_elements(const DigestIndex& index, DType dtype, const TensorView& tensor, std::uint64_t first,
                            std::uint64_t count);

/// Returns the digests of tensors [first_tensor, first_tensor + tensors.size()) of the table, each read in full.
std::vector<StateDigest> digest_tensors(const TensorTable& table, std::size_t first_tensor,
                                        std::span<const TensorView> tensors, int threads);

}  // namespace sparsecast
