// SPDX-License-Identifier: Apache-2.0
#pragma once

// The CUDA runtime calls of the NCCL transport, behind an interface, so that tests can run its logic without a device.
// Streams and events are opaque. Every call may throw Error{kDevice}; no call waits for the device.

#include <cstddef>
#include <cstdint>
#include <string>

#include "sparsecast/error.hpp"

namespace sparsecast {

/// Functions of the CUDA runtime that the transport uses; tests replace them. Streams and events are passed as void*.
class DeviceApi {
 public:
  virtual ~DeviceApi() = default;

  virtual int current_device() = 0;
  /// Makes `device` the current device of the calling thread.
  virtual void use_device(int device) = 0;
  /// Returns true when this process has a context on `device`. Does not create a context.
  virtual bool has_context(int device) = 0;
  virtual std::string uuid(int device) = 0;
  /// Returns true when kernels on `device` may use this address as device memory; managed memory counts, too.
  virtual bool holds(const void* d_pointer, int device) = 0;

  virtual void* allocate(std::uint64_t bytes) = 0;
  virtual void free(void* d_pointer) noexcept = 0;
  virtual void* allocate_host(std::uint64_t bytes) = 0;  ///< Returns new pinned host memory.
  virtual void free_host(void* h_pointer) noexcept = 0;

  virtual void* create_stream() = 0;
  virtual void destroy_stream(void* stream) noexcept = 0;
  virtual void* create_event() = 0;
  virtual void destroy_event(void* event) noexcept = 0;
  virtual void record(void* event, void* stream) = 0;
  /// Makes later work on the stream wait for the event; the host does not wait.
  virtual void wait(void* stream, void* event) = 0;
  virtual bool finished(void* event) = 0;

  virtual void copy_to_device(void* d_to, const void* h_from, std::uint64_t bytes, void* stream) = 0;
  virtual void copy_to_host(void* h_to, const void* d_from, std::uint64_t bytes, void* stream) = 0;
  virtual void copy_on_device(void* d_to, const void* d_from, std::uint64_t bytes, void* stream) = 0;
};

/// Makes `device` the current device of this thread while the object exists. The destructor makes the previous device
/// current again, unless this process has no context on that device, because making it current would create one.
class DeviceApiGuard {
 public:
  DeviceApiGuard(DeviceApi& api, int device) : api_(api), before_(api.current_device()), changed_(device != before_) {
    if (changed_) api_.use_device(device);
  }
  ~DeviceApiGuard() {
    try {
      if (changed_ && api_.has_context(before_)) api_.use_device(before_);
    } catch (const Error&) {  // The next runtime call reports the error again.
    }
  }
  DeviceApiGuard(const DeviceApiGuard&) = delete;
  DeviceApiGuard& operator=(const DeviceApiGuard&) = delete;

 private:
  DeviceApi& api_;
  int before_;
  bool changed_;
};

/// Calls release() with `device` as the current device; for destructors, in any thread. An Error ends the call
/// silently, for example when the device is lost.
template <class Release>
void release_on(DeviceApi& api, int device, const Release& release) noexcept {
  try {
    const DeviceApiGuard guard(api, device);
    release();
  } catch (const Error&) {
  }
}

/// Returns a sentence that says why the driver is too old for the runtime. Versions are numbered as in CUDA: 13000 is
/// 13.0; 0 means no driver.
std::string why_driver_is_too_old(int driver_version, int runtime_version);

struct DeviceSurvey;
/// Removes devices that the library's kernels do not run on (older than sm_80) from a survey. If no device is left,
/// sets DeviceSurvey::why_none to an explanation.
void leave_out_old_devices(DeviceSurvey& survey);

/// Returns the implementation that calls the CUDA runtime.
DeviceApi& cuda_device_api();

}  // namespace sparsecast
