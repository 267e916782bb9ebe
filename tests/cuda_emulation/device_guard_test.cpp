// SPDX-License-Identifier: Apache-2.0

// Which devices get a context: one that no tensor lies on must get none, whatever thread works or cleans up.

#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "cuda_emulation/every_owner.hpp"
#include "cuda_emulation/runtime.hpp"
#include "tests/cuda/sharded_scene.hpp"
#include "transport/tcp/meeting.hpp"

namespace sparsecast::test {
namespace {

TEST(DeviceGuard, SetsAndRestoresTheDeviceWithoutMakingAnotherContext) {
  emulation::forget_contexts();
  std::jthread([] {
    const cuda::DeviceGuard guard(1);
    EXPECT_EQ(cuda::current_device(), 1);
  }).join();
  EXPECT_TRUE(emulation::has_context(1));
  EXPECT_FALSE(emulation::has_context(0)) << "by restoring the device of a new thread";
}

TEST(DeviceGuard, RestoresADeviceThatIsInUse) {
  std::jthread([] {
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    { const cuda::DeviceGuard guard(1); }
    EXPECT_EQ(cuda::current_device(), 0);
  }).join();
}

TEST(DeviceGuard, OwnersReleaseOnTheirDeviceInAnyThread) {
  emulation::forget_contexts();
  std::jthread([] {
    ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
    auto owners = std::make_unique<EveryOwner>();
    std::jthread([&] { owners.reset(); }).join();
  }).join();
  EXPECT_FALSE(emulation::has_context(0));
}

TEST(DeviceGuard, ARankOfASyncOnOneDeviceMakesNoContextOnAnother) {
  emulation::forget_contexts();
  const ShardedScene scene{ShardedSetting{}};
  Meeting meeting(meeting_options(ShardedScene::kRanks, std::chrono::seconds(60)));
  meeting.run([&](const std::shared_ptr<Rendezvous>& channel) {
    ASSERT_EQ(cudaSetDevice(1), cudaSuccess);  // As a trainer does.
    SceneRank rank(scene, channel->rank());
    rank.regroup(channel);
    for (std::uint64_t v = 1; v <= 2; ++v) {
      rank.train(v);
      rank.sync();
      EXPECT_EQ(rank.wrong(v), 0U);
    }
    std::jthread([&] {  // As a collector of garbage does.
      rank.publisher().reset();
      rank.subscriber().reset();
    })
        .join();
  });
  EXPECT_TRUE(emulation::has_context(1));
  EXPECT_FALSE(emulation::has_context(0)) << "by a thread of the library";
}

}  // namespace
}  // namespace sparsecast::test
