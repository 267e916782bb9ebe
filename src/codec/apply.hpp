// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "codec/block_coding.hpp"
#include "core/tensor_view.hpp"
#include "sparsecast/digest.hpp"

namespace sparsecast {

enum class Direction { kForward, kInverse };

/// Scratch of one decoding thread, for tensors of any dtype.
struct ApplyScratch {
  DecodedBlock<std::uint8_t> words8;
  DecodedBlock<std::uint16_t> words16;
  DecodedBlock<std::uint32_t> words32;
  DecodedBlock<std::uint64_t> words64;

  template <class T>
  DecodedBlock<T>& get() {
    if constexpr (sizeof(T) == 1) return words8;
    if constexpr (sizeof(T) == 2) return words16;
    if constexpr (sizeof(T) == 4) return words32;
    if constexpr (sizeof(T) == 8) return words64;
  }
};

/// Decodes the block and drops the result: Error{kCorrupt} when its payload is not valid. Of a `context` block, whose
/// values only the weights tell apart, the ranks alone.
void validate_block(const BlockRef& block, DType dtype, ApplyScratch& scratch);

struct ApplyTarget {
  std::byte* window = nullptr;  ///< Bits of the block's `span` elements, or with `view`, of the tensor; any alignment.
  DType dtype = DType::kBF16;
  const StridedView* view = nullptr;   ///< Places of the tensor's elements; null: they follow one another.
  const DigestIndex* index = nullptr;  ///< Positions of the elements in the digest; needed with `change` only.
  StateDigest* change = nullptr;       ///< Gains the change of the digest; null: no digest is computed.
  Bytes* replaced = nullptr;           ///< The bits that were overwritten are appended, in order; null: not kept.
};

/// The target of a block of a whole tensor at `data`, without digest.
inline ApplyTarget target_in(std::byte* data, const StridedView* view, DType dtype, const BlockRef& block) {
  ApplyTarget target;
  target.window = view != nullptr ? data : data + block.first_element * element_size(dtype);
  target.dtype = dtype;
  target.view = view;
  return target;
}

/// Decodes the block completely, then writes: an invalid one is Error{kCorrupt} with nothing written, and a `context`
/// block of another base Error{kWrongBase}. Direction kInverse needs `xor` or `ulp` words, and no `context` block,
/// whose positions only the bits before it tell (Error{kUsage}). Returns the number of elements that the block names.
std::uint32_t apply_block(const BlockRef& block, const ApplyTarget& target, Direction direction, ApplyScratch& scratch);

/// Undoes a `raw` block from the bits that apply_block put into `replaced`. Returns how many bytes were used.
std::size_t restore_block(const BlockRef& block, const ApplyTarget& target, ConstBytes replaced, ApplyScratch& scratch);

}  // namespace sparsecast
