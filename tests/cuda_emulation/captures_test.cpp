// SPDX-License-Identifier: Apache-2.0

// What the library does to captures of CUDA graphs by other threads, and in the thread that captures: nothing. A call
// that a capture forbids fails, and so does the capture.

#include <gtest/gtest.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "cuda/common/device_stream.hpp"
#include "cuda_emulation/every_owner.hpp"
#include "support/expect_error.hpp"
#include "tests/cuda/sharded_scene.hpp"
#include "transport/tcp/meeting.hpp"

namespace sparsecast::test {
namespace {

/// A capture of one memset, as torch.cuda.graph makes it: in global mode.
class Capture {
 public:
  Capture() {
    cuda::check(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
    cuda::check(cudaMemsetAsync(&byte_, 7, 1, stream_.get()), "cudaMemsetAsync");
  }
  cudaError_t end() {
    cudaGraph_t graph = nullptr;
    const cudaError_t result = cudaStreamEndCapture(stream_.get(), &graph);
    if (result == cudaSuccess) static_cast<void>(cudaGraphDestroy(graph));
    static_cast<void>(cudaGetLastError());
    return result;
  }

 private:
  cuda::Stream stream_;
  char byte_ = 0;
};

/// A thread that captures until end().
class CapturingThread {
 public:
  CapturingThread()
      : thread_([this] {
          Capture capture;
          std::unique_lock lock(mutex_);
          begun_ = true;
          changed_.notify_all();
          changed_.wait(lock, [this] { return ends_; });
          result_ = capture.end();
        }) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return begun_; });
  }
  ~CapturingThread() { static_cast<void>(end()); }
  /// Returns what the end of the capture has returned.
  cudaError_t end() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
      changed_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
    return result_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool begun_ = false;
  bool ends_ = false;
  cudaError_t result_ = cudaSuccess;
  std::thread thread_;
};

TEST(Captures, InGlobalModeForbidCallsOfOtherThreadsAndFailByThem) {
  CapturingThread other;
  expect_error(ErrorCode::kDevice, [] { static_cast<void>(cuda::DeviceMemory(8)); }, {"cudaMalloc"});
  EXPECT_EQ(other.end(), cudaErrorStreamCaptureInvalidated);
}

TEST(Captures, OfOtherThreadsForbidNothingToAThreadThatHasEntered) {
  CapturingThread other;
  {
    const cuda::DeviceGuard guard(0);
    const cuda::Stream stream;
    cuda::DeviceMemory memory(8);
    cuda::Graph graph;
    graph.capture([&](cudaStream_t to) { ASSERT_EQ(cudaMemsetAsync(memory.as(), 0, 8, to), cudaSuccess); });
    graph.launch(stream.get());
    cuda::HostWait(std::chrono::seconds(10)).wait(stream.get(), "clear the memory");
    const cuda::PinnedMemory pinned(8);
  }
  EXPECT_EQ(other.end(), cudaSuccess);
}

TEST(Captures, OfAThreadForbidItToWorkOnTheDevice) {
  Capture own;
  {
    const cuda::DeviceGuard guard(0);
    expect_error(ErrorCode::kDevice, [] { static_cast<void>(cuda::DeviceMemory(8)); }, {"cudaMalloc"});
  }
  EXPECT_EQ(own.end(), cudaErrorStreamCaptureInvalidated);
}

TEST(Captures, AreNotHarmedByDestructorsThatRunInTheirThread) {
  auto owners = std::make_unique<EveryOwner>();
  const std::size_t live = emulation::thread_counts().live_allocations;
  Capture own;
  owners.reset();
  EXPECT_EQ(emulation::thread_counts().live_allocations, live - 2);
  EXPECT_EQ(own.end(), cudaSuccess);
}

TEST(Captures, EnteringKeepsTheModeOfTheThread) {
  for (const cudaStreamCaptureMode mode : {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeRelaxed}) {
    cudaStreamCaptureMode kept = mode;
    ASSERT_EQ(cudaThreadExchangeStreamCaptureMode(&kept), cudaSuccess);
    {
      const cuda::DeviceGuard guard(1);
      const cuda::DeviceGuard again(0);
    }
    cuda::release_on(1, [] { return cudaSuccess; });
    ASSERT_EQ(cudaThreadExchangeStreamCaptureMode(&kept), cudaSuccess);
    EXPECT_EQ(kept, mode);
  }
}

TEST(Captures, OfAnotherThreadGoOnBesideASync) {
  const ShardedScene scene{ShardedSetting{}};
  CapturingThread other;
  Meeting meeting(meeting_options(ShardedScene::kRanks, std::chrono::seconds(60)));
  Meeting again(meeting_options(ShardedScene::kRanks, std::chrono::seconds(60)));
  meeting.run([&](const std::shared_ptr<Rendezvous>& channel) {
    SceneRank rank(scene, channel->rank());
    rank.regroup(channel);
    for (std::uint64_t v = 1; v <= 3; ++v) {
      rank.train(v);
      rank.sync();
      EXPECT_EQ(rank.wrong(v), 0U);
    }
    if (channel->rank() >= 4) rank.forget();  // It gets an anchor.
    rank.regroup(again.meet(channel->rank()));
    EXPECT_EQ(rank.wrong(3), 0U);
  });
  EXPECT_EQ(other.end(), cudaSuccess);
}

}  // namespace
}  // namespace sparsecast::test
