#pragma once

// Tensors in device memory, and the detectors that read them. No CUDA header is needed: CUstream_st* is a cudaStream_t,
// CUevent_st* a cudaEvent_t. Pointers to device memory are named d_.

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "sparsecast/delta.hpp"
#include "sparsecast/export.hpp"
#include "sparsecast/tensor_table.hpp"

struct CUstream_st;
struct CUevent_st;

namespace sparsecast {

/// True when this build has the device backend. Whether this machine has a device is what survey_devices() says.
/// Without the backend, everything below throws Error{kUnsupported}; without a device, too.
SPARSECAST_API bool device_backend_available() noexcept;

struct DeviceOptions {
  int device = -1;  ///< CUDA ordinal; -1: the calling thread's current device.
  /// The stream that all work is enqueued on; null: one of its own, which does not wait for the default stream. The
  /// caller's stream outlives the object.
  CUstream_st* stream = nullptr;
  /// The longest that one wait for the device takes; Error{kTimeout} then.
  std::chrono::milliseconds deadline{60'000};
  /// Bytes of elements between two turns of the kernels; decides how much scratch memory there is (6 % of it for bf16).
  std::uint64_t chunk_bytes = std::uint64_t{1} << 30;
};

/// A live tensor in device memory, aligned to its elements. Without `strides` it is contiguous; with them, element
/// (i, j, ...) of the table's shape lies at i * strides[0] + j * strides[1] + ... elements from d_data, rank at most 8.
/// The caller owns the memory, which neither moves nor goes away while an object of the library knows it.
struct DeviceTensor {
  void* d_data = nullptr;
  std::vector<std::int64_t> strides;
};

/// A FRAME record in device memory, 8-byte aligned.
struct DeviceRecord {
  const std::byte* d_record = nullptr;
  std::uint32_t record_bytes = 0;
};

/// A delta whose frames lie in device memory, complete for whatever follows on `stream`.
struct DeviceDelta {
  DeltaHeader info;
  CommitRecord result;
  Bytes header;
  std::vector<DeviceRecord> frames;
  Bytes commit;
  CUstream_st* stream = nullptr;

  std::uint64_t wire_bytes() const noexcept {
    std::uint64_t total = header.size() + commit.size();
    for (const DeviceRecord& frame : frames) total += frame.record_bytes;
    return total;
  }
};

/// The device's counterpart of Detector: made by one of the functions below and given to a Publisher, which shares the
/// table with it, and works on its device and stream. Vectors of device pointers are parallel to the table; one may be
/// null where its tensor has no elements. The memory stays where it is while the detector lives. What makes or uses one
/// throws Error{kUsage} for pointers that do not fit the table, kUnsupported when the device or its memory does not
/// suffice, kTimeout at the deadline, and kDevice for other failures of the device.
class SPARSECAST_API DeviceDetector {
 public:
  class Implementation;  ///< Internal.
  explicit DeviceDetector(std::unique_ptr<Implementation> implementation);
  virtual ~DeviceDetector();
  Implementation& implementation() noexcept { return *implementation_; }

 private:
  std::unique_ptr<Implementation> implementation_;
};

/// Takes a copy of `d_live` now (the bytes that receivers hold; they must be complete), in device memory, and refreshes
/// it only where something changed, in the same pass. 16-byte aligned tensors are read at full speed.
SPARSECAST_API std::unique_ptr<DeviceDetector> make_device_snapshot(std::shared_ptr<const TensorTable> table,
                                                                    std::vector<const void*> d_live,
                                                                    const DeviceOptions& options = {});

/// The same with a snapshot that the caller keeps: memory that holds, when it is given, what receivers hold, and
/// belongs to the detector from then on. Nothing is copied at the start, and the base digest of a Publisher over it is
/// that of the snapshot. Tensors of both may be views of larger memory, each with strides of its own: what lies between
/// their elements is neither read nor written. No two elements of a snapshot lie at one place, and `live` is only read.
/// A view is read 16 bytes at a time where its innermost run (dimensions that follow one another in memory are one) is
/// a multiple of that and begins at one, in live tensor and snapshot; else element by element.
SPARSECAST_API std::unique_ptr<DeviceDetector> make_device_snapshot_over(std::shared_ptr<const TensorTable> table,
                                                                         std::vector<DeviceTensor> live,
                                                                         std::vector<DeviceTensor> snapshot,
                                                                         const DeviceOptions& options = {});

/// As HostSourceTensor (detector.hpp), in device memory, aligned to elements of `dtype`; strides are in those.
struct DeviceSourceTensor {
  DeviceTensor memory;         ///< Only read.
  DType dtype = DType::kBF16;  ///< That of the table, or kF32 where the table says kBF16: a master.
};

/// A cast snapshot: make_device_snapshot_over that takes fp32 masters of bf16 tensors, too, and compares their cast
/// with the snapshot as make_cast_snapshot does. Frames are that one's. A master that is a view is read at full speed
/// where its innermost run is a multiple of 8 elements. Throws Error{kUsage} also for a dtype that is neither the
/// table's nor that of a master.
SPARSECAST_API std::unique_ptr<DeviceDetector> make_device_cast_snapshot(std::shared_ptr<const TensorTable> table,
                                                                         std::vector<DeviceSourceTensor> live,
                                                                         std::vector<DeviceTensor> snapshot,
                                                                         const DeviceOptions& options = {});

/// make_device_snapshot for trainers without spare device memory: the copy lies in pinned host memory, and comes to the
/// device in chunks of options.chunk_bytes (two buffers of that), each on its way while the kernels work on the one
/// before. New bits go back element by element, straight from the kernels, only where something changed.
SPARSECAST_API std::unique_ptr<DeviceDetector> make_pinned_snapshot(std::shared_ptr<const TensorTable> table,
                                                                    std::vector<const void*> d_live,
                                                                    const DeviceOptions& options = {});

/// No snapshot: casts fp32 masters to the bf16 tensors in place (rounding as make_fused_cast) and detects in the same
/// kernel. A null master: the tensor must not change. Publishing performs the cast.
SPARSECAST_API std::unique_ptr<DeviceDetector> make_device_fused_cast(std::shared_ptr<const TensorTable> table,
                                                                      std::vector<const float*> d_masters,
                                                                      std::vector<void*> d_bf16,
                                                                      const DeviceOptions& options = {});

/// A caller's own change mask, as MaskDetector: one bit an element, least significant first, in device memory.
class SPARSECAST_API DeviceMaskDetector final : public DeviceDetector {
 public:
  DeviceMaskDetector(std::shared_ptr<const TensorTable> table, std::vector<const void*> d_live,
                     const DeviceOptions& options = {});
  /// Ors ceil(elements / 64) words at `d_words`, 8-byte aligned, into the flags of `tensor`, on `stream` (null: the
  /// default stream), which the next publish waits for; `d_words` may be changed behind it. Bits beyond the last
  /// element are ignored. Not during a publish.
  void mark(std::size_t tensor, const std::uint64_t* d_words, CUstream_st* stream);
};

}  // namespace sparsecast
