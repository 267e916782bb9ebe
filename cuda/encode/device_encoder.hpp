#pragma once

// Detect and encode on a device: frames byte for byte those of encode_frames (src/sync/encoder.hpp). Plain C++, no CUDA
// header: for the code that chooses a backend.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "sparsecast/codec.hpp"
#include "sparsecast/delta.hpp"
#include "sparsecast/digest.hpp"
#include "sparsecast/tensor_table.hpp"

struct CUstream_st;

namespace sparsecast::cuda {

/// What a detector compares; the device pointers of one tensor, each aligned to its elements. For 16-byte aligned ones
/// detect runs at full speed. The caller owns the memory and does not change it from start() until its work is done.
/// Strides are those of DeviceTensor, none for contiguous memory; no two elements of a snapshot lie at one place.
struct CompareTensor {
  const void* d_current = nullptr;
  void* d_snapshot = nullptr;  ///< What receivers hold.
  std::vector<std::int64_t> current_strides = {};
  std::vector<std::int64_t> snapshot_strides = {};
  bool masters = false;  ///< `d_current` are fp32 masters of a bf16 tensor: their cast is compared with the snapshot.
};
/// Contiguous, with the snapshot in pinned host memory. It is read in chunks of whole sections, each copied to the
/// device while the kernels work on the one before; new bits are stored from the kernels straight to the host, only
/// where something changed.
struct PinnedTensor {
  const void* d_current = nullptr;
  void* h_snapshot = nullptr;
};
struct CastTensor {
  const float* d_masters = nullptr;  ///< Null: the tensor does not change.
  void* d_bf16 = nullptr;            ///< What receivers hold; becomes the cast of the masters.
};
struct MaskTensor {
  const void* d_current = nullptr;
  const std::uint64_t* d_mask = nullptr;  ///< Bit i: element i is sent. Bits beyond the elements are ignored.
};

struct DeviceEncoderOptions {
  /// Element bytes between two turns of the kernels; decides how much memory slots need (6 % of it for bf16).
  std::uint64_t chunk_bytes = std::uint64_t{1} << 30;
  /// Bytes for payloads to begin with, at least what one chunk needs at worst; 0: that and a sixteenth of the table.
  std::uint64_t arena_bytes = 0;
  /// Bytes for frames to begin with; 0: a sixteenth of the table.
  std::uint64_t frame_bytes = 0;
  /// The longest that finish() waits for the device.
  std::chrono::milliseconds deadline{60'000};
  /// For benchmarks: called behind each step of start() that has been enqueued ("detect" and "encode" for each chunk,
  /// "cut", "assemble"), and first with "" before all of them. Whoever sets it records an event there.
  std::function<void(const char* step)> after_step = nullptr;
};

/// A complete FRAME record in device memory, valid until the next start().
struct DeviceFrame {
  const std::byte* d_record = nullptr;
  std::uint32_t record_bytes = 0;
  FrameHeader header;
};

struct DeviceFrames {
  std::vector<DeviceFrame> frames;
  CommitRecord commit;        ///< Without the result digest.
  StateDigest digest_change;  ///< Zero with a mask.
};

/// Built once for a table and the memory of its tensors; allocates everything then, and later only when a delta is
/// larger than any before. One delta at a time; not for concurrent use; streams of successive deltas are the same or
/// ordered. Throws Error{kUnsupported} when the device or its memory does not suffice, {kUsage} for arguments that do
/// not fit together, {kDevice} for other failures of the device. When finish() throws, the old bits may be refreshed in
/// part: they are no longer what receivers hold, and the object must not be used again.
class DeviceEncoder {
 public:
  /// `tensors` are parallel to the table, which outlives the encoder. zstd is not done here: zstd_level must be 0.
  /// With `refresh`, the snapshot takes on the new bits in the same pass.
  static DeviceEncoder compare(const TensorTable& table, const std::vector<CompareTensor>& tensors, bool refresh,
                               const EncodeOptions& options, const DeviceEncoderOptions& device = {});
  /// Takes two chunks of device memory more, and a stream of its own for the copies.
  static DeviceEncoder compare_pinned(const TensorTable& table, const std::vector<PinnedTensor>& tensors, bool refresh,
                                      const EncodeOptions& options, const DeviceEncoderOptions& device = {});
  static DeviceEncoder fused_cast(const TensorTable& table, const std::vector<CastTensor>& tensors,
                                  const EncodeOptions& options, const DeviceEncoderOptions& device = {});
  /// Needs ValueCodec::kRaw.
  static DeviceEncoder mask(const TensorTable& table, const std::vector<MaskTensor>& tensors,
                            const EncodeOptions& options, const DeviceEncoderOptions& device = {});
  DeviceEncoder(DeviceEncoder&&) noexcept;
  ~DeviceEncoder();

  /// Enqueues the detection and encoding of one delta and the transfer of its counts; returns without waiting.
  void start(CUstream_st* stream);
  /// Waits for the counts, the one host synchronisation of a delta unless memory had to grow; seals the frames and
  /// enqueues their headers. The frames are complete for what follows on the stream. Error{kTimeout} at the deadline.
  DeviceFrames finish(const DeltaHeader& header);

 private:
  class State;
  explicit DeviceEncoder(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace sparsecast::cuda
