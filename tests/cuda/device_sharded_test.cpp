// SPDX-License-Identifier: Apache-2.0

// Sharded syncs whose local tensors lie on a device, on both sides or on one; on an emulated device, ranks' kernels
// take turns, and all else of the ranks runs at once.

#include <gtest/gtest.h>

#include "support/expect_error.hpp"
#include "tests/cuda/device_access.hpp"
#include "tests/cuda/sharded_scene.hpp"
#include "transport/tcp/meeting.hpp"

namespace sparsecast::test {
namespace {

class DeviceSharded : public testing::TestWithParam<ShardedSetting> {
 protected:
  void SetUp() override {
    if (!device_present()) GTEST_SKIP() << "no device";
  }

  /// Runs body(channel) as each rank.
  template <class Body>
  void run(const Body& body) {
    Meeting meeting(meeting_options(ShardedScene::kRanks, std::chrono::seconds(60)));
    meeting.run([&](const std::shared_ptr<Rendezvous>& channel) { body(channel); });
  }

  const ShardedScene scene_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Settings, DeviceSharded, testing::ValuesIn(sharded_settings()), name_of_setting);

TEST_P(DeviceSharded, EveryVersionReachesEnginesOfAnotherCutBitForBit) {
  run([&](const std::shared_ptr<Rendezvous>& channel) {
    SceneRank rank(scene_, channel->rank());
    rank.regroup(channel);
    for (std::uint64_t v = 1; v <= 5; ++v) {
      rank.train(v);
      const ShardedReport report = rank.sync();
      EXPECT_EQ(report.version, v);
      EXPECT_EQ(rank.version(), v);
      EXPECT_EQ(rank.wrong(v), 0U) << "rank " << channel->rank() << ", version " << v;
      EXPECT_GT(report.changed + report.applied, 0U);
    }
    if (rank.subscriber()) rank.subscriber()->audit();
  });
}

TEST_P(DeviceSharded, AnEngineThatHasForgottenEverythingIsSeeded) {
  Meeting again(meeting_options(ShardedScene::kRanks, std::chrono::seconds(60)));
  run([&](const std::shared_ptr<Rendezvous>& channel) {
    const int r = channel->rank();
    SceneRank rank(scene_, r);
    rank.regroup(channel);
    for (std::uint64_t v = 1; v <= 2; ++v) {
      rank.train(v);
      rank.sync();
    }
    if (r >= 4) rank.forget();
    // Seeded with what was committed, not with what the trainer holds by now.
    rank.train(3);
    rank.regroup(again.meet(r));
    EXPECT_EQ(rank.version(), 2U);
    EXPECT_EQ(rank.wrong(rank.publisher() ? 3 : 2), 0U) << "rank " << r;
    for (std::uint64_t v = 3; v <= 4; ++v) {
      if (v > 3) rank.train(v);
      EXPECT_EQ(rank.sync().version, v);
      EXPECT_EQ(rank.wrong(v), 0U) << "rank " << r << ", version " << v;
    }
  });
}

TEST_P(DeviceSharded, FlippedBitsAreFoundRolledBackEverywhereElseAndHealedByAnAnchor) {
  Meeting again(meeting_options(ShardedScene::kRanks, std::chrono::seconds(60)));
  run([&](const std::shared_ptr<Rendezvous>& channel) {
    const int r = channel->rank();
    SceneRank rank(scene_, r);
    rank.regroup(channel);
    rank.train(1);
    rank.sync();
    if (r == 3) {
      rank.spoil(std::byte{0x10});
      EXPECT_NE(words_of([&] { rank.subscriber()->audit(); }).find("dirty: "), std::string::npos);
    }
    rank.train(2);
    const std::string words = words_of([&] { rank.sync(); });
    EXPECT_NE(words.find(r == 3 ? "dirty: " : "engine 'a' rank 1"), std::string::npos) << words;
    EXPECT_EQ(rank.version(), 1U);
    if (r != 3 && r >= 2) {
      EXPECT_EQ(rank.wrong(1), 0U) << "rank " << r << " took its apply back";
    }
    if (r == 3) rank.forget();
    rank.regroup(again.meet(r));
    EXPECT_EQ(rank.version(), 1U);
    rank.train(3);
    EXPECT_EQ(rank.sync().version, 3U) << "the attempt that failed had number 2";
    EXPECT_EQ(rank.wrong(3), 0U) << "rank " << r;
  });
}

TEST_P(DeviceSharded, ASpoiltEngineIsNamedByTheSyncThatItFailsAndByTheNextRegroup) {
  Meeting again(meeting_options(ShardedScene::kRanks, std::chrono::seconds(60)));
  run([&](const std::shared_ptr<Rendezvous>& channel) {
    const int r = channel->rank();
    SceneRank rank(scene_, r);
    rank.regroup(channel);
    if (r == 5) rank.spoil(std::byte{0x01});
    rank.train(1);
    const std::string words = words_of([&] { rank.sync(); });
    EXPECT_NE(words.find(r == 5 ? "digest_mismatch: " : "engine 'b' rank 1 failed"), std::string::npos) << words;
    EXPECT_EQ(rank.version(), 0U);
    if (r >= 2 && r != 5) {
      EXPECT_EQ(rank.wrong(0), 0U) << "rank " << r << " took its apply back";
    }
    const std::string refused = words_of([&] { rank.regroup(again.meet(r)); });
    EXPECT_NE(refused.find(r == 5 ? "wrong_base: " : "engine 'b' rank 1 failed"), std::string::npos) << refused;
  });
}

TEST_P(DeviceSharded, RanksThatTrainAndServeAtOnceReachEveryVersion) {
  Meeting meeting(meeting_options(2, std::chrono::seconds(60)));
  meeting.run([&](const std::shared_ptr<Rendezvous>& channel) {
    SceneRank trainer(scene_, channel->rank());
    SceneRank engine(scene_, 2 + channel->rank());
    engine.forget();
    ColocatedRank both(*trainer.publisher(), *engine.subscriber());
    both.regroup(channel, open_control_groups(), std::chrono::seconds(60));
    for (std::uint64_t v = 1; v <= 3; ++v) {
      trainer.train(v);
      EXPECT_EQ(both.sync(std::chrono::seconds(60)).version, v);
      EXPECT_EQ(engine.wrong(v), 0U) << "rank " << channel->rank() << ", version " << v;
    }
  });
}

TEST_P(DeviceSharded, AnEngineMayMoveToOtherMemory) {
  Meeting again(meeting_options(ShardedScene::kRanks, std::chrono::seconds(60)));
  run([&](const std::shared_ptr<Rendezvous>& channel) {
    const int r = channel->rank();
    SceneRank rank(scene_, r);
    rank.regroup(channel);
    rank.train(1);
    rank.sync();
    if (r == 3) rank.move();
    rank.regroup(again.meet(r));
    rank.train(2);
    rank.sync();
    EXPECT_EQ(rank.wrong(2), 0U) << "rank " << r;
  });
}

TEST(DeviceShardedErrors, WhatDoesNotFitIsRefusedByName) {
  if (!device_present()) GTEST_SKIP() << "no device";
  const ShardedScene scene{ShardedSetting{}};
  const LocalStorage host = scene.weights.make(*scene.trainer, 0, 0);
  const DeviceStorage storage(host);
  const auto make = [&](const std::vector<void*>& d_local, const ShardedOptions& options = {},
                        const DeviceOptions& device = {}) {
    ShardedPublisher publisher(scene.trainer, 0, refs_to(*scene.trainer, 0, d_local, 0), options, device);
  };
  std::vector<void*> d_local = storage.pointers();
  make(d_local);
  d_local[1] = nullptr;
  expect_error(ErrorCode::kUsage, [&] { make(d_local); }, {"rank 0: local tensor 'b.weight'", "null"});
  d_local = storage.pointers();
  d_local[0] = static_cast<std::byte*>(d_local[0]) + 1;
  expect_error(ErrorCode::kUsage, [&] { make(d_local); }, {"local tensor 'a.weight'", "aligned"});
  d_local.pop_back();
  expect_error(ErrorCode::kUsage, [&] { make(d_local); }, {"4 local tensors for a layout of 5"});
  ShardedOptions compressed;
  compressed.encode.zstd_level = 1;
  expect_error(ErrorCode::kUnsupported, [&] { make(storage.pointers(), compressed); }, {"zstd"});
  DeviceOptions each_its_own;
  each_its_own.cuda_stream = reinterpret_cast<cudaStream_t>(std::uintptr_t{2});  // cudaStreamPerThread
  expect_error(ErrorCode::kUsage, [&] { make(storage.pointers(), {}, each_its_own); }, {"cudaStreamPerThread"});
}

}  // namespace
}  // namespace sparsecast::test
