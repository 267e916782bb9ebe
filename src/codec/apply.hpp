// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "codec/block_coding.hpp"
#include "core/tensor_view.hpp"
#include "sparsecast/digest.hpp"
#include "sparsecast/tensor.hpp"

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

/// Decodes the block and drops the result; throws Error{kCorrupt} when its payload is not valid. Of a `context` block
/// only the ranks are decoded, because its values depend on the weights.
void validate_block(const BlockRef& block, DType dtype, ApplyScratch& scratch);

struct ApplyTarget {
  std::byte* window = nullptr;  ///< Bits of the block's `span` elements; with `view`, of the tensor. Any alignment.
  DType dtype = DType::kBF16;
  const StridedView* view = nullptr;   ///< Places of the tensor's elements; null: contiguous.
  const DigestIndex* index = nullptr;  ///< Positions of the elements in the digest; needed with `change` only.
  StateDigest* change = nullptr;       ///< The change of the digest is added to it; null: no digest.
  Bytes* replaced = nullptr;           ///< Overwritten bits are appended to it, in order; null: not kept.
};

/// Returns the target of a block in a whole tensor at `data`, without digest.
inline ApplyTarget target_in(std::byte* data, const StridedView* view, DType dtype, const BlockRef& block) {
  ApplyTarget target;
  target.window = view != nullptr ? data : data + block.first_element * element_size(dtype);
  target.dtype = dtype;
  target.view = view;
  return target;
}

/// Decodes the block completely, then writes it. Throws, with nothing written, Error{kCorrupt} for an invalid block and
/// Error{kWrongBase} for a `context` block of another base. Direction kInverse needs `xor` or `ulp` words, and no
/// `context` block, whose positions depend on the bits before it (Error{kUsage}). Returns the number of elements that
/// the block names.
std::uint32_t apply_block(const BlockRef& block, const ApplyTarget& target, Direction direction, ApplyScratch& scratch);

/// Undoes a `raw` block from the bits that apply_block put into `replaced`. Returns the number of bytes of `replaced`
/// that were used.
std::size_t restore_block(const BlockRef& block, const ApplyTarget& target, ConstBytes replaced, ApplyScratch& scratch);

}  // namespace sparsecast
