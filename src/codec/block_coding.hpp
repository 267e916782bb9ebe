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

/// Scratch for unary codes, and for what they tell of exceptions or escapes.
struct ExceptionScratch {
  std::vector<Escape> list;
  std::vector<std::uint32_t> ones;
  std::vector<std::uint32_t> zeros;
};

/// How many changes of a key have magnitudes of a width.
struct WidthCount {
  std::uint32_t key;
  std::uint32_t width;
  std::uint32_t changes;
};

/// Scratch of `context` blocks. Changes are numbered class by class, in each by position.
struct ContextScratch {
  std::vector<std::uint32_t> ranks;
  std::vector<std::uint8_t> keys;
  std::vector<std::uint64_t> magnitudes;
  // To encode.
  KeyCounts counts = {};
  KeyCounts far = {};                         ///< Those of more than one ULP.
  std::vector<std::uint32_t> found_ranks;     ///< By position.
  std::vector<std::uint8_t> class_of_change;  ///< By position.
  std::vector<std::uint8_t> down;             ///< Signs.
  std::vector<std::uint32_t> gaps;
  std::vector<std::uint32_t> escaped;  ///< Quotients.
  std::vector<std::uint32_t> exceptions;
  std::vector<std::uint64_t> high;    ///< Magnitudes of the exceptions.
  std::vector<std::uint32_t> widths;  ///< Changes by key and width of their magnitude.
  std::vector<WidthCount> seen;       ///< Those that are not 0.
  // To decode.
  std::vector<std::uint64_t> quotients;
  std::vector<std::uint32_t> numbers;  ///< By position.
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
  const std::byte* window = nullptr;  ///< Those of the block's `span` elements, or with `view`, of the tensor.
  DType dtype = DType::kBF16;
  const StridedView* view = nullptr;  ///< Places of the tensor's elements; null: they follow one another.
};

/// The changes of a decoded block. Positions are relative to the block's first element and strictly increasing. A dense
/// block has no positions: `coded` then holds all of its elements.
template <class T>
struct DecodedBlock {
  std::vector<std::uint32_t> positions;
  std::vector<T> coded;
  std::uint32_t count = 0;  ///< Entries that are valid in both (span for a dense block).
  bool dense = false;
  /// The position part of a bitmap block, within its payload; null for other blocks.
  const std::byte* bitmap = nullptr;
  ExceptionScratch exceptions;
  ContextScratch context;
};

/// Decodes and validates one block; bounds never come from the payload unchecked. A `context` block needs the `old`
/// bits of its elements: Error{kUsage} without them, Error{kWrongBase} when they are not those that it was encoded
/// against. Otherwise throws Error{kCorrupt}. All without context.
template <class T>
void decode_block(const BlockRef& block, DecodedBlock<T>& out, const OldBits* old = nullptr);

/// decode_block for a `context` block.
template <class T>
void decode_context(const BlockRef& block, const OldBits& old, DecodedBlock<T>& out);

/// Checks what a `context` block says without the weights: its ranks. Throws Error{kCorrupt}.
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
  /// The position part that the block has as a bitmap (docs/wire-format.md §4.1), or null: it is made of `positions`.
  const std::byte* bitmap = nullptr;
  /// Keys (context_model.hpp) of the old bits of all `span` elements, for `context` alone.
  const std::uint8_t* old_keys = nullptr;
  std::uint32_t old_sum = 0;  ///< Sum of these old bits as 32-bit words (docs/wire-format.md §4.3).
};

/// Magnitudes of ulp values: words of 32 bits, but of elements of 64 bits.
template <class Word>
struct UlpScratch {
  std::vector<Word> magnitudes;
  std::vector<Word> high;  ///< What exceptions have above the low bits.
};

/// Scratch of one encoding thread.
struct EncodeScratch {
  std::vector<std::uint32_t> gaps;
  std::vector<std::uint32_t> exceptions;
  std::vector<std::uint32_t> exception_gaps;
  std::vector<std::uint32_t> escaped;  ///< Quotients.
  UlpScratch<std::uint32_t> ulp32;
  UlpScratch<std::uint64_t> ulp64;
  ContextScratch context;
};

/// Appends the block's payload to `payload` (a multiple of 4 bytes) and returns its coding. The position mode is not
/// kContext.
template <class T>
Coding encode_block(const BlockChanges<T>& block, const BlockRules& rules, EncodeScratch& scratch, Bytes& payload);

/// encode_block as `context`; needs the keys of the old bits.
template <class T>
Coding encode_context(const BlockChanges<T>& block, ContextScratch& scratch, Bytes& payload);

}  // namespace sparsecast
