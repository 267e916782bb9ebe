// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "codec/block_coding.hpp"
#include "core/tensor_view.hpp"
#include "sparsecast/digest.hpp"
#include "sparsecast/tensor.hpp"

namespace sparsecast {

enum class Direction { kForward, kInverse };

/// Scratch memory of one decoding thread, for tensors of any dtype.
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

/// Throws Error{kCorrupt} when the payload of a block is not valid; `dtype` is that of the block's tensor. Checks only
/// the ranks of a `context` block, because its values depend on the weights.
void validate_block(const BlockRef& block, DType dtype, ApplyScratch& scratch);

/// Memory to which apply_block() writes a block, and places where it records the write.
struct ApplyTarget {
  /// Address of the block's first element or, with `view`, of the tensor's first element; at any alignment.
  std::byte* window = nullptr;
  DType dtype = DType::kBF16;
  const StridedView* view = nullptr;  ///< Offsets of the tensor's elements; null: they are contiguous.
  /// Indices of the tensor's elements in the digest; needed with `change` only.
  const DigestIndex* index = nullptr;
  StateDigest* change = nullptr;  ///< Sum to which the change of the digest is added; null: no digest is computed.
  /// Buffer to which the overwritten bits are appended, in order; null: they are not kept.
  Bytes* replaced = nullptr;
};

/// Returns the target for `block` in the tensor at `data`. `view` has the offsets of the tensor's elements (null: they
/// are contiguous). The target records no digest and no old bits.
inline ApplyTarget target_in(std::byte* data, const StridedView* view, DType dtype, const BlockRef& block) {
  ApplyTarget target;
  target.window = view != nullptr ? data : data + block.first_element * element_size(dtype);
  target.dtype = dtype;
  target.view = view;
  return target;
}

/// Decodes a block completely, then writes its changes to `target`, or undoes them with Direction::kInverse. Returns
/// the number of elements that the block lists as changed. Throws, before it writes anything, Error{kCorrupt} for an
/// invalid block, and kWrongBase for a `context` block that was encoded against other old bits. kInverse is possible
/// for the value codecs `xor` and `ulp`, but not for a `context` block, whose positions depend on the bits before the
/// change (Error{kUsage}).
std::uint32_t apply_block(const BlockRef& block, const ApplyTarget& target, Direction direction, ApplyScratch& scratch);

/// Undoes a `raw` block. `replaced` begins with the bits that apply_block() appended to ApplyTarget::replaced for this
/// block. Returns the number of bytes of `replaced` that belong to this block.
std::size_t restore_block(const BlockRef& block, const ApplyTarget& target, ConstBytes replaced, ApplyScratch& scratch);

}  // namespace sparsecast
