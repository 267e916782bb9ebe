// SPDX-License-Identifier: Apache-2.0
#pragma once

// The blocks of docs/wire-format.md §4 and §5, written for the eye: one bit, one element, one rule at a time. The
// optimised encoders are held to its bytes; it shares no code with them.

#include <cstdint>
#include <vector>

#include "sparsecast/codec.hpp"
#include "sparsecast/delta.hpp"

namespace sparsecast {

/// A finished block, as its directory entry and payload say.
struct ReferenceBlock {
  std::uint32_t first_tile = 0;
  std::uint32_t tiles = 1;
  std::uint32_t changed = 0;
  std::uint32_t coding = 0;
  Bytes payload;  ///< A multiple of 4 bytes.
};

/// Element `index` of `bits`, zero-extended.
std::uint64_t reference_element(ConstBytes bits, DType dtype, std::uint64_t index);

/// All blocks that take a tensor from `old_bits` to `new_bits`, in order; `block_changes`: L of rule 1, but for
/// context; `quick`: rule 7 holds.
std::vector<ReferenceBlock> reference_blocks(const TensorSpec& spec, ConstBytes old_bits, ConstBytes new_bits,
                                             PositionMode mode, ValueCodec values, std::uint32_t block_changes = 512,
                                             bool quick = false);

}  // namespace sparsecast
