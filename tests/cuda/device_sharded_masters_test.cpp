// SPDX-License-Identifier: Apache-2.0

// Sharded publishers over fp32 masters on a device, for engines on a device.

#include <gtest/gtest.h>

#include "support/expect_error.hpp"
#include "support/sharded_masters.hpp"
#include "tests/cuda/sharded_scene.hpp"

namespace sparsecast::test {
namespace {

/// A rank's local tensors in device memory, and of a trainer the snapshot there or in pinned memory.
template <bool kPinned>
class ShardsOnDevice {
 public:
  explicit ShardsOnDevice(const LocalStorage& tensors) : storage_(tensors) {}
  void write(const LocalStorage& tensors) { storage_.write(tensors); }
  LocalStorage read() const { return storage_.read(); }
  ShardedPublisher publisher(const std::shared_ptr<const Layout>& layout, std::size_t place, ShardedOptions options) {
    options.pinned_snapshot = kPinned;
    return {layout, place, refs(*layout, place), std::move(options), device()};
  }
  ShardedSubscriber subscriber(const char* engine, const std::shared_ptr<const Layout>& layout, std::size_t place,
                               ShardedOptions options) {
    return {engine, layout, place, refs(*layout, place), std::move(options), device()};
  }

 private:
  std::vector<TensorRef> refs(const Layout& layout, std::size_t place) const {
    return with_masters(refs_to(layout, place, storage_.pointers(), 0), storage_.read());
  }
  static DeviceOptions device() {
    DeviceOptions options;
    options.chunk_bytes = 100'000;
    return options;
  }

  const LateCopies late_;
  DeviceStorage storage_;
};

using DeviceShards = ShardsOnDevice<false>;
using PinnedShards = ShardsOnDevice<true>;

class DeviceShardedMasters : public testing::Test {
 protected:
  void SetUp() override {
    if (!device_present()) GTEST_SKIP() << "no device";
  }
};

TEST_F(DeviceShardedMasters, EveryVersionOnEveryEngineIsTheCastBitForBit) {
  expect_every_version_is_the_cast<DeviceShards>(ValueCodec::kUlp);
}

TEST_F(DeviceShardedMasters, AFailedSyncIsRolledBackAndAnAnchorIsWhatWasCommitted) {
  for (const ValueCodec values : {ValueCodec::kUlp, ValueCodec::kRaw}) {
    expect_a_failed_sync_is_rolled_back_and_an_anchor_is_what_was_committed<DeviceShards>(values);
  }
}

TEST_F(DeviceShardedMasters, ACastSnapshotInPinnedMemoryIsTheSame) {
  expect_every_version_is_the_cast<PinnedShards>(ValueCodec::kUlp);
  expect_a_failed_sync_is_rolled_back_and_an_anchor_is_what_was_committed<PinnedShards>(ValueCodec::kUlp);
  expect_a_failed_sync_is_rolled_back_and_an_anchor_is_what_was_committed<PinnedShards>(ValueCodec::kRaw);
  expect_a_sync_in_doubt_is_settled<PinnedShards>(ValueCodec::kXor);
  expect_an_engine_of_another_cut_may_join<PinnedShards>(ValueCodec::kXor);
}

TEST_F(DeviceShardedMasters, APinnedSnapshotIsThatOfAPublisherOnADevice) {
  const MasterScene scene;
  LocalStorage host = scene.wire(*scene.engine_a, 0, 0);
  const DeviceStorage storage(host);
  ShardedOptions options;
  options.pinned_snapshot = true;
  expect_error(ErrorCode::kUsage,
               [&] { ShardedPublisher(scene.engine_a, 0, refs_of(*scene.engine_a, 0, host), options); }, {"pinned"});
  const std::vector<TensorRef> served = refs_to(*scene.engine_a, 0, storage.pointers(), 0);
  expect_error(ErrorCode::kUsage, [&] { ShardedSubscriber("a", scene.engine_a, 0, served, options); },
               {"an engine has none"});
}

TEST_F(DeviceShardedMasters, ASyncInDoubtIsSettledByTheNextRegroup) {
  expect_a_sync_in_doubt_is_settled<DeviceShards>(ValueCodec::kXor);
}

TEST_F(DeviceShardedMasters, ADoubtCanBeEndedWithoutTheTrainer) {
  expect_a_doubt_can_be_ended_without_the_trainer<DeviceShards>(ValueCodec::kXor);
}

TEST_F(DeviceShardedMasters, AnEngineOfAnotherCutMayJoinWhileTheMastersMoveOn) {
  expect_an_engine_of_another_cut_may_join<DeviceShards>(ValueCodec::kXor);
}

TEST_F(DeviceShardedMasters, MastersThatDoNotFitAreRefusedByName) {
  const MasterScene scene;
  const DeviceStorage storage(scene.held(0, 0));
  std::vector<TensorRef> local = with_masters(refs_to(*scene.trainer, 0, storage.pointers(), 0), storage.read());
  const auto make = [&] { ShardedPublisher(scene.trainer, 0, local, ShardedOptions{}); };
  make();
  local[0].data += 2;
  expect_error(ErrorCode::kUsage, make, {"rank 0: local tensor 'a.weight'", "aligned"});
  local[0].dtype = DType::kF64;
  expect_error(ErrorCode::kUsage, make, {"local tensor 'a.weight'", "F64 given for BF16"});
}

}  // namespace
}  // namespace sparsecast::test
