// SPDX-License-Identifier: Apache-2.0
#pragma once

// Encoding and decoding of one block (block_encoder.cpp, block_decoder.cpp).

#include <cstdint>
#include <vector>

#include "codec/block.hpp"
#include "codec/frame_reader.hpp"
#include "sparsecast/delta.hpp"

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

/// The changes of one block: positions relative to its first element, strictly increasing, and their coded words.
template <class T>
struct BlockChanges {
  const std::uint32_t* positions = nullptr;
  const T* coded = nullptr;
  std::uint32_t count = 0;  ///< At least 1.
  std::uint32_t span = 0;   ///< Elements of the block.
  /// New bits of all `span` elements, needed only to send a raw block dense; null when unknown.
  const std::byte* current = nullptr;
};

/// Scratch of one encoding thread.
struct EncodeScratch {
  std::vector<std::uint32_t> gaps;
  std::vector<std::uint32_t> exceptions;
  std::vector<std::uint32_t> escaped;  ///< Quotients.
  Bytes values;
};

/// Appends the block's payload to `payload` (a multiple of 4 bytes) and returns its coding.
template <class T>
Coding encode_block(const BlockChanges<T>& block, PositionMode mode, ValueCodec values, EncodeScratch& scratch,
                    Bytes& payload);

}  // namespace sparsecast
