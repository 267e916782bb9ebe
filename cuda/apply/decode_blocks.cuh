#pragma once

// Decodes one block by all threads of a CTA together, kDecodeChunk changes at a time, whatever their
// number; checks every rule of docs/wire-format.md §4 on the way. No bound comes from the payload unchecked: reads go
// through BitString, shared memory is indexed by counts that were clipped, elements are written below `span` only.

#include "cuda/apply/decode_values.cuh"
#include "cuda/common/views.cuh"

namespace sparsecast::cuda {

/// The block holds `dense` words for all its elements, or words for its changes.
__device__ inline std::uint32_t coded_words(const ReceivedBlock& block) {
  return Coding::unpack(block.coding).positions == PositionCodec::kDense ? block.span : block.changed;
}

/// Calls sink(first, entries) for each chunk: entries [0, entries) of shared.positions and shared.coded are those of
/// changes `first` on. Ends at the chunk in which any thread found a input error, without calling it. Returns the thread's
/// own input error. `shared` is free for other uses behind the caller's next barrier.
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
    // Also the barrier between what was decoded and its use.
    if (found.any()) break;
    sink(first, entries);
    // Behind the last chunk the barrier is the caller's.
    if (first + kDecodeChunk < count) __syncthreads();
  }
  return found.input_error;
}

/// Decodes the blocks of elements of T in [at, end), the n-th by CTA n % gridDim.x: calls enter(block),
/// while `shared` is free for other uses, then sink(block, first, entries) for each chunk as above. What is refused
/// goes into the control's error word.
template <class T, class Enter, class Sink>
__device__ void decode_range(const Received& received, const ReceivedBlock* at, const ReceivedBlock* end,
                             DecodeShared<T>& shared, const Enter& enter, const Sink& sink) {
  constexpr std::uint32_t kShift = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
  // By pointer alone: a number beside it would be a register too many.
  for (at += blockIdx.x; at < end; at += gridDim.x) {
    const ReceivedBlock& block = *at;
    if (block.element_shift != kShift) continue;
    enter(block);
    const InputError input_error = decode_block<T>(
        block, shared, [&](std::uint32_t first, std::uint32_t entries) { sink(block, first, entries); });
    if (input_error != InputError::kNone) {
      refuse_block(&received.control->block_input_error, static_cast<std::uint32_t>(at - received.blocks), input_error);
    }
    __syncthreads();
  }
}

/// Row-major element `index` of the live tensor.
template <class T>
__device__ T& live_element(const Received& received, const LiveTensor& tensor, std::uint64_t index) {
  return reinterpret_cast<T*>(tensor.data)[place_of(view_at(received.views, tensor.view), index)];
}

/// The same element's index in the digest.
__device__ inline std::uint64_t digest_index(const Received& received, const LiveTensor& tensor, std::uint64_t index) {
  return digest_place(view_at(received.views, tensor.digest_view), index);
}

}  // namespace sparsecast::cuda
