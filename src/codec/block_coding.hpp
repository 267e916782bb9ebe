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

/// A packed quotient with a tail, or an exception with the bits below its highest (docs/wire-format.md §4).
struct Escape {
  std::uint32_t index;
  std::uint32_t tail_bits;
};

/// Scratch for unary codes, and for the exceptions or escapes decoded from them.
struct ExceptionScratch {
  std::vector<Escape> list;
  std::vector<std::uint32_t> ones;
  std::vector<std::uint32_t> zeros;
};

/// Number of changes with one key and one width of the magnitude.
struct WidthCount {
  std::uint32_t key;
  std::uint32_t width;
  std::uint32_t changes;
};

/// Scratch of `context` blocks. Changes are numbered class by class, and within a class by position.
struct ContextScratch {
  std::vector<std::uint32_t> ranks;
  std::vector<std::uint8_t> keys;
  std::vector<std::uint64_t> magnitudes;
  // To encode.
  KeyCounts counts = {};
  KeyCounts far = {};                         ///< Changes of more than one ULP.
  std::vector<std::uint32_t> found_ranks;     ///< Ranks of the changes, by position.
  std::vector<std::uint8_t> class_of_change;  ///< Class of each change, by position.
  std::vector<std::uint8_t> down;             ///< Signs of the changes.
  std::vector<std::uint32_t> gaps;
  std::vector<std::uint32_t> escaped;  ///< Escaped quotients.
  std::vector<std::uint32_t> exceptions;
  std::vector<std::uint64_t> high;    ///< Magnitudes of the exceptions.
  std::vector<std::uint32_t> widths;  ///< Number of changes by key and width of the magnitude.
  std::vector<WidthCount> seen;       ///< The counts that are not 0.
  // To decode.
  std::vector<std::uint64_t> quotients;
  std::vector<std::uint32_t> numbers;  ///< Numbers of the changes, by position.
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
  const std::byte* window = nullptr;  ///< Bits of the block's `span` elements, or of the whole tensor if `view` is set.
  DType dtype = DType::kBF16;
  const StridedView* view = nullptr;  ///< Places of the tensor's elements; null: contiguous.
};

/// The changes of a decoded block. Positions are relative to the block's first element and strictly increasing. A dense
/// block has no positions: `coded` then holds all of its elements.
template <class T>
struct DecodedBlock {
  std::vector<std::uint32_t> positions;
  std::vector<T> coded;
  std::uint32_t count = 0;  ///< Number of valid entries in both arrays (span for a dense block).
  bool dense = false;
  /// The position part of a bitmap block, within its payload; null for other blocks.
  const std::byte* bitmap = nullptr;
  ExceptionScratch exceptions;
  ContextScratch context;
};

/// Decodes and validates one block; bounds never come from the payload unchecked. A `context` block needs the `old`
/// bits of its elements: throws Error{kUsage} without them, Error{kWrongBase} when it was encoded against other bits.
/// Otherwise throws Error{kCorrupt}. The errors have no context.
template <class T>
void decode_block(const BlockRef& block, DecodedBlock<T>& out, const OldBits* old = nullptr);

/// Does decode_block for a `context` block.
template <class T>
void decode_context(const BlockRef& block, const OldBits& old, DecodedBlock<T>& out);

/// Checks the part of a `context` block that does not depend on the weights: its ranks. Throws Error{kCorrupt}.
template <class T>
void check_context(const BlockRef& block, DecodedBlock<T>& scratch);

/// The changes of one block: positions relative to its first element, strictly increasing, and their coded words.
template <class T>
struct BlockChanges {
  const std::uint32_t* positions = nullptr;
  const T* coded = nullptr;
  std::uint32_t count = 0;  ///< At least 1.
  std::uint32_t span = 0;   ///< Elements of the block.
  /// New bits of all `span` elements, needed only to send a raw block dense; null when unknown.
  const std::byte* current = nullptr;
  /// The block's position part as a bitmap (docs/wire-format.md §4.1); null: it is made from `positions`.
  const std::byte* bitmap = nullptr;
  /// Keys (context_model.hpp) of the old bits of all `span` elements, for `context` alone.
  const std::uint8_t* old_keys = nullptr;
  std::uint32_t old_sum = 0;  ///< Sum of the old bits as 32-bit words (docs/wire-format.md §4.3).
};

/// Magnitudes of ulp values: words of 32 bits, or of 64 bits for elements of 64 bits.
template <class Word>
struct UlpScratch {
  std::vector<Word> magnitudes;
  std::vector<Word> high;  ///< Bits of the exceptions above the low bits.
};

/// Scratch of one encoding thread.
struct EncodeScratch {
  std::vector<std::uint32_t> gaps;
  std::vector<std::uint32_t> exceptions;
  std::vector<std::uint32_t> exception_gaps;
  std::vector<std::uint32_t> escaped;  ///< Escaped quotients.
  UlpScratch<std::uint32_t> ulp32;
  UlpScratch<std::uint64_t> ulp64;
  ContextScratch context;
};

/// Appends the block's payload to `payload` (a multiple of 4 bytes) and returns its coding. The position mode is not
/// kContext.
template <class T>
Coding encode_block(const BlockChanges<T>& block, const BlockRules& rules, EncodeScratch& scratch, Bytes& payload);

/// Does encode_block with `context` positions; needs the keys of the old bits.
template <class T>
Coding encode_context(const BlockChanges<T>& block, ContextScratch& scratch, Bytes& payload);

}  // namespace sparsecast
