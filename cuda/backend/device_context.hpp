// SPDX-License-Identifier: Apache-2.0
#pragma once

// Device and stream on which an object of the library works, and the deadline of its waits.

#include <chrono>
#include <memory>
#include <string>

#include "cuda/common/device_stream.hpp"
#include "cuda/common/streams.hpp"
#include "sparsecast/device.hpp"

namespace sparsecast {

/// The device and the CUDA stream on which a publisher or subscriber works.
class DeviceContext {
 public:
  /// Uses device options.device, or the current device if that is negative, and stream options.cuda_stream, or a new
  /// stream if that is null. Throws Error{kUnsupported} if there is no device or no driver, and {kUsage} if there is no
  /// device with that number.
  explicit DeviceContext(const DeviceOptions& options) : options_(options), stream_(options.cuda_stream) {
    int devices = 0;
    cuda::check(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
    if (options.device >= devices) {
      throw Error(ErrorCode::kUsage,
                  "there is no device " + std::to_string(options.device) + ", only " + std::to_string(devices));
    }
    device_ = options.device;
    if (device_ < 0) device_ = cuda::current_device();
    const cuda::DeviceGuard guard(device_);
    host_ = std::make_unique<cuda::HostWait>(options.deadline);
    if (stream_ != nullptr) return;
    own_stream_ = std::make_shared<cuda::Stream>();
    stream_ = own_stream_->get();
  }
  /// Makes a context for the same device and the same stream. If the library created that stream, both contexts own it
  /// together. Each context has its own HostWait.
  DeviceContext(const DeviceContext& other)
      : device_(other.device_), options_(other.options_), stream_(other.stream_), own_stream_(other.own_stream_) {
    const cuda::DeviceGuard guard(device_);
    host_ = std::make_unique<cuda::HostWait>(options_.deadline);
  }
  DeviceContext(DeviceContext&&) = default;
  DeviceContext& operator=(const DeviceContext&) = delete;
  ~DeviceContext() = default;

  /// Makes the device current for this thread until the returned guard is destroyed. Every public call that uses the
  /// device holds such a guard. Throws Error{kUsage} while the stream is being captured into a CUDA graph.
  cuda::DeviceGuard enter() const { return cuda::DeviceGuard(device_, stream_); }
  int device() const noexcept { return device_; }
  cudaStream_t stream() const noexcept { return stream_; }
  std::chrono::milliseconds deadline() const noexcept { return options_.deadline; }
  const DeviceOptions& options() const noexcept { return options_; }
  void wait(const char* verb) const { host_->wait(stream_, verb); }

 private:
  int device_ = 0;
  DeviceOptions options_;
  cudaStream_t stream_ = nullptr;
  std::shared_ptr<cuda::Stream> own_stream_;
  std::unique_ptr<cuda::HostWait> host_;
};

}  // namespace sparsecast
