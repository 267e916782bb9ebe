// SPDX-License-Identifier: Apache-2.0
#pragma once

// Encoding and decoding of one block (block_encoder.cpp, block_decoder.cpp; context_encoder.cpp and context_decoder.cpp
// for the position codec `context`).

#include <algorithm>
#include <cstdint>
#include <vector>

#include "codec/block.hpp"
#include "codec/context_model.hpp"
#include "codec/frame_reader.hpp"
#include "core/strided_view.hpp"
#include "sparsecast/delta.hpp"

namespace sparsecast {

/// A code whose remaining bits, the tail, are later in the bit string: an escaped quotient, or an exception, whose tail
/// has the bits below its highest one bit (docs/wire-format.md §4).
struct Escape {
  std::uint32_t index;
  std::uint32_t tail_bits;
};

/// Scratch memory to decode unary codes and the exceptions or escapes in them.
struct ExceptionScratch {
  std::vector<Escape> list;
  std::vector<std::uint32_t> ones;
  std::vector<std::uint32_t> zeros;
};

/// Number of changes whose old word has the key `key` and whose magnitude has `width` bits.
struct WidthCount {
  std::uint32_t key;
  std::uint32_t width;
  std::uint32_t changes;
};

/// Scratch memory to encode or decode `context` blocks. Changes are numbered class by class, and within a class by
/// position.
struct ContextScratch {
  std::vector<std::uint32_t> ranks;
  std::vector<std::uint8_t> keys;
  std::vector<std::uint64_t> magnitudes;
  // To encode.
  KeyCounts counts = {};
  KeyCounts far = {};                         ///< Number of changes of more than one ULP, for each key.
  std::vector<std::uint32_t> found_ranks;     ///< Ranks of the changes, in the order of positions.
  std::vector<std::uint8_t> class_of_change;  ///< Classes of the changes, in the order of positions.
  std::vector<std::uint8_t> down;             ///< For each change, by its number: 1 when it is negative, else 0.
  std::vector<std::uint32_t> gaps;
  std::vector<std::uint32_t> escaped;  ///< Quotients that are written as escapes, in order.
  std::vector<std::uint32_t> exceptions;
  std::vector<std::uint64_t> high;    ///< Magnitudes of the exceptions.
  std::vector<std::uint32_t> widths;  ///< Number of changes for each pair of key and width of the magnitude.
  std::vector<WidthCount> seen;       ///< The entries of `widths` that are not 0.
  // To decode.
  std::vector<std::uint64_t> quotients;
  std::vector<std::uint32_t> numbers;  ///< Numbers of the changes, in the order of positions.
  std::vector<std::uint8_t> tile_keys;
  Bytes tile_words;

  void grow_to_encode(std::size_t changes) {
    grow(changes);
    for (auto* list : {&found_ranks, &gaps, &exceptions}) list->resize(std::max(list->size(), changes));
    for (auto* list : {&class_of_change, &down}) list->resize(std::max(list->size(), changes));
  }
  void grow_to_decode(std::size_t changes) {
    grow(changes);
    numbers.resize(std::max(numbers.size(), changes));
  }

 private:
  void grow(std::size_t changes) {
    ranks.resize(std::max(ranks.size(), changes));
    keys.resize(std::max(keys.size(), changes));
    magnitudes.resize(std::max(magnitudes.size(), changes));
  }
};

/// The bits of a block's elements before the delta.
struct OldBits {
  /// Address of the block's first element, or of the tensor's first element if `view` is set.
  const std::byte* window = nullptr;
  DType dtype = DType::kBF16;
  const StridedView* view = nullptr;  ///< Offsets of the tensor's elements; null: they are contiguous.
};

/// The changes of a decoded block. Positions are relative to the block's first element and strictly increasing. A dense
/// block has no positions: `coded` then holds all of its elements.
template <class T>
struct DecodedBlock {
  std::vector<std::uint32_t> positions;
  std::vector<T> coded;
  /// Number of valid entries in `coded` and, unless the block is dense, in `positions`.
  std::uint32_t count = 0;
  bool dense = false;
  /// The bitmap of a bitmap block, which lies within its payload; null for other blocks.
  const std::byte* bitmap = nullptr;
  ExceptionScratch exceptions;
  ContextScratch context;
};

/// Decodes and validates one block, and writes its changes to `out`. Never trusts a length or an index in the payload
/// without a check. A `context` block needs `old`, the bits of its elements before the delta: throws Error{kUsage}
/// without `old`, and kWrongBase when the block was encoded against other bits. Throws Error{kCorrupt} for an invalid
/// block. The errors have no context: the caller must add which block it is.
template <class T>
void decode_block(const BlockRef& block, DecodedBlock<T>& out, const OldBits* old = nullptr);

/// Decodes and validates a `context` block, as decode_block does.
template <class T>
void decode_context(const BlockRef& block, const OldBits& old, DecodedBlock<T>& out);

/// Throws Error{kCorrupt} unless the ranks of a `context` block are valid. The other parts of the block are not
/// checked, because they depend on the weights.
template <class T>
void check_context(const BlockRef& block, DecodedBlock<T>& scratch);

/// The changes of one block that is to be encoded. Positions are relative to the block's first element and strictly
/// increasing.
template <class T>
struct BlockChanges {
  const std::uint32_t* positions = nullptr;
  const T* coded = nullptr;
  std::uint32_t count = 0;  ///< Number of changes, at least 1.
  std::uint32_t span = 0;   ///< Number of elements of the block.
  /// New bits of all `span` elements; needed only for a `raw` block that may become dense. Null when unknown.
  const std::byte* current = nullptr;
  /// Bitmap of the changed elements (docs/wire-format.md §4.1); null: the encoder makes it from `positions`.
  const std::byte* bitmap = nullptr;
  /// Keys (context_model.hpp) of the old bits of all `span` elements; needed for `context` only.
  const std::uint8_t* old_keys = nullptr;
  /// Sum of the old bits of all elements as 32-bit words (docs/wire-format.md §4.3); for `context` only.
  std::uint32_t old_sum = 0;
};

/// Scratch memory for the magnitudes of ulp values. Word is uint64_t for elements of 64 bits, and uint32_t for all
/// others.
template <class Word>
struct UlpScratch {
  std::vector<Word> magnitudes;
  std::vector<Word> high;  ///< Magnitudes of the exceptions without their low bits.
};

/// Scratch memory of one encoding thread.
struct EncodeScratch {
  std::vector<std::uint32_t> gaps;
  std::vector<std::uint32_t> exceptions;
  std::vector<std::uint32_t> exception_gaps;
  std::vector<std::uint32_t> escaped;  ///< Quotients that are written as escapes, in order.
  UlpScratch<std::uint32_t> ulp32;
  UlpScratch<std::uint64_t> ulp64;
  ContextScratch context;
};

/// Encodes a block: appends its payload, a multiple of 4 bytes, to `payload`, and returns its coding. rules.positions
/// must not be kContext.
template <class T>
Coding encode_block(const BlockChanges<T>& block, const BlockRules& rules, EncodeScratch& scratch, Bytes& payload);

/// Encodes a block with `context` positions: appends its payload to `payload`, and returns its coding. Needs
/// BlockChanges::old_keys and old_sum.
template <class T>
Coding encode_context(const BlockChanges<T>& block, ContextScratch& scratch, Bytes& payload);

}  // namespace sparsecast
