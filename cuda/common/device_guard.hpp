// SPDX-License-Identifier: Apache-2.0
#pragma once

// The device that a thread works on. A context of a device takes some hundred MB there, and nearly every call of the
// runtime makes one on the device that is current, which is 0 in a new thread: a rank that works on another device
// makes none there. Nor may its work disturb programs that capture CUDA graphs in other threads.

#include "cuda/common/driver_function.hpp"

namespace sparsecast::cuda {

/// Returns the current device of this thread. Makes no context.
inline int current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

/// Returns whether this process has a context on `device`; true where the driver cannot be asked. Makes none.
inline bool has_context(int device) noexcept {
  using GetState = int(int device, unsigned* flags, int* active);
  static GetState* const get_state = driver_function<GetState>("cuDevicePrimaryCtxGetState");
  unsigned flags = 0;
  int active = 1;
  return get_state == nullptr || get_state(device, &flags, &active) != 0 || active != 0;
}

/// Throws Error{kUsage} while the stream is being captured into a graph: its work would not run, and a wait for it
/// would never end.
inline void require_not_captured(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing");
  if (status == cudaStreamCaptureStatusNone) return;
  throw Error(ErrorCode::kUsage, "the stream is being captured into a CUDA graph; end the capture before");
}

/// Sets the mode in which this thread heeds captures of streams into graphs, until it is destroyed. In the mode that
/// threads begin with, a capture of any thread (torch.cuda.graph) lets what is potentially unsafe beside it fail, such
/// as an allocation or the query of an event, and fails itself then. Thread-local: only captures of this thread do so;
/// relaxed: none does.
class CaptureModeGuard {
 public:
  explicit CaptureModeGuard(cudaStreamCaptureMode mode) : mode_(mode) {
    check(cudaThreadExchangeStreamCaptureMode(&mode_), "cudaThreadExchangeStreamCaptureMode");
  }
  ~CaptureModeGuard() { static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  CaptureModeGuard(const CaptureModeGuard&) = delete;
  CaptureModeGuard& operator=(const CaptureModeGuard&) = delete;

 private:
  cudaStreamCaptureMode mode_;  ///< The mode that the destructor restores.
};

/// Makes `device` the current device of this thread. On destruction the previous one is current again, unless this
/// process has no context there: setting it would make one.
class CurrentDeviceGuard {
 public:
  explicit CurrentDeviceGuard(int device) : before_(current_device()), changed_(device != before_) {
    if (changed_) check(cudaSetDevice(device), "cudaSetDevice");
  }
  ~CurrentDeviceGuard() {
    if (changed_ && has_context(before_)) static_cast<void>(cudaSetDevice(before_));
  }
  CurrentDeviceGuard(const CurrentDeviceGuard&) = delete;
  CurrentDeviceGuard& operator=(const CurrentDeviceGuard&) = delete;

 private:
  int before_;
  bool changed_;
};

/// Lets this thread work on `device` until it is destroyed: the device is current, and captures of other threads
/// neither hinder nor suffer.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device, cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal)
      : device_(device), mode_(mode) {}
  /// For work on `stream`, one of the device's: throws Error{kUsage} while it is being captured.
  DeviceGuard(int device, cudaStream_t stream) : DeviceGuard(device) { require_not_captured(stream); }

 private:
  CurrentDeviceGuard device_;  ///< First, because the mode's calls may make a context, too.
  CaptureModeGuard mode_;
};

/// Calls `release` on `device`, from a destructor in whatever thread it runs, even in the midst of a capture. A failure
/// cannot be handled there, and the next call of the runtime reports it again.
template <class Release>
void release_on(int device, const Release& release) noexcept {
  try {
    const DeviceGuard guard(device, cudaStreamCaptureModeRelaxed);
    static_cast<void>(release());
  } catch (const Error&) {
  }
}

}  // namespace sparsecast::cuda
