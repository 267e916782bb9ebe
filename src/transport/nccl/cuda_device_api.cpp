// SPDX-License-Identifier: Apache-2.0
#include "transport/nccl/device_api.hpp"

#include <fmt/format.h>

#include "sparsecast/device.hpp"

namespace sparsecast {

std::string why_driver_is_too_old(int driver_version, int runtime_version) {
  // The runtime's error text is the same for both cases.
  if (driver_version == 0) return "no CUDA driver is installed (libcuda.so.1 is not found)";
  // Any driver of the runtime's major version suffices.
  return fmt::format("the driver is for CUDA {}.{}, and this build needs one for CUDA {} or newer",
                     driver_version / 1000, driver_version % 1000 / 10, runtime_version / 1000);
}

void leave_out_old_devices(DeviceSurvey& survey) {
  std::string old;
  std::erase_if(survey.devices, [&](const DeviceInfo& device) {
    if (device.major >= 8) return false;
    old += fmt::format("{}{} is sm_{}{}", old.empty() ? "" : ", ", device.name, device.major, device.minor);
    return true;
  });
  if (survey.devices.empty() && !old.empty()) survey.why_none = old + ", and the library needs sm_80 or newer";
}

}  // namespace sparsecast

#ifdef SPARSECAST_HAVE_CUDART

#include <cuda_runtime_api.h>

#include "core/memory_shortage.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

void check(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return;
  cudaGetLastError();  // Clears the last error for the next caller.
  throw Error(ErrorCode::kDevice, fmt::format("{}: {} ({})", call, cudaGetErrorString(code), cudaGetErrorName(code)));
}

/// Like check(), but ignores that the runtime has been unloaded, which can happen at the end of a program before the
/// library's last objects are destroyed. No work runs any more then.
void check_unless_unloaded(cudaError_t code, const char* call) {
  if (code != cudaErrorCudartUnloading) check(code, call);
}

/// While this guard exists, CUDA graph captures do not make this thread's calls fail, and the calls do not invalidate
/// captures, even one of this thread in which a destructor runs. This is safe, because the calls below use only the
/// transport's own objects. Not the guard of cuda/common, because test programs compile that for their emulated
/// runtime.
class BesideCaptures {
 public:
  BesideCaptures() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~BesideCaptures() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
    if (i == 3 || i == 5 || i == 7 || i == 9) text += '-';
  }
  return text;
}

/// Returns true if the driver cannot be asked. Like has_context() of cuda/common, which tests compile for their
/// emulated runtime in the same programs as this file.
bool primary_context_is_active(int device) {
  using GetState = int (*)(int device, unsigned* flags, int* active);
  static const GetState get_state = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &function, 12000, cudaEnableDefault, &found);
#else
    const cudaError_t error =
        cudaGetDriverEntryPoint("cuDevicePrimaryCtxGetState", &function, cudaEnableDefault, &found);
#endif
    if (error != cudaSuccess) cudaGetLastError();
    return error == cudaSuccess ? reinterpret_cast<GetState>(function) : nullptr;
  }();
  unsigned flags = 0;
  int active = 1;
  return get_state == nullptr || get_state(device, &flags, &active) != 0 || active != 0;
}

class CudaDeviceApi final : public DeviceApi {
 public:
  int current_device() override {
    int device = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    return device;
  }
  void use_device(int device) override { check(cudaSetDevice(device), "cudaSetDevice"); }
  bool has_context(int device) override { return primary_context_is_active(device); }
  std::string uuid(int device) override {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
    return uuid_text(properties.uuid);
  }
  bool holds(const void* d_pointer, int device) override {
    cudaPointerAttributes attributes{};
    check(cudaPointerGetAttributes(&attributes, d_pointer), "cudaPointerGetAttributes");
    return (attributes.type == cudaMemoryTypeDevice && attributes.device == device) ||
           attributes.type == cudaMemoryTypeManaged;
  }

