#pragma once

// Decodes one block by all threads of a block of threads together, kDecodeChunk changes at a time, whatever their
// number; checks every rule of docs/wire-format.md §4 on the way. No bound comes from the payload unchecked: reads go
// through BitString, shared memory is indexed by counts that were clipped, elements are written below `span` only.

#include "decode_values.cuh"

namespace sparsecast::cuda {

/// The block holds `dense` words for all its elements, or words for its changes.
__device__ inline std::uint32_t coded_words(const ReceivedBlock& block) {
  return Coding::unpack(block.coding).positions == PositionCodec::kDense ? block.span : block.changed;
}

/// Calls sink(first, entries) for each chunk: entries [0, entries) of shared.positions and shared.coded are those of
/// changes `first` on. Ends at the chunk in which any thread found a refusal, without calling it. Returns the thread's
/// own refusal.
template <class T, class Sink>
__device__ Refusal decode_block(const ReceivedBlock& block, DecodeShared<T>& shared, const Sink& sink) {
  if (block.payload_words > kMostPayloadWords) return Refusal::kLength;
  FirstRefusal found;
  const std::uint32_t count = coded_words(block);
  PositionDecoder positions(block.coding, block.span, count, {block.payload, block.payload_words}, shared, found);
  ValueDecoder<T> values(block.coding, count, shared, found);
  const BitString rest = positions.locate();
  if (found.any()) return found.refusal;
  values.locate(rest);
  if (found.any()) return found.refusal;
  for (std::uint32_t first = 0; first < count; first += kDecodeChunk) {
    const std::uint32_t entries = count - first < kDecodeChunk ? count - first : kDecodeChunk;
    positions.read(first, entries);
    values.read(first, entries);
    // Also the barrier between what was decoded and its use.
    if (found.any()) break;
    sink(first, entries);
    __syncthreads();
  }
  return found.refusal;
}

}  // namespace sparsecast::cuda
