// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "codec/frame_reader.hpp"

namespace sparsecast {

/// A packed quotient with a tail, or an exception with the bits below its highest (docs/wire-format.md §4).
struct Escape {
  std::uint32_t index;
  std::uint32_t tail_bits;
};

/// The changes of a decoded block. Positions are relative to the block's first element and strictly increasing. A dense
/// block has no positions: `coded` then holds all of its elements.
template <class T>
struct DecodedBlock {
  std::vector<std::uint32_t> positions;
  std::vector<T> coded;
  std::uint32_t count = 0;  ///< Entries that are valid in both (span for a dense block).
  bool dense = false;
  std::vector<Escape> escapes;  ///< Scratch.
};

/// Decodes and validates one block; bounds never come from the payload unchecked. Throws Error{kCorrupt} without
/// context.
template <class T>
void decode_block(const BlockRef& block, DecodedBlock<T>& out);

}  // namespace sparsecast
