// SPDX-License-Identifier: Apache-2.0

// Errors of the device that stay, calls with things of another device, and a runtime that is gone.

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "cuda/common/device_memory.hpp"
#include "cuda/common/device_stream.hpp"
#include "cuda/common/graph.hpp"
#include "cuda_emulation/cuda_emulation.hpp"
#include "sparsecast/publisher.hpp"
#include "sparsecast/subscriber.hpp"
#include "support/detectors.hpp"
#include "support/expect_error.hpp"
#include "support/expected_leak.hpp"

namespace sparsecast::test {
namespace {

constexpr const char* kCause = "this or an earlier kernel";

/// A device on which every call fails.
class BrokenDevice {
 public:
  explicit BrokenDevice(cudaError_t error) { emulation::break_device(0, error); }
  ~BrokenDevice() {
    emulation::break_device(0, cudaSuccess);
    static_cast<void>(cudaGetLastError());
  }
  BrokenDevice(const BrokenDevice&) = delete;
  BrokenDevice& operator=(const BrokenDevice&) = delete;
};

TEST(StickyErrors, AreOfThisOrAnEarlierKernel) {
  for (const cudaError_t error : {cudaErrorIllegalAddress, cudaErrorECCUncorrectable, cudaErrorLaunchTimeout,
                                  cudaErrorAssert, cudaErrorHardwareStackError, cudaErrorLaunchFailure}) {
    expect_error(ErrorCode::kDevice, [&] { cuda::check(error, "cudaEventQuery"); }, {"cudaEventQuery", kCause});
  }
  for (const cudaError_t error :
       {cudaErrorInvalidValue, cudaErrorInvalidResourceHandle, cudaErrorLaunchOutOfResources, cudaErrorNotReady}) {
    const std::string text = words_of([&] { cuda::check(error, "cudaEventQuery"); });
    EXPECT_EQ(text.find(kCause), std::string::npos) << text;
  }
}

TEST(StickyErrors, OfAnotherLibraryEndAPublisherAndASubscriberWithThatReason) {
  const ExpectedLeak of_a_broken_device;
  const auto table = std::make_shared<const TensorTable>(std::vector<TensorSpec>{{"t", DType::kBF16, {40'000}}});
  std::vector<std::byte> weights(table->bytes());
  std::vector<std::byte> held(table->bytes());
  std::optional<Publisher> publisher(std::in_place, table, device_snapshot(table, {weights.data()}),
                                     PublisherOptions{});
  std::optional<Subscriber> subscriber(std::in_place, table, device_refs(*table, {held.data()}, {}),
                                       SubscriberOptions{}, DeviceOptions{.device = 0});
  weights[5] ^= std::byte{1};
  const Delta& delta = publisher->publish();
  const BrokenDevice broken(cudaErrorIllegalAddress);
  for (int call = 0; call < 2; ++call) {
    expect_error(ErrorCode::kDevice, [&] { publisher->abort(1); }, {"cudaErrorIllegalAddress", kCause});
    expect_error(ErrorCode::kDevice, [&] { subscriber->audit(); }, {"cudaErrorIllegalAddress", kCause});
    expect_error(ErrorCode::kDevice, [&] { static_cast<void>(cuda::DeviceMemory(8)); }, {"cudaMalloc", kCause});
  }
  EXPECT_EQ(delta.info.version, 1U);
  publisher.reset();
  subscriber.reset();
}

__global__ void nothing() {}

TEST(ForeignDevices, EventsAndKernelsOfAnotherDeviceThanTheStreamAreRefused) {
  const cuda::Stream of_0;
  const cuda::Event event_of_0;
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  {
    const cuda::Stream of_1;
    EXPECT_EQ(cudaEventRecord(event_of_0.get(), of_1.get()), cudaErrorInvalidResourceHandle);
    EXPECT_EQ(cudaEventRecord(event_of_0.get(), nullptr), cudaErrorInvalidResourceHandle);
    EXPECT_EQ(cudaEventRecord(event_of_0.get(), of_0.get()), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(of_1.get(), event_of_0.get(), 0), cudaSuccess);
    EXPECT_EQ(cudaEventQuery(event_of_0.get()), cudaSuccess);
    const auto launch = [](cudaStream_t stream) {
      return emulation::launch_grid(stream, 1, 32, reinterpret_cast<const void*>(&nothing), [] { nothing(); });
    };
    EXPECT_EQ(launch(of_0.get()), cudaErrorInvalidResourceHandle);
    EXPECT_EQ(launch(of_1.get()), cudaSuccess);
  }
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  static_cast<void>(cudaGetLastError());
}

}  // namespace
}  // namespace sparsecast::test
