// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sparsecast/delta.hpp"
#include "sparsecast/export.hpp"

// Work on a device, and deltas in its memory. No CUDA header is needed: CUstream_st* is a cudaStream_t, CUevent_st* a
// cudaEvent_t. Pointers to device memory are named d_.

struct CUstream_st;
struct CUevent_st;

namespace sparsecast {

/// Returns true when this build has the device backend; survey_devices() tells whether this machine has a device.
/// Without the backend or without a device, work on a device throws Error{kUnsupported}.
SPARSECAST_API bool device_backend_available() noexcept;

/// Default of DeviceOptions::chunk_bytes.
inline constexpr std::uint64_t kDefaultChunkBytes = std::uint64_t{1} << 28;

struct DeviceOptions {
  int device = -1;  ///< CUDA ordinal; -1: the device of the tensors, or the host for an empty table.
  /// Stream on which all work is enqueued. Null: the object creates a stream of its own, which does not wait for the
  /// default stream. The caller's stream must outlive the object.
  CUstream_st* cuda_stream = nullptr;
  /// Maximum duration of one wait for the device; a longer wait throws Error{kTimeout}.
  std::chrono::milliseconds deadline{60'000};
  /// Bytes of elements that one pass of the kernels processes. A publisher needs a little more than twice as much
  /// scratch memory.
  std::uint64_t chunk_bytes = kDefaultChunkBytes;
  /// Maximum bytes of device memory in which a subscriber keeps the decoded changes of a staged delta (6 bytes per
  /// changed element for bf16), so that the pause only writes them. Changes that need more than this, or more than a
  /// quarter of the device's free memory, are decoded again in the pause. Unset: a sixteenth of the bytes of the
  /// tensors. The changes of a delta with `context` positions are always kept, and take 4 more bytes each while the
  /// delta is staged.
  std::optional<std::uint64_t> entry_bytes = {};
};

/// A frame record of a delta, in device memory and aligned to 8 bytes.
struct DeviceRecord {
  const std::byte* d_record = nullptr;
  std::uint32_t record_bytes = 0;
};

/// A delta whose frames are in device memory. The frames are complete for work that is enqueued on `cuda_stream` after
/// the delta was made.
struct DeviceDelta {
  DeltaHeader info;
  CommitRecord result;
  Bytes header;
  std::vector<DeviceRecord> frames;
  Bytes commit;
  CUstream_st* cuda_stream = nullptr;

  std::uint64_t wire_bytes() const noexcept {
    std::uint64_t total = header.size() + commit.size();
    for (const DeviceRecord& frame : frames) total += frame.record_bytes;
    return total;
  }
};

struct DeviceInfo {
  int ordinal = 0;
  std::string name;
  std::string uuid;  ///< Identifier such as "GPU-4f1c...", the same for every process that sees the device.
  std::uint64_t memory_bytes = 0;
  int major = 0;  ///< Major number of the compute capability: 9 for sm_90.
  int minor = 0;  ///< Minor number of the compute capability: 0 for sm_90.
};

struct DeviceSurvey {
  std::vector<DeviceInfo> devices;
  /// Reason why `devices` is empty: the driver's message, a missing CUDA runtime, or devices that are too old.
  std::string why_none;
  int runtime_version = 0;  ///< Version of the CUDA runtime: 13000 is 13.0; 0 without a CUDA runtime.
  int driver_version = 0;   ///< Newest CUDA version that the driver supports, in the same form; 0 without a driver.
};

/// Returns the devices of sm_80 or newer that the CUDA runtime of this build finds. Does not throw when there is no
/// device or driver.
SPARSECAST_API DeviceSurvey survey_devices();

}  // namespace sparsecast
