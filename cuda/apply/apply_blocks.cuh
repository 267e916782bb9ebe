// SPDX-License-Identifier: Apache-2.0
#pragma once

// decode_blocks decodes the blocks of a delta and either validates them or writes them to the live tensors. Validation
// reads the payloads once. Apply reads them again, reads and writes the changed elements, and sums the change of the
// state digest in the same pass. It writes nothing if validation found any error in the delta. digest_live reads live
// tensors in full. Grid: a few CTAs on each multiprocessor; each CTA takes one block of its element size after another.

#include "cuda/apply/decode_blocks.cuh"
#include "cuda/apply/directories.cuh"

namespace sparsecast::cuda {

/// CTAs on a multiprocessor, as many as the registers allow. Decoding waits at barriers often, and several resident
/// CTAs hide each other's waits.
inline constexpr unsigned kValidateCtas = 4;
inline constexpr unsigned kApplyCtas = 3;

template <class T>
struct ApplyShared {
  union {
    DecodeShared<T> decode;
    CtaDigest::TempStorage digest;
  };
  std::uint32_t summed;  ///< Index of the tensor whose digest change is being summed, or kNoTensor.
};

inline constexpr std::uint32_t kNoTensor = ~std::uint32_t{0};

template <class T, bool kWrite>
__global__ void __launch_bounds__(kThreads, resident_ctas(kWrite ? kApplyCtas : kValidateCtas))
    decode_blocks(Received received, Pass pass) {
  SPARSECAST_SHARED(ApplyShared<T>, shared);
  ReceiveControl& control = *received.control;
  if (threadIdx.x == 0) shared.summed = kNoTensor;
  // All threads must take the same branch, although another CTA may report an error while they read the control.
  const bool refused =
      control.directory_input_error != kNoInputError || (kWrite && control.block_input_error != kNoInputError);
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
    // Other threads read it after the barrier at the end of the block.
    if (threadIdx.x == 0) shared.summed = block.tensor;
  };
  const auto sink = [&](const ReceivedBlock& block, std::uint32_t first, std::uint32_t entries) {
    if constexpr (kWrite) {
      const LiveTensor& tensor = received.tensors[block.tensor];
      const std::uint64_t first_element = std::uint64_t{block.first_tile} * kTileElems;
      // Computed again for each element: kept in a register, it would take the place of a load in flight.
      const auto undo = [&](std::uint32_t i) -> T& {
        return reinterpret_cast<T*>(received.undo + received.frame_undo[block.frame] + block.undo)[first + i];
      };
      // Loads two elements before it writes the first: the loads miss every cache and would otherwise wait for one
      // another. Registers do not suffice for four, or for two of 8 bytes.
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
              changed_bits(old_bits[e], coded, pass == Pass::kRestore ? ValueCodec::kRaw : values_of(block),
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

/// Number of tiles of a section that a CTA sums at a time.
inline constexpr std::uint32_t kDigestTiles = 16;

/// Adds the digest of each tensor, read in full, to `sums`: two words (low, high) for each tensor, zero before the
/// launch.
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
