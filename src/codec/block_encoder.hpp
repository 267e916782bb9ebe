// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "codec/block.hpp"
#include "sparsecast/delta.hpp"

namespace sparsecast {

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
