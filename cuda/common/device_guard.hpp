// SPDX-License-Identifier: Apache-2.0
#pragma once

// Guards that select the device that a thread works on. A CUDA context takes some hundred MB on its device, and nearly
// every runtime call creates one on the current device, which is device 0 in a new thread. The guards make sure that a
// rank creates no context on a device that it does not work on. They also keep its work from disturbing CUDA graph
// captures in other threads.

#include "cuda/common/driver_function.hpp"

namespace sparsecast::cuda {

/// Returns the current device of this thread. Creates no context.
inline int current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

/// Returns whether this process has a CUDA context on `device`; returns true if the driver cannot be asked. Creates no
/// context.
inline bool has_context(int device) noexcept {
  using GetState = int(int device, unsigned* flags, int* active);
  static GetState* const get_state = driver_function<GetState>("cuDevicePrimaryCtxGetState");
  unsigned flags = 0;
  int active = 1;
  return get_state == nullptr || get_state(device, &flags, &active) != 0 || active != 0;
}

/// Throws Error{kUsage} while the stream is being captured into a CUDA graph: work that is enqueued on it would not
/// run, and a wait for this work would never end.
inline void require_not_captured(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing");
  if (status == cudaStreamCaptureStatusNone) return;
  throw Error(ErrorCode::kUsage, "the stream is being captured into a CUDA graph; end the capture before");
}

/// Sets the stream capture mode of this thread until the guard is destroyed. In the default (global) mode, a capture by
/// any thread (torch.cuda.graph) makes potentially unsafe calls of this thread fail, such as an allocation or the query
/// of an event, and the capture then fails, too. In thread-local mode, only captures by this thread have this effect;
/// in relaxed mode, no capture has it.
class CaptureModeGuard {
 public:
  explicit CaptureModeGuard(cudaStreamCaptureMode mode) : mode_(mode) {
    check(cudaThreadExchangeStreamCaptureMode(&mode_), "cudaThreadExchangeStreamCaptureMode");
  }
  ~CaptureModeGuard() { static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  CaptureModeGuard(const CaptureModeGuard&) = delete;
  CaptureModeGuard& operator=(const CaptureModeGuard&) = delete;

 private:
  cudaStreamCaptureMode mode_;  ///< The mode before the guard, which the destructor restores.
};

/// Makes `device` the current device of this thread. The destructor makes the previous device current again, unless
/// this process has no context on that device, because the call would create a context.
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

/// Lets this thread work on `device` until the guard is destroyed: makes the device current, and sets the stream
/// capture mode of this thread, so that its calls and captures in other threads do not make each other fail.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device, cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal)
      : device_(device), mode_(mode) {}
  /// Makes `device` current for work on `stream`, which belongs to it. Throws Error{kUsage} while the stream is being
  /// captured into a graph.
  DeviceGuard(int device, cudaStream_t stream) : DeviceGuard(device) { require_not_captured(stream); }

 private:
  /// Declared before mode_, because the calls that set the mode may create a context, too.
  CurrentDeviceGuard device_;
  CaptureModeGuard mode_;
};

/// Calls release(), which returns a CUDA error, while `device` is current. Meant for destructors, in any thread, even
/// during a capture. Ignores failures, which a destructor cannot handle; the next runtime call reports them again.
template <class Release>
void release_on(int device, const Release& release) noexcept {
  try {
    const DeviceGuard guard(device, cudaStreamCaptureModeRelaxed);
    static_cast<void>(release());
  } catch (const Error&) {
  }
}

}  // namespace sparsecast::cuda
