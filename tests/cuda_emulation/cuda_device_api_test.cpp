// SPDX-License-Identifier: Apache-2.0

// The runtime's calls of the NCCL transport, compiled once more, over the emulated runtime.

#include "transport/nccl/device_api.hpp"

#ifndef SPARSECAST_HAVE_CUDART
#define SPARSECAST_HAVE_CUDART 1
#endif
// The library has the real ones.
#define why_driver_is_too_old emulated_why_driver_is_too_old
#define leave_out_old_devices emulated_leave_out_old_devices
#define cuda_device_api emulated_device_api
#define survey_devices emulated_survey
#include "transport/nccl/cuda_device_api.cpp"  // NOLINT(bugprone-suspicious-include)

#include <gtest/gtest.h>

#include "support/expect_error.hpp"

namespace sparsecast::test {
namespace {

TEST(CudaDeviceApi, NeitherHarmsNorHeedsACaptureEvenOfItsThread) {
  DeviceApi& api = emulated_device_api();
  cudaStream_t captured = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&captured, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(captured, cudaStreamCaptureModeGlobal), cudaSuccess);
  void* const d_bytes = api.allocate(64);
  void* const h_bytes = api.allocate_host(64);
  void* const event = api.create_event();
  void* const stream = api.create_stream();
  api.copy_to_device(d_bytes, h_bytes, 64, stream);
  api.record(event, stream);
  EXPECT_TRUE(api.finished(event));
  api.destroy_stream(stream);
  api.destroy_event(event);
  api.free_host(h_bytes);
  api.free(d_bytes);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(captured, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(captured), cudaSuccess);
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  EXPECT_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
  EXPECT_EQ(mode, cudaStreamCaptureModeGlobal);
}

TEST(CudaDeviceApi, SaysWhatMemoryWasWantedAndAsksTheProgramForIt) {
  DeviceApi& api = emulated_device_api();
  emulation::limit_memory(0, 1'000);
  static void* kept = api.allocate(800);
  expect_error(ErrorCode::kDevice, [&] { api.allocate(300); },
               {"out of memory", "300 bytes", "device 0 with 200 bytes free, of 1000"});
  release_memory_by([]() noexcept { emulated_device_api().free(kept); });
  void* const d_bytes = api.allocate(300);
  release_memory_by(nullptr);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  api.free(d_bytes);
  emulation::limit_memory(0);
}

TEST(CudaDeviceApi, TakesNothingForRunningOnceTheRuntimeIsGone) {
  DeviceApi& api = emulated_device_api();
  void* const event = api.create_event();
  emulation::break_device(0, cudaErrorCudartUnloading);
  api.record(event, nullptr);
  EXPECT_TRUE(api.finished(event));
  emulation::break_device(0, cudaSuccess);
  api.destroy_event(event);
  static_cast<void>(cudaGetLastError());
}

}  // namespace
}  // namespace sparsecast::test
