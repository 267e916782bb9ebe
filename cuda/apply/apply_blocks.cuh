#pragma once

// Decodes the blocks of a delta and validates them, or writes them to the live tensors. Validation reads the payloads
// once. Apply reads them again, reads and writes the changed elements, and sums the change of the digest on the way; it
// writes nothing when anything in the delta was refused. Grid: some CTAs a multiprocessor, each takes
// block after block of its element size.

#include "cuda/apply/decode_blocks.cuh"
#include "cuda/apply/directories.cuh"

namespace sparsecast::cuda {

/// CTAs on a multiprocessor, as many as registers allow: decoding waits for barriers, and several hide
/// each other's waits.
inline constexpr unsigned kValidateBlocks = 4;
inline constexpr unsigned kApplyBlocks = 3;

template <class T>
struct ApplyShared {
  union {
    DecodeShared<T> decode;
    BlockDigest::TempStorage digest;
  };
  std::uint32_t summed;  ///< The tensor whose change of digest the threads are adding up.
};

inline constexpr std::uint32_t kNoTensor = ~std::uint32_t{0};

template <class T, bool kWrite>
__global__ void __launch_bounds__(kThreads, resident_blocks(kWrite ? kApplyBlocks : kValidateBlocks))
    decode_blocks(Received received, Pass pass) {
  SPARSECAST_SHARED(ApplyShared<T>, shared);
  ReceiveControl& control = *received.control;
  if (threadIdx.x == 0) shared.summed = kNoTensor;
  // One decision for all threads of the block, because another block may refuse something while they look.
  const bool refused = control.directory_input_error != kNoInputError || (kWrite && control.block_input_error != kNoInputError);
  if (__syncthreads_or(refused ? 1 : 0) != 0) return;
  DigestSum sum;
  const auto pass_sum_on = [&] {
    if (shared.summed == kNoTensor) return;
    std::uint64_t* const words = received.digest_changes + 2 * std::uint64_t{shared.summed};
    add_to_digest(shared.digest, sum, words, words + 1);
  };
  const auto enter = [&](const ReceivedBlock& block) {
    if (!kWrite || block.tensor == shared.summed) return;
    pass_sum_on();
    sum = {};
    __syncthreads();
    // Read again behind the barrier at the end of the block.
    if (threadIdx.x == 0) shared.summed = block.tensor;
  };
  const auto sink = [&](const ReceivedBlock& block, std::uint32_t first, std::uint32_t entries) {
    if constexpr (kWrite) {
      const LiveTensor& tensor = received.tensors[block.tensor];
      const std::uint64_t first_element = std::uint64_t{block.first_tile} * kTileElems;
      // Found again for each element: kept, it would cost registers that two loads in flight need.
      const auto undo = [&](std::uint32_t i) -> T& {
        return reinterpret_cast<T*>(received.undo + received.frame_undo[block.frame] + block.undo)[first + i];
      };
      // Two elements are on their way before the first is written: the loads miss every cache, and would else wait for
      // one another. With four, or with two of 8 bytes, the registers do not suffice.
      constexpr std::uint32_t kInFlight = sizeof(T) < 8 ? 2 : 1;
      for (std::uint32_t begin = threadIdx.x; begin < entries; begin += kInFlight * kThreads) {
        T* at[kInFlight] = {};
        T old_bits[kInFlight] = {};
        SPARSECAST_UNROLL
        for (std::uint32_t e = 0; e < kInFlight; ++e) {
          const std::uint32_t i = begin + e * kThreads;
          if (i >= entries || shared.decode.positions[i] >= block.span) continue;
          at[e] = &live_element<T>(received, tensor, first_element + shared.decode.positions[i]);
          old_bits[e] = *at[e];
        }
        SPARSECAST_UNROLL
        for (std::uint32_t e = 0; e < kInFlight; ++e) {
          if (at[e] == nullptr) continue;
          const std::uint32_t i = begin + e * kThreads;
          const T coded = pass == Pass::kRestore ? undo(i) : shared.decode.coded[i];
          const T new_bits =
              changed_bits(old_bits[e], coded, pass == Pass::kRestore ? ValueCodec::kRaw : received.values,
                           tensor.floating, pass == Pass::kInverse);
          *at[e] = new_bits;
          digest_replace(sum, tensor.key_lo, tensor.key_hi,
                         digest_index(received, tensor, first_element + shared.decode.positions[i]), old_bits[e],
                         new_bits);
          if (received.undo != nullptr && pass != Pass::kRestore) undo(i) = old_bits[e];
        }
      }
    }
  };
  decode_range<T>(received, received.blocks, received.blocks + received.block_count, shared.decode, enter, sink);
  if constexpr (kWrite) pass_sum_on();
}

/// Tiles of a section that a CTA adds up at a time.
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
    const StridedView* const view = view_at(received.views, tensor.view);
    const StridedView* const digest_view = view_at(received.views, tensor.digest_view);
    const std::uint64_t begin = (std::uint64_t{section.first_tile} + item % kSlices * kDigestTiles) * kTileElems;
    if (begin >= tensor.elements) continue;
    const std::uint64_t most = begin + std::uint64_t{kDigestTiles} * kTileElems;
    const std::uint64_t end = most < tensor.elements ? most : tensor.elements;
    DigestSum sum;
    for (std::uint64_t i = begin + threadIdx.x; i < end; i += kThreads) {
      const std::int64_t at = place_of(view, i);
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
      digest_add(sum, digest_multiplier(tensor.key_lo, digest_place(digest_view, i)),
                 digest_multiplicand(tensor.key_hi, bits));
    }
    add_to_digest(shared.digest, sum, &sums[2 * section.tensor], &sums[2 * section.tensor + 1]);
  }
}

}  // namespace sparsecast::cuda
