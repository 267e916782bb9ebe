#pragma once

// Decodes the blocks of a delta and validates them, or writes them to the live tensors. Validation reads the payloads
// once. Apply reads them again, reads and writes the changed elements, and sums the change of the digest on the way; it
// writes nothing when anything in the delta was refused. Grid: some blocks of threads a multiprocessor, each takes
// block after block of its element size.

#include "decode_blocks.cuh"
#include "directories.cuh"

namespace sparsecast::cuda {

/// Blocks of threads on a multiprocessor, as many as registers allow: decoding waits for barriers, and several hide
/// each other's waits.
inline constexpr unsigned kValidateBlocks = 4;
inline constexpr unsigned kApplyBlocks = 3;

/// Offset of row-major element `index`, in elements.
__device__ inline std::int64_t strided_offset(const StridedView& view, std::uint64_t index) {
  std::int64_t offset = 0;
  for (std::uint32_t d = view.rank; d > 0; --d) {
    offset += static_cast<std::int64_t>(index % view.shape[d - 1]) * view.strides[d - 1];
    index /= view.shape[d - 1];
  }
  return offset;
}

template <class T>
__device__ T changed_bits(T old_bits, T coded, Pass pass, ValueCodec values, bool floating) {
  if (pass == Pass::kRestore || values == ValueCodec::kRaw) return coded;
  if (values == ValueCodec::kXor) return static_cast<T>(old_bits ^ coded);
  return ulp_advance(old_bits, pass == Pass::kForward ? coded : static_cast<T>(T{0} - coded), floating);
}

template <class T>
struct ApplyShared {
  union {
    DecodeShared<T> decode;
    BlockDigest::TempStorage digest;
  };
};

inline constexpr std::uint32_t kNoTensor = ~std::uint32_t{0};

template <class T, bool kWrite>
__global__ void __launch_bounds__(kThreads, kWrite ? kApplyBlocks : kValidateBlocks)
    decode_blocks(Received received, Pass pass) {
  SPARSECAST_SHARED(ApplyShared<T>, shared);
  constexpr std::uint32_t kShift = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
  ReceiveControl& control = *received.control;
  if (control.directory_refusal != kNoRefusal || (kWrite && control.block_refusal != kNoRefusal)) return;
  DigestSum sum;
  std::uint32_t summed = kNoTensor;  // The tensor that `sum` belongs to; the same for all threads.
  const auto pass_sum_on = [&] {
    if (summed == kNoTensor) return;
    std::uint64_t* const words = received.digest_changes + 2 * std::uint64_t{summed};
    add_to_digest(shared.digest, sum, words, words + 1);
  };
  for (std::uint32_t b = blockIdx.x; b < received.block_count; b += gridDim.x) {
    if (received.blocks[b].element_shift != kShift) continue;
    const ReceivedBlock& block = received.blocks[b];
    if (kWrite && block.tensor != summed) {
      pass_sum_on();
      sum = {};
      summed = block.tensor;
    }
    BlockDecoder<T> decoder(block, shared.decode);
    const Refusal refusal = decoder.decode([&](std::uint32_t first, std::uint32_t entries) {
      if constexpr (kWrite) {
        const LiveTensor& tensor = received.tensors[block.tensor];
        auto* const live = reinterpret_cast<T*>(tensor.data);
        const std::uint64_t first_element = std::uint64_t{block.first_tile} * kTileElems;
        T* const undo = received.undo == nullptr
                            ? nullptr
                            : reinterpret_cast<T*>(received.undo + received.frame_undo[block.frame] + block.undo);
        for (std::uint32_t i = threadIdx.x; i < entries; i += kThreads) {
          const std::uint32_t position = shared.decode.positions[i];
          if (position >= block.span) continue;
          const std::uint64_t index = first_element + position;
          T& element = live[tensor.strided ? strided_offset(received.views[block.tensor], index)
                                           : static_cast<std::int64_t>(index)];
          const T old_bits = element;
          const T coded = pass == Pass::kRestore ? undo[first + i] : shared.decode.coded[i];
          const T new_bits = changed_bits(old_bits, coded, pass, received.values, tensor.floating);
          element = new_bits;
          digest_replace(sum, tensor.key_lo, tensor.key_hi, index, old_bits, new_bits);
          if (undo != nullptr && pass != Pass::kRestore) undo[first + i] = old_bits;
        }
      }
    });
    if (refusal != Refusal::kNone) refuse_block(&control.block_refusal, b, refusal);
    __syncthreads();
  }
  if (kWrite) pass_sum_on();
}

/// Tiles of a section that a block of threads adds up at a time.
inline constexpr std::uint32_t kDigestTiles = 16;

/// The digest of each tensor, read in full: `sums` are the zeroed low and high words of each.
static __global__ void __launch_bounds__(kThreads)
    digest_live(Received received, const SectionEntry* sections, std::uint32_t section_count, std::uint64_t* sums) {
  SPARSECAST_SHARED(InspectShared, shared);
  constexpr std::uint32_t kSlices = kTilesPerSection / kDigestTiles;
  const std::uint64_t all = std::uint64_t{section_count} * kSlices;
  for (std::uint64_t item = blockIdx.x; item < all; item += gridDim.x) {
    const SectionEntry section = sections[item / kSlices];
    const LiveTensor& tensor = received.tensors[section.tensor];
    const std::uint64_t begin = (std::uint64_t{section.first_tile} + item % kSlices * kDigestTiles) * kTileElems;
    if (begin >= tensor.elements) continue;
    const std::uint64_t most = begin + std::uint64_t{kDigestTiles} * kTileElems;
    const std::uint64_t end = most < tensor.elements ? most : tensor.elements;
    DigestSum sum;
    for (std::uint64_t i = begin + threadIdx.x; i < end; i += kThreads) {
      const std::int64_t at =
          tensor.strided ? strided_offset(received.views[section.tensor], i) : static_cast<std::int64_t>(i);
      std::uint64_t bits = 0;
      switch (tensor.element_shift) {
        case 0:
          bits = reinterpret_cast<const std::uint8_t*>(tensor.data)[at];
          break;
        case 1:
          bits = reinterpret_cast<const std::uint16_t*>(tensor.data)[at];
          break;
        case 2:
          bits = reinterpret_cast<const std::uint32_t*>(tensor.data)[at];
          break;
        default:
          bits = reinterpret_cast<const std::uint64_t*>(tensor.data)[at];
      }
      digest_add(sum, digest_multiplier(tensor.key_lo, i), digest_multiplicand(tensor.key_hi, bits));
    }
    add_to_digest(shared.digest, sum, &sums[2 * section.tensor], &sums[2 * section.tensor + 1]);
  }
}

}  // namespace sparsecast::cuda
