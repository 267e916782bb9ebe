// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sparsecast/tensor.hpp"

namespace sparsecast::bench {

/// Bits of one array before and after a step.
struct Pair {
  std::vector<std::byte> before;
  std::vector<std::byte> after;
  std::uint64_t changed = 0;
};

/// Which elements change, and by how much.
enum class ChangeKind {
  kAdamw,  ///< Small steps of heavy-tailed fp32 masters, rounded to bf16.
  kWide,   ///< Random bits; jumps whose number of bits is uniform over the element's width.
  kRows,   ///< Random bits; one to three ULP, in a sqrt(density) share of rows of 256, each at density sqrt(density).
};

/// Returns `count` elements of a dtype (bf16 for kAdamw), and a copy in which a share of about `density` has changed.
/// Equal arguments give equal bits.
Pair make_pair_of(std::uint64_t count, DType dtype, double density, ChangeKind kind, std::uint64_t seed);

}  // namespace sparsecast::bench
