// SPDX-License-Identifier: Apache-2.0
#pragma once

// decode_context decodes the `context` blocks of a delta against the live tensors before the pause. It keeps the result
// as entries, which are written in the pause like those of other blocks. It must run before the pause, because the
// places can be decoded only from the old words. A CTA takes one block after another. It reads the payload twice, every
// old word of the block once, and the memory sector of each changed element once more. It writes the entries and 4
// bytes of scratch for each change, but not the live tensors. Lower bound: reading the old words once.
// Grid: as many CTAs as are resident.

#include "cuda/apply/context_values.cuh"
#include "cuda/apply/decode_blocks.cuh"
#include "cuda/common/policies.hpp"

namespace sparsecast::cuda {

struct ContextShared : PositionsShared, ExceptionsShared {
  ContextHead head;
  PlacesShared places;
};

/// Returns the location of the block's old words in the live tensor.
template <class T>
__device__ OldWords<T> old_words_of(const Received& received, const ReceivedBlock& block) {
  const LiveTensor& tensor = received.tensors[block.tensor];
  const std::uint64_t first = std::uint64_t{block.first_tile} * kTileElems;
  OldWords<T> old;
  old.view = view_at(received.views, tensor.view);
  old.data = reinterpret_cast<const T*>(tensor.data) + (old.view == nullptr ? first : 0);
  old.first = old.view == nullptr ? 0 : first;
  old.span = block.span;
  old.vectors = old.view == nullptr && reinterpret_cast<std::uintptr_t>(old.data) % 16 == 0;
  return old;
}

/// Decodes one block with `context` positions, and stores the positions and coded words of its changes as its entries.
/// Returns the input error that this thread has found. No barrier is needed before the next call with the same
/// `shared`.
template <class T>
__device__ InputError decode_context_block(const Received& received, const ReceivedBlock& block,
                                           ContextShared& shared) {
  if (block.payload_words > kMostPayloadWords) return InputError::kLength;
  FirstInputError found;
  std::uint32_t* const changes = in_global(received.changes + block.first_change);
  std::uint32_t* const positions = in_global(received.entry_positions + block.first_change);
  RankDecoder ranks({block.payload, block.payload_words}, block.span, block.changed, shared, shared.head, found);
  const BitString values = ranks.decode(changes);
  if (found.any()) return found.input_error;
  const OldWords<T> old = old_words_of<T>(received, block);
  const ExponentField field = exponent_field(received.tensors[block.tensor].dtype);
  const bool placed =
      shared.head.classes.count > 8
          ? ChangePlacer<T, true>(old, field, shared.head, changes, positions, shared.places, shared.scan).place()
          : ChangePlacer<T, false>(old, field, shared.head, changes, positions, shared.places, shared.scan).place();
  found.require(placed, InputError::kBase);
  if (found.any()) return found.input_error;
  ContextValueDecoder<T> decoder(values, block.changed, changes, entry_words<T>(received, block), shared, found);
  decoder.decode(Coding::unpack(block.coding).ke, shared);
  return found.input_error;
}

template <class T>
__global__ void __launch_bounds__(kThreads, kPolicy.decode.context_ctas) decode_context(Received received) {
  SPARSECAST_SHARED(ContextShared, shared);
  if (received.control->directory_input_error != kNoInputError) return;
  const std::uint32_t count = received.control->cta_blocks;
  for (std::uint32_t i = blockIdx.x; i < count; i += gridDim.x) {
    const std::uint32_t number = received.cta_blocks[i];
    const ReceivedBlock& block = received.blocks[number];
    if (block.element_shift != kShiftOf<T> || !is_context(block)) continue;
    const InputError input_error = decode_context_block<T>(received, block, shared);
    if (input_error != InputError::kNone) refuse_block(&received.control->block_input_error, number, input_error);
  }
}

}  // namespace sparsecast::cuda
