// SPDX-License-Identifier: Apache-2.0
#pragma once

// decode_runs and decode_blocks decode the blocks of a delta and either validate them or write them to the live
// tensors. decode_runs decodes a block with one warp; decode_blocks decodes with a CTA the blocks that a warp cannot
// decode. Validation reads the payloads once, and decode_runs keeps the decoded entries if there is memory for them.
// Apply uses the entries (write_entries) or else reads the payloads again. It reads and writes the changed elements,
// and sums the change of the state digest in the same pass. It writes nothing if validation found any error in the
// delta. decode_context (decode_context.cuh) handles the blocks with `context` positions, which always have entries.
// Grids: a few CTAs on each multiprocessor; each takes one block of its element size after another.

#include "cuda/apply/decode_blocks.cuh"
#include "cuda/apply/decode_runs.cuh"
#include "cuda/apply/directories.cuh"
#include "cuda/common/policies.hpp"

namespace sparsecast::cuda {

/// Returns how many CTAs of decode_blocks one multiprocessor holds at once. `kWrite` is true for the passes that write
/// weights, false for validation.
template <class T, bool kWrite>
constexpr unsigned decode_ctas(const DecodePolicy& policy) {
  if (!kWrite) return policy.validate_ctas;
  return sizeof(T) < 4 ? policy.apply_ctas : policy.wide_apply_ctas;
}
/// Number of warps in a CTA of decode_runs.
template <class T>
inline constexpr unsigned kDecodeWarps = DecodePolicy::run_warps(sizeof(T));

inline constexpr std::uint32_t kNoTensor = ~std::uint32_t{0};

/// Returns whether an earlier pass has recorded an error in the control, so that this pass must not run. `kWrite` is
/// true for passes that write weights.
template <bool kWrite>
__device__ bool is_refused(const ReceiveControl& control) {
  return control.directory_input_error != kNoInputError || (kWrite && control.block_input_error != kNoInputError);
}

/// Returns the address of the word of the control in which this pass records payload errors. It is not one of the words
/// that is_refused() reads in this pass.
template <bool kWrite>
__device__ std::uint64_t* error_word(const Received& received) {
  return kWrite ? &received.control->changed_input_error : &received.control->block_input_error;
}

/// A run of consecutive changes of one block that are written together, and how to apply them.
template <class T>
struct Changes {
  /// Position of each change in its block; always less than the block's span.
  const std::uint32_t* positions = nullptr;
  /// Coded word of each change.
  const T* words = nullptr;
  T* undo = nullptr;  ///< Array for the replaced bits of each change; null if they are not kept.
  std::uint32_t count = 0;
  ValueCodec codec = ValueCodec::kUlp;
  bool inverse = false;
};

/// Writes `changes` to a tensor and adds the resulting change of the tensor's digest to `sum`. place(position) returns
/// the address of a changed element, index(position) its index in the digest; a position counts from the start of the
/// block. Each thread loads kInFlight elements at once, because the loads miss every cache and would otherwise wait for
/// one another.
template <class Threads, std::uint32_t kInFlight, class T, class Place, class Index>
__device__ void write_changes_at(const Changes<T>& changes, const LiveTensor& tensor, std::uint64_t key_lo,
                                 const Place& place, const Index& index, DigestSum& sum) {
  for (std::uint32_t begin = Threads::rank(); begin < changes.count; begin += kInFlight * Threads::kCount) {
    std::uint32_t position[kInFlight];
    T old_bits[kInFlight];
    SPARSECAST_UNROLL
    for (std::uint32_t e = 0; e < kInFlight; ++e) {
      const std::uint32_t i = begin + e * Threads::kCount;
      // Past the end, a thread reads its own first element again, which no other thread writes.
      position[e] = changes.positions[i < changes.count ? i : begin];
      old_bits[e] = *place(position[e]);
    }
    SPARSECAST_UNROLL
    for (std::uint32_t e = 0; e < kInFlight; ++e) {
      const std::uint32_t i = begin + e * Threads::kCount;
      if (i >= changes.count) break;
      const T new_bits = changed_bits(old_bits[e], changes.words[i], changes.codec, tensor.order, changes.inverse);
      *place(position[e]) = new_bits;
      digest_replace(sum, key_lo, tensor.key_hi, index(position[e]), old_bits[e], new_bits);
      if (changes.undo != nullptr) changes.undo[i] = old_bits[e];
    }
  }
}

/// Writes the changes [first, first + entries) of a block to the live tensor. The arrays `positions` and `coded` hold
/// the positions and coded words of just these changes. Also stores the replaced bits, if they are kept, and adds the
/// change of the tensor's digest to `sum`.
template <class Threads, std::uint32_t kInFlight, class T>
__device__ void write_changes(const Received& received, const ReceivedBlock& block, Pass pass,
                              const std::uint32_t* positions, const T* coded, std::uint32_t first,
                              std::uint32_t entries, DigestSum& sum) {
  // A copy: stores to elements could change the original, as far as the compiler knows.
  const LiveTensor tensor = received.tensors[block.tensor];
  T* const undo = received.undo == nullptr
                      ? nullptr
                      : reinterpret_cast<T*>(received.undo + received.frame_undo[block.frame] + block.undo) + first;
  Changes<T> changes{positions, coded, undo, entries, values_of(block), pass == Pass::kInverse};
  if (pass == Pass::kRestore) {
    changes.words = undo;
    changes.undo = nullptr;
    changes.codec = ValueCodec::kRaw;
  }
  const std::uint64_t first_element = std::uint64_t{block.first_tile} * kTileElems;
  const StridedView* const view = view_at(received.views, tensor.view);
  const StridedView* const digest_view = view_at(received.views, tensor.digest_view);
  T* const data = in_global(reinterpret_cast<T*>(tensor.data));
  if (view == nullptr && digest_view == nullptr) {
    T* const begin = data + first_element;
    write_changes_at<Threads, kInFlight>(
        changes, tensor, tensor.key_lo + first_element * kDigestStep,
        [begin](std::uint32_t position) { return in_global(begin + position); },
        [](std::uint32_t position) { return std::uint64_t{position}; }, sum);
  } else {
    write_changes_at<Threads, 1>(
        changes, tensor, tensor.key_lo,
        [&](std::uint32_t position) { return in_global(data + place_of(view, first_element + position)); },
        [&](std::uint32_t position) { return digest_place(digest_view, first_element + position); }, sum);
  }
}

template <class T>
struct DecodeRunsShared {
  RunDecoded<T> warps[kDecodeWarps<T>];
};
template <class T>
inline constexpr bool kDecodedRunsAreResident = kPolicy.decode.run_ctas*(sizeof(DecodeRunsShared<T>) +
                                                                         kSystemSharedBytes) <= kPolicy.shared_bytes;
static_assert(kDecodedRunsAreResident<std::uint8_t> && kDecodedRunsAreResident<std::uint16_t> &&
              kDecodedRunsAreResident<std::uint32_t> && kDecodedRunsAreResident<std::uint64_t>);

/// One lane's sum of the digest changes that its writes to the current tensor cause. A warp writes blocks of one tensor
/// after another.
struct RunDigest {
  DigestSum sum;
  std::uint32_t tensor = kNoTensor;

