// SPDX-License-Identifier: Apache-2.0
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

/// Returns true when this build has the device backend; survey_devices() tells whether this machine has a device.
/// Without either, everything below throws Error{kUnsupported}.
SPARSECAST_API bool device_backend_available() noexcept;

struct DeviceOptions {
  int device = -1;  ///< CUDA ordinal; -1: the calling thread's current device.
  /// Stream on which all work is enqueued. Null: the object creates a stream of its own, which does not wait for the
  /// default stream. The caller's stream must outlive the object.
  CUstream_st* stream = nullptr;
  /// Longest time that one wait for the device may take; then it throws Error{kTimeout}.
  std::chrono::milliseconds deadline{60'000};
  /// Bytes of elements that one pass of the kernels processes. Determines the scratch memory (6 % of it for bf16).
  std::uint64_t chunk_bytes = std::uint64_t{1} << 30;
};

/// A live tensor in device memory, aligned to its elements. Without `strides` it is contiguous; with them, element (i,
/// j, ...) of the table's shape lies at i * strides[0] + j * strides[1] + ... elements from d_data, rank at most 8. The
/// caller owns the memory, which must stay in place while an object of the library uses it.
struct DeviceTensor {
  void* d_data = nullptr;
  std::vector<std::int64_t> strides;
};

/// A FRAME record in device memory, 8-byte aligned.
struct DeviceRecord {
  const std::byte* d_record = nullptr;
  std::uint32_t record_bytes = 0;
};

/// A delta whose frames lie in device memory, complete for work enqueued on `stream` after it.
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

/// Detector for tensors in device memory. One of the functions below makes it, and a Publisher takes it, shares its
/// table, and works on its device and stream. Vectors of device pointers are parallel to the table; a pointer may be
/// null where its tensor has no elements. The memory must stay in place while the detector lives. The functions that
/// make or use one throw Error{kUsage} for pointers that do not fit the table, kUnsupported when the device or its
/// memory does not suffice, kTimeout at the deadline, and kDevice for other failures of the device.
class SPARSECAST_API DeviceDetector {
 public:
  class Implementation;  ///< Internal.
  explicit DeviceDetector(std::unique_ptr<Implementation> implementation);
  virtual ~DeviceDetector();
  Implementation& implementation() noexcept { return *implementation_; }

 private:
  std::unique_ptr<Implementation> implementation_;
};

/// Makes a detector that copies `d_live` now (the bytes that receivers hold; writes to them must be complete) to device
/// memory and, while it detects, updates that copy where elements changed. 16-byte aligned tensors are read at full
/// speed.
SPARSECAST_API std::unique_ptr<DeviceDetector> make_device_snapshot(std::shared_ptr<const TensorTable> table,
                                                                    std::vector<const void*> d_live,
                                                                    const DeviceOptions& options = {});

/// Makes a detector over a snapshot in the caller's memory, which must hold what receivers hold; from then on only the
/// detector writes to it. Nothing is copied at the start, and the base digest of a Publisher over it is that of the
/// snapshot. Tensors of `live` and `snapshot` may be views of larger memory, each with strides of its own; memory
/// between their elements is neither read nor written. The elements of a snapshot must not overlap, and `live` is only
/// read. A view is read 16 bytes at a time where its innermost run (dimensions that are contiguous together form one
/// run) has a multiple of 16 bytes and a 16-byte aligned start, in both live tensor and snapshot; otherwise it is read
/// element by element.
SPARSECAST_API std::unique_ptr<DeviceDetector> make_device_snapshot_over(std::shared_ptr<const TensorTable> table,
                                                                         std::vector<DeviceTensor> live,
                                                                         std::vector<DeviceTensor> snapshot,
                                                                         const DeviceOptions& options = {});

/// Counterpart of HostSourceTensor (detector.hpp) in device memory, aligned to elements of `dtype`; strides are in such
/// elements.
struct DeviceSourceTensor {
  DeviceTensor memory;         ///< Memory that is only read.
  DType dtype = DType::kBF16;  ///< The table's dtype; or kF32 where the table says kBF16: an fp32 master.
};

/// Makes a cast snapshot: like make_device_snapshot_over, but it also takes fp32 masters of bf16 tensors and compares
/// their cast with the snapshot. The frames are the same as those of make_cast_snapshot. A master that is a view is
/// read at full speed where its innermost run is a multiple of 8 elements. Throws Error{kUsage} also for a dtype that
/// is neither the table's nor that of a master.
SPARSECAST_API std::unique_ptr<DeviceDetector> make_device_cast_snapshot(std::shared_ptr<const TensorTable> table,
                                                                         std::vector<DeviceSourceTensor> live,
                                                                         std::vector<DeviceTensor> snapshot,
                                                                         const DeviceOptions& options = {});

/// Makes a snapshot detector for trainers without spare device memory. The copy lies in pinned host memory and is
/// transferred to the device in chunks of options.chunk_bytes, double-buffered, so that one chunk is transferred while
/// the kernels process the one before. The kernels write changed elements straight back to host memory.
SPARSECAST_API std::unique_ptr<DeviceDetector> make_pinned_snapshot(std::shared_ptr<const TensorTable> table,
                                                                    std::vector<const void*> d_live,
                                                                    const DeviceOptions& options = {});

/// Makes a detector without a snapshot. It casts fp32 masters to the bf16 tensors in place (rounding as
/// make_fused_cast) and detects in the same kernel. A tensor with a null master must not change. Publishing performs
/// the cast.
SPARSECAST_API std::unique_ptr<DeviceDetector> make_device_fused_cast(std::shared_ptr<const TensorTable> table,
                                                                      std::vector<const float*> d_masters,
                                                                      std::vector<void*> d_bf16,
                                                                      const DeviceOptions& options = {});

/// Detects changes from the caller's own mask in device memory, as MaskDetector does: one bit an element, least
/// significant first.
class SPARSECAST_API DeviceMaskDetector final : public DeviceDetector {
 public:
  DeviceMaskDetector(std::shared_ptr<const TensorTable> table, std::vector<const void*> d_live,
                     const DeviceOptions& options = {});
  /// ORs ceil(elements / 64) words at `d_words`, 8-byte aligned, into the flags of `tensor`. The work is enqueued on
  /// `stream` (null: the default stream), and the next publish waits for it; work enqueued later on `stream` may change
  /// `d_words`. Bits beyond the last element are ignored. Must not be called during a publish.
  void mark(std::size_t tensor, const std::uint64_t* d_words, CUstream_st* stream);
};

}  // namespace sparsecast
