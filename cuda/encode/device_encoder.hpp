// SPDX-License-Identifier: Apache-2.0
#pragma once

// Detects changes and encodes them on a device, into frames that equal those of encode_streams (src/memory/encoder.hpp)
// byte for byte. Plain C++ without a CUDA header, for code that chooses a backend.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/joined_tables.hpp"
#include "sparsecast/codec.hpp"
#include "sparsecast/delta.hpp"
#include "sparsecast/device.hpp"
#include "sparsecast/digest.hpp"
#include "sparsecast/tensor.hpp"

struct CUstream_st;

namespace sparsecast::cuda {

/// Device memory of one tensor that is compared with a snapshot. Pointers are aligned to their elements; detect runs at
/// full speed if both pointers are equal modulo 16 (docs/gpu.md). The caller owns the memory and must not change it
/// from start() until the enqueued work is done. Strides have the meaning of those in TensorRef, and are empty for
/// contiguous memory; no two elements of a snapshot may share an address.
struct CompareTensor {
  const void* d_current = nullptr;
  void* d_snapshot = nullptr;  ///< The snapshot: the bits that receivers hold.
  std::vector<std::int64_t> current_strides = {};
  std::vector<std::int64_t> snapshot_strides = {};
  /// True if `d_current` points to fp32 masters of a bf16 tensor. In that case, their cast to bf16 is compared.
  bool masters = false;
};
/// Device memory of one contiguous tensor whose snapshot is in pinned host memory. The snapshot is copied to the device
/// chunk by chunk, in whole sections, while the kernels work on the previous chunk. Kernels store new bits directly to
/// host memory, and only for changed elements.
struct PinnedTensor {
  const void* d_current = nullptr;
  void* h_snapshot = nullptr;
};
/// Device memory of one contiguous bf16 tensor and of its fp32 masters, for the fused cast: one pass that casts the
/// masters and finds the elements that change.
struct CastTensor {
  const float* d_masters = nullptr;  ///< The fp32 masters; null if the tensor never changes.
  void* d_bf16 = nullptr;  ///< The bits that receivers hold; they are overwritten by the casts of the masters.
};
/// Device memory of one contiguous tensor, and the mask that selects the elements to send.
struct MaskTensor {
  const void* d_current = nullptr;
  const std::uint64_t* d_mask = nullptr;  ///< Bit i is set if element i is sent; bits beyond the elements are ignored.
};

struct DeviceEncoderOptions {
  /// Largest number of bytes of elements that one launch of each kernel handles. It determines the memory for changes
  /// between detect and encode: twice 6 % of `chunk_bytes` for bf16, and more after a delta with more than 3 % changed
  /// elements.
  std::uint64_t chunk_bytes = kDefaultChunkBytes;
  /// True to encode a chunk while the next one is detected, on a second stream that the encoder owns. Has no effect
  /// with a pinned snapshot or with `after_step`.
  bool overlap = true;
  /// True to launch the work of start() as one CUDA graph, from the first start() after a delta for which no memory had
  /// to grow. Has no effect with a pinned snapshot or with `after_step`.
  bool graph = true;
  /// Initial size in bytes of the arena, the memory for payloads. It is raised to the largest possible payloads of two
  /// successive chunks if it is less. 0 stands for the largest possible payloads of two chunks plus a sixteenth of the
  /// table.
  std::uint64_t arena_bytes = 0;
  /// Initial number of changes of a chunk that detect can keep for encode. 0 stands for 512 per tile. It grows to one
  /// and a half times the number that a delta has needed, but at most to a quarter of the elements.
  std::uint64_t entries = 0;
  /// Initial size in bytes of the memory for frames. 0 stands for a sixteenth of the table.
  std::uint64_t frame_bytes = 0;
  /// Longest time that each wait of finish() for the device may take.
  std::chrono::milliseconds deadline{60'000};
  /// Called after each enqueued step of start() with the name of the step ("detect" and "encode" for each chunk, "cut",
  /// "assemble"), and with "" before the first step. Benchmarks record an event there.
  std::function<void(const char* step)> after_step = nullptr;
};

/// A complete FRAME record in the encoder's device memory, valid until the next start().
struct DeviceFrame {
  const std::byte* d_record = nullptr;
  std::uint32_t record_bytes = 0;
  FrameHeader header;
};

/// The result of an encode for one stream. In memory, its frames follow the frames of the previous stream; each frame
/// begins at the next multiple of 256 bytes.
struct DeviceFrames {
  std::vector<DeviceFrame> frames;
  CommitRecord commit;        ///< COMMIT record of the delta, without the result digest.
  StateDigest digest_change;  ///< Change of the state digest; zero if the encoder sends the elements of a mask.
};

/// Encodes deltas of streams from the memory of their tensors. Launches, waits and copies are the same for any number
/// of streams. Allocates on construction, and later only for deltas larger than any before. Not thread-safe; only one
/// encode may run at a time. Successive deltas must use the same CUDA stream, or streams whose work is ordered. Throws
/// Error{kUnsupported} if the device or its memory does not suffice, {kUsage} for arguments that do not fit together,
/// and {kDevice} for other failures of the device. If finish() throws, some old bits may have been refreshed and no
/// longer equal what receivers hold, so the object must not be used again.
class DeviceEncoder {
 public:
  /// Returns an encoder that compares `tensors`, in the order of the joined table, with their snapshots.
  /// EncodeOptions::zstd_level must be 0. With `refresh`, the encoder also stores the new bits in the snapshots, in the
  /// same pass.
  static DeviceEncoder compare(const JoinedTables& tables, const std::vector<CompareTensor>& tensors, bool refresh,
                               const EncodeOptions& options, const DeviceEncoderOptions& device = {});
  /// Returns an encoder that compares `tensors`, in the order of the joined table, with snapshots in pinned host
  /// memory. It needs device memory for two more chunks, and creates a stream for the copies. With `refresh`, the
  /// encoder also stores the new bits in the snapshots.
  static DeviceEncoder compare_pinned(const JoinedTables& tables, const std::vector<PinnedTensor>& tensors,
                                      bool refresh, const EncodeOptions& options,
                                      const DeviceEncoderOptions& device = {});
  /// Returns an encoder that casts the fp32 masters of `tensors` to bf16, compares the casts with the bf16 tensors, and
  /// stores the casts in the bf16 tensors.
  static DeviceEncoder fused_cast(const JoinedTables& tables, const std::vector<CastTensor>& tensors,
                                  const EncodeOptions& options, const DeviceEncoderOptions& device = {});
  /// Returns an encoder that sends those elements of `tensors` that their masks select. `options.values` must be
  /// ValueCodec::kRaw.
  static DeviceEncoder mask(const JoinedTables& tables, const std::vector<MaskTensor>& tensors,
                            const EncodeOptions& options, const DeviceEncoderOptions& device = {});
  DeviceEncoder(DeviceEncoder&&) noexcept;
  ~DeviceEncoder();

  /// Enqueues detecting and encoding one delta for each stream of the tables, and copying the counts of the deltas to
  /// the host. Returns without waiting.
  void start(CUstream_st* stream);
  /// Waits for the counts (the only wait of an encode, unless memory has to grow), computes the headers and checksums
  /// of the frames, and enqueues writing them. `headers` and the result have one element for each stream. The frames
  /// are complete for work that is enqueued on the stream later. Throws Error{kTimeout} at the deadline.
  std::vector<DeviceFrames> finish(std::span<const DeltaHeader> headers);
  /// Makes the frames of the last delta a second time, without `context` blocks, so that they can be decoded without
  /// the old weights, and returns them. Uses the blocks with which the `context` blocks were compared. Waits for the
  /// device once. `headers` must be those that were passed to finish(). The new frames overwrite the frames that
  /// finish() has returned, and are valid until the next start().
  std::vector<DeviceFrames> without_context(std::span<const DeltaHeader> headers);
  /// Does the same as finish() above for an encoder of one stream.
  DeviceFrames finish(const DeltaHeader& header);

 private:
  class State;
  explicit DeviceEncoder(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace sparsecast::cuda