  void* allocate(std::uint64_t bytes) override {
    const BesideCaptures guard;
    void* pointer = nullptr;
    cudaError_t code = cudaMalloc(&pointer, bytes);
    if (code == cudaErrorMemoryAllocation && release_cached_memory()) {
      cudaGetLastError();
      code = cudaMalloc(&pointer, bytes);
    }
    std::size_t free = 0;
    std::size_t total = 0;
    if (code == cudaErrorMemoryAllocation && cudaMemGetInfo(&free, &total) == cudaSuccess) {
      const std::string call =
          fmt::format("cudaMalloc of {} bytes for NCCL channels, on device {} with {} bytes free, of {}", bytes,
                      current_device(), free, total);
      check(code, call.c_str());
    }
    check(code, "cudaMalloc");
    return pointer;
  }
  void free(void* d_pointer) noexcept override {
    const BesideCaptures guard;
    cudaFree(d_pointer);
  }
  void* allocate_host(std::uint64_t bytes) override {
    const BesideCaptures guard;
    void* pointer = nullptr;
    check(cudaMallocHost(&pointer, bytes), "cudaMallocHost");
    return pointer;
  }
  void free_host(void* h_pointer) noexcept override {
    const BesideCaptures guard;
    cudaFreeHost(h_pointer);
  }

  void* create_stream() override {
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    return stream;
  }
  void destroy_stream(void* stream) noexcept override {
    const BesideCaptures guard;
    cudaStreamDestroy(static_cast<cudaStream_t>(stream));
  }
  void* create_event() override {
    cudaEvent_t event = nullptr;
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    return event;
  }
  void destroy_event(void* event) noexcept override {
    const BesideCaptures guard;
    cudaEventDestroy(static_cast<cudaEvent_t>(event));
  }
  void record(void* event, void* stream) override {
    check_unless_unloaded(cudaEventRecord(static_cast<cudaEvent_t>(event), static_cast<cudaStream_t>(stream)),
                          "cudaEventRecord");
  }
  void wait(void* stream, void* event) override {
    check(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), static_cast<cudaEvent_t>(event), 0),
          "cudaStreamWaitEvent");
  }
  bool finished(void* event) override {
    const BesideCaptures guard;
    const cudaError_t code = cudaEventQuery(static_cast<cudaEvent_t>(event));
    if (code == cudaErrorNotReady) {
      cudaGetLastError();  // Clears the last error: the runtime records cudaErrorNotReady.
      return false;
    }
    check_unless_unloaded(code, "cudaEventQuery");
    return true;
  }

  void copy_to_device(void* d_to, const void* h_from, std::uint64_t bytes, void* stream) override {
    copy(d_to, h_from, bytes, cudaMemcpyHostToDevice, stream);
  }
  void copy_to_host(void* h_to, const void* d_from, std::uint64_t bytes, void* stream) override {
    copy(h_to, d_from, bytes, cudaMemcpyDeviceToHost, stream);
  }
  void copy_on_device(void* d_to, const void* d_from, std::uint64_t bytes, void* stream) override {
    copy(d_to, d_from, bytes, cudaMemcpyDeviceToDevice, stream);
  }

 private:
  static void copy(void* to, const void* from, std::uint64_t bytes, cudaMemcpyKind kind, void* stream) {
    check(cudaMemcpyAsync(to, from, bytes, kind, static_cast<cudaStream_t>(stream)), "cudaMemcpyAsync");
  }
};

}  // namespace

DeviceApi& cuda_device_api() {
  static CudaDeviceApi api;
  return api;
}

DeviceSurvey survey_devices() {
  DeviceSurvey survey;
  cudaRuntimeGetVersion(&survey.runtime_version);
  cudaDriverGetVersion(&survey.driver_version);
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess || count == 0) {
    cudaGetLastError();
    survey.why_none = code == cudaSuccess ? "no CUDA-capable device is detected" : cudaGetErrorString(code);
    if (code == cudaErrorInsufficientDriver) {
      survey.why_none = why_driver_is_too_old(survey.driver_version, survey.runtime_version);
    }
    return survey;
  }
  for (int d = 0; d < count; ++d) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, d) != cudaSuccess) continue;
    survey.devices.push_back({d, properties.name, uuid_text(properties.uuid), properties.totalGlobalMem,
                              properties.major, properties.minor});
  }
  leave_out_old_devices(survey);
  return survey;
}

}  // namespace sparsecast

#else

namespace sparsecast {

DeviceSurvey survey_devices() {
  DeviceSurvey survey;
  survey.why_none = "this build of the library has no CUDA runtime";
  return survey;
}

}  // namespace sparsecast

#endif