  /// Must be called before a block of tensor number `next` is written. If `next` is not the current tensor, calls
  /// pass_on() for the current tensor and begins a new sum.
  __device__ void enter(const Received& received, std::uint32_t next) {
    if (next == tensor) return;
    pass_on(received);
    sum = {};
    tensor = next;
  }
  /// Adds the sums of all lanes to the digest change of the current tensor in global memory. All lanes must call it.
  __device__ void pass_on(const Received& received) const {
    if (tensor == kNoTensor) return;
    std::uint64_t* const words = received.digest_changes + 2 * std::uint64_t{tensor};
    add_lanes_to_digest(sum, words, words + 1);
  }
};

/// Stores the decoded changes of a block, which are in `run`, as the block's entries in global memory.
template <class T>
__device__ void keep_entries(const Received& received, const ReceivedBlock& block, const RunDecoded<T>& run) {
  std::uint32_t* const positions = in_global(received.entry_positions + block.first_change);
  T* const words = entry_words<T>(received, block);
  for (std::uint32_t i = WarpThreads::rank(); i < block.changed; i += 32) {
    positions[i] = run.positions[i];
    words[i] = run.coded[i];
  }
}

template <class T, bool kWrite>
__global__ void __launch_bounds__(32 * kDecodeWarps<T>, kPolicy.decode.run_ctas)
    decode_runs(Received received, Pass pass) {
  SPARSECAST_SHARED(DecodeRunsShared<T>, shared);
  // All lanes must take the same branch, although another CTA may report an error while they read the control.
  if (WarpThreads::any(is_refused<kWrite>(*received.control))) return;
  RunDecoded<T>& run = shared.warps[threadIdx.x / 32];
  RunDigest digest;
  for (std::uint32_t b = blockIdx.x * kDecodeWarps<T> + threadIdx.x / 32; b < received.block_count;
       b += gridDim.x * kDecodeWarps<T>) {
    ReceivedBlock& block = received.blocks[b];
    if (block.element_shift != kShiftOf<T> || block.for_cta) continue;
    if (!decode_run(block, run)) {
      // In validation, a CTA decodes the block again to find the reason. In a later pass, the block has changed since.
      if (WarpThreads::rank() == 0) {
        if (kWrite) {
          refuse_block(error_word<kWrite>(received), b, InputError::kLength);
        } else {
          list_for_cta(received, b, block);
        }
      }
    } else if constexpr (kWrite) {
      digest.enter(received, block.tensor);
      write_changes<WarpThreads, DecodePolicy::lane_in_flight(sizeof(T))>(received, block, pass, run.positions,
                                                                          run.coded, 0, block.changed, digest.sum);
    } else if (received.entry_positions != nullptr) {
      keep_entries(received, block, run);
    }
  }
  if constexpr (kWrite) digest.pass_on(received);
}

/// Writes the changes of the blocks that have entries to the live tensors. It reads positions and coded words from the
/// entries and decodes no payload; it sums digest changes and stores replaced bits as decode_runs<T, true> does.
template <class T>
__global__ void __launch_bounds__(kThreads, kPolicy.decode.write_ctas) write_entries(Received received, Pass pass) {
  if (WarpThreads::any(is_refused<true>(*received.control))) return;
  RunDigest digest;
  for (std::uint32_t b = blockIdx.x * (kThreads / 32) + threadIdx.x / 32; b < received.block_count;
       b += gridDim.x * (kThreads / 32)) {
    const ReceivedBlock& block = received.blocks[b];
    if (block.element_shift != kShiftOf<T> || (block.for_cta && !is_context(block))) continue;
    digest.enter(received, block.tensor);
    write_changes<WarpThreads, DecodePolicy::lane_in_flight(sizeof(T))>(
        received, block, pass, in_global(received.entry_positions + block.first_change),
        entry_words<T>(received, block), 0, block.changed, digest.sum);
  }
  digest.pass_on(received);
}

template <class T>
struct ApplyShared {
  union {
    DecodeShared<T> decode;
    CtaDigest::TempStorage digest;
  };
  /// Each thread's sum of digest changes. It is in shared memory, because registers are needed for decoding.
  DigestSum sums[kThreads];
  std::uint32_t summed;  ///< Index of the tensor whose digest change is being summed, or kNoTensor.
};

template <class T, bool kWrite>
__global__ void __launch_bounds__(kThreads, decode_ctas<T, kWrite>(kPolicy.decode))
    decode_blocks(Received received, Pass pass) {
  SPARSECAST_SHARED(ApplyShared<T>, shared);
  if (threadIdx.x == 0) shared.summed = kNoTensor;
  // All threads must take the same branch, although another CTA may report an error while they read the control.
  if (__syncthreads_or(is_refused<kWrite>(*received.control) ? 1 : 0) != 0) return;
  shared.sums[threadIdx.x] = {};
  const auto pass_sum_on = [&] {
    if (shared.summed == kNoTensor) return;
    std::uint64_t* const words = received.digest_changes + 2 * std::uint64_t{shared.summed};
    add_to_digest(shared.digest, shared.sums[threadIdx.x], words, words + 1);
  };
  const auto enter = [&](const ReceivedBlock& block) {
    if (!kWrite || block.tensor == shared.summed) return;
    pass_sum_on();
    shared.sums[threadIdx.x] = {};
    __syncthreads();
    // Other threads read `summed` after the barrier at the end of the block.
    if (threadIdx.x == 0) shared.summed = block.tensor;
  };
  const auto sink = [&](const ReceivedBlock& block, std::uint32_t first, std::uint32_t entries) {
    if constexpr (kWrite) {
      DigestSum sum = shared.sums[threadIdx.x];
      // There are not enough registers for more elements in flight.
      write_changes<CtaThreads, DecodePolicy::cta_in_flight(sizeof(T))>(received, block, pass, shared.decode.positions,
                                                                        shared.decode.coded, first, entries, sum);
      shared.sums[threadIdx.x] = sum;
    }
  };
  decode_listed<T>(received, shared.decode, error_word<kWrite>(received), enter, sink);
  if constexpr (kWrite) pass_sum_on();
}

}  // namespace sparsecast::cuda
