// SPDX-License-Identifier: Apache-2.0
#pragma once

// Gives host code the CUDA runtime, with its errors as exceptions of type Error.

#include <string>

#include "sparsecast/error.hpp"

#if defined(SPARSECAST_CUDA_EMULATION)
#include "cuda_emulation/runtime.hpp"
#else
#include <cuda_runtime_api.h>
#endif

namespace sparsecast::cuda {

/// Returns null unless the error means that this machine's device, driver or memory does not suffice. For such an
/// error, returns advice, or an empty string if the text of the error says enough by itself.
inline const char* cure_of_lack(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
    case cudaErrorNoDevice:
      return "";
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorInvalidKernelImage:
    case cudaErrorNoKernelImageForDevice:
      return "this build has no code for the device: sm_80 or newer is needed, and built for "
             "(CMAKE_CUDA_ARCHITECTURES)";
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorJitCompilerNotFound:
    case cudaErrorJitCompilationDisabled:
      return "this build has only PTX for the device, which the driver cannot compile: build for the device "
             "(CMAKE_CUDA_ARCHITECTURES), or install a newer driver";
    case cudaErrorInsufficientDriver:
    case cudaErrorCallRequiresNewerDriver:
      return "install a newer driver, or build with an older CUDA toolkit";
    case cudaErrorStubLibrary:
      return "libcuda.so.1 is the toolkit's stub: take its folder 'stubs' out of LD_LIBRARY_PATH";
    case cudaErrorDevicesUnavailable:
      return "another process holds the device in exclusive mode (nvidia-smi -q -d COMPUTE)";
    case cudaErrorSystemNotReady:
      return "the machine's fabric manager does not run yet (systemctl status nvidia-fabricmanager)";
    case cudaErrorSystemDriverMismatch:
      return "libcuda.so.1 and the kernel's driver are of different versions: restart the machine, or the container "
             "with the host's libcuda.so.1";
    case cudaErrorCompatNotSupportedOnDevice:
      return "the forward-compatible libcuda.so.1 (cuda-compat) does not support this device: take its folder out of "
             "LD_LIBRARY_PATH";
    default:
      return nullptr;
  }
}

/// Returns whether the error has made the device unusable for this process. Every later call then returns the same
/// error, whichever kernel of the process caused it.
inline bool is_sticky(cudaError_t error) noexcept {
  return error == cudaErrorECCUncorrectable || error == cudaErrorNvlinkUncorrectable ||
         error == cudaErrorIllegalAddress || error == cudaErrorLaunchTimeout || error == cudaErrorAssert ||
         (error >= cudaErrorHardwareStackError && error <= cudaErrorLaunchFailure);
}

/// Does nothing for cudaSuccess, otherwise throws an Error that names `call`. Its code is kUnsupported if the device,
/// its driver or its memory does not suffice, so that a caller may fall back to the CPU, and kDevice for any other
/// error.
inline void check(cudaError_t result, const char* call) {
  if (result == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // Clears the last error, so that the next caller does not find it.
  const char* const cure = cure_of_lack(result);
  std::string text = std::string(call) + ": " + cudaGetErrorName(result) + " (" + cudaGetErrorString(result) + ")";
  if (cure != nullptr && *cure != '\0') text += std::string("; ") + cure;
  if (is_sticky(result)) {
    text +=
        ", caused by this or an earlier kernel of any part of the program; every further call for the device fails, "
        "until the process is started again";
  }
  throw Error(cure != nullptr ? ErrorCode::kUnsupported : ErrorCode::kDevice, text);
}

}  // namespace sparsecast::cuda
