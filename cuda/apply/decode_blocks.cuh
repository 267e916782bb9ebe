// SPDX-License-Identifier: Apache-2.0
#pragma once

// Decodes one block with all threads of a CTA, kDecodeChunk changes at a time, and checks every rule of
// docs/wire-format.md §4. Bounds from the payload are always checked: BitString bounds the reads, clipped counts index
// shared memory, and only elements below `span` are written.

#include "cuda/apply/decode_values.cuh"
#include "cuda/common/views.cuh"

namespace sparsecast::cuda {

/// Returns the number of coded words in the block: the number of its elements if its positions are `dense`, otherwise
/// the number of its changes.
__device__ inline std::uint32_t coded_words(const ReceivedBlock& block) {
  return Coding::unpack(block.coding).positions == PositionCodec::kDense ? block.span : block.changed;
}

/// Returns the codec of the block's values, which is the same for all blocks of a delta.
__device__ inline ValueCodec values_of(const ReceivedBlock& block) { return Coding::unpack(block.coding).values; }

/// Decodes a block chunk by chunk, and calls sink(first, entries) for each chunk. During the call, entries [0, entries)
/// of shared.positions and shared.coded hold changes [first, first + entries) of the block. Stops before the call for a
/// chunk in which any thread finds an input error. Returns the error that this thread has found. The caller may reuse
/// `shared` after its next barrier.
template <class T, class Sink>
__device__ InputError decode_block(const ReceivedBlock& block, DecodeShared<T>& shared, const Sink& sink) {
  if (block.payload_words > kMostPayloadWords) return InputError::kLength;
  FirstInputError found;
  const std::uint32_t count = coded_words(block);
  PositionDecoder positions(block.coding, block.span, count, {block.payload, block.payload_words}, shared, found);
  ValueDecoder<T> values(block.coding, count, shared, found);
  const BitString rest = positions.locate();
  if (found.any()) return found.input_error;
  values.locate(rest);
  if (found.any()) return found.input_error;
  for (std::uint32_t first = 0; first < count; first += kDecodeChunk) {
    const std::uint32_t entries = count - first < kDecodeChunk ? count - first : kDecodeChunk;
    positions.read(first, entries);
    values.read(first, entries);
    // any() is also the barrier between decoding and use.
    if (found.any()) break;
    sink(first, entries);
    // After the last chunk, the caller provides the barrier.
    if (first + kDecodeChunk < count) __syncthreads();
  }
  return found.input_error;
}

/// Returns the address of the coded word of the block's first entry.
template <class T>
__device__ T* entry_words(const Received& received, const ReceivedBlock& block) {
  return in_global(reinterpret_cast<T*>(received.entry_words + block.first_change * received.entry_word_bytes));
}

/// Decodes a block and calls sink(block, first, entries) for each chunk, as decode_block() does. First calls
/// enter(block), which may use `shared` for other purposes. Does nothing for a block whose elements do not have the
/// size of T, or that has `context` positions. Records an input error in `error_word`, a word of the control.
template <class T, class Enter, class Sink>
__device__ void decode_one(const Received& received, const ReceivedBlock& block, DecodeShared<T>& shared,
                           std::uint64_t* error_word, const Enter& enter, const Sink& sink) {
  if (block.element_shift != kShiftOf<T> || is_context(block)) return;
  enter(block);
  const InputError input_error =
      decode_block<T>(block, shared, [&](std::uint32_t first, std::uint32_t entries) { sink(block, first, entries); });
  if (input_error != InputError::kNone) {
    const auto number = static_cast<std::uint32_t>(&block - received.blocks);
    refuse_block(error_word, number, input_error);
  }
  __syncthreads();
}

/// Calls sink(block, positions, words, entries) for the changes of the validated blocks [at, end), chunk by chunk.
/// Skips blocks whose elements do not have the size of T. Decodes each block, except that it uses the stored entries of
/// a block with `context` positions. CTA n takes block n of the range and every gridDim.x-th block after it.
template <class T, class Sink>
__device__ void decode_range(const Received& received, const ReceivedBlock* at, const ReceivedBlock* end,
                             DecodeShared<T>& shared, const Sink& sink) {
  std::uint64_t* const error_word = &received.control->changed_input_error;
  for (at += blockIdx.x; at < end; at += gridDim.x) {
    if (is_context(*at) && at->element_shift == kShiftOf<T>) {
      sink(*at, in_global(received.entry_positions + at->first_change), entry_words<T>(received, *at), at->changed);
    }
    decode_one<T>(
        received, *at, shared, error_word, [](const ReceivedBlock&) {},
        [&](const ReceivedBlock& block, std::uint32_t, std::uint32_t entries) {
          sink(block, shared.positions, shared.coded, entries);
        });
  }
}

/// Calls decode_one() for the blocks that are listed in received.cta_blocks; a whole CTA decodes each of them.
template <class T, class Enter, class Sink>
__device__ void decode_listed(const Received& received, DecodeShared<T>& shared, std::uint64_t* error_word,
                              const Enter& enter, const Sink& sink) {
  const std::uint32_t count = received.control->cta_blocks;
  for (std::uint32_t i = blockIdx.x; i < count; i += gridDim.x) {
    decode_one<T>(received, received.blocks[received.cta_blocks[i]], shared, error_word, enter, sink);
  }
}

/// Returns a reference to the element with row-major index `index` of the live tensor.
template <class T>
__device__ T& live_element(const Received& received, const LiveTensor& tensor, std::uint64_t index) {
  return reinterpret_cast<T*>(tensor.data)[place_of(view_at(received.views, tensor.view), index)];
}

/// Returns the index that the digest uses for the element with row-major index `index`.
__device__ inline std::uint64_t digest_index(const Received& received, const LiveTensor& tensor, std::uint64_t index) {
  return digest_place(view_at(received.views, tensor.digest_view), index);
}

}  // namespace sparsecast::cuda
