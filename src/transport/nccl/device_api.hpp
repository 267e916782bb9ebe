// SPDX-License-Identifier: Apache-2.0
#pragma once

// The few CUDA runtime calls of the NCCL transport, behind an interface, so that its logic runs in tests without a
// device. Streams and events are opaque. Every call throws Error{kDevice}; none of them waits for the device.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace sparsecast {

class DeviceApi {
 public:
  virtual ~DeviceApi() = default;

  virtual int current_device() = 0;
  /// Makes `device` the current device of the calling thread.
  virtual void use_device(int device) = 0;
  virtual std::string uuid(int device) = 0;
  /// Returns whether kernels on `device` may use this address as device memory (managed memory too).
  virtual bool holds(const void* d_pointer, int device) = 0;

  virtual void* allocate(std::uint64_t bytes) = 0;
  virtual void free(void* d_pointer) noexcept = 0;
  virtual void* allocate_host(std::uint64_t bytes) = 0;  ///< Pinned.
  virtual void free_host(void* h_pointer) noexcept = 0;

  virtual void* create_stream() = 0;
  virtual void destroy_stream(void* stream) noexcept = 0;
  virtual void* create_event() = 0;
  virtual void destroy_event(void* event) noexcept = 0;
  virtual void record(void* event, void* stream) = 0;
  virtual void wait(void* stream, void* event) = 0;  ///< The stream waits, not the host.
  virtual bool finished(void* event) = 0;

  virtual void copy_to_device(void* d_to, const void* h_from, std::uint64_t bytes, void* stream) = 0;
  virtual void copy_to_host(void* h_to, const void* d_from, std::uint64_t bytes, void* stream) = 0;
  virtual void copy_on_device(void* d_to, const void* d_from, std::uint64_t bytes, void* stream) = 0;
};

/// Returns why a runtime finds the driver too old. Versions as CUDA counts them: 13000 is 13.0; 0 means no driver.
std::string why_driver_is_too_old(int driver_version, int runtime_version);

struct DeviceSurvey;
/// Removes devices that the library's kernels do not run on (older than sm_80), and says so in `why_none` if none is
/// left.
void leave_out_old_devices(DeviceSurvey& survey);

/// Returns the API of the CUDA runtime.
DeviceApi& cuda_device_api();

}  // namespace sparsecast
