// SPDX-License-Identifier: Apache-2.0

// Sharded publishers over fp32 masters in host memory.

#include <gtest/gtest.h>

#include "support/expect_error.hpp"
#include "support/sharded_masters.hpp"

namespace sparsecast::test {
namespace {

TEST(ShardedMasters, EveryVersionOnEveryEngineIsTheCastBitForBit) {
  expect_every_version_is_the_cast<HostShards>(ValueCodec::kUlp);
}

TEST(ShardedMasters, AFailedSyncIsRolledBackAndAnAnchorIsWhatWasCommitted) {
  for (const ValueCodec values : {ValueCodec::kUlp, ValueCodec::kRaw}) {
    expect_a_failed_sync_is_rolled_back_and_an_anchor_is_what_was_committed<HostShards>(values);
  }
}

TEST(ShardedMasters, ASyncInDoubtIsSettledByTheNextRegroup) {
  for (const ValueCodec values : {ValueCodec::kXor, ValueCodec::kRaw}) {
    expect_a_sync_in_doubt_is_settled<HostShards>(values);
  }
}

TEST(ShardedMasters, ADoubtCanBeEndedWithoutTheTrainer) {
  for (const ValueCodec values : {ValueCodec::kUlp, ValueCodec::kXor, ValueCodec::kRaw}) {
    expect_a_doubt_can_be_ended_without_the_trainer<HostShards>(values);
  }
}

TEST(ShardedMasters, AnEngineOfAnotherCutMayJoinWhileTheMastersMoveOn) {
  expect_an_engine_of_another_cut_may_join<HostShards>(ValueCodec::kXor);
}

TEST(ShardedMasters, WhatDoesNotFitIsRefusedByName) {
  const MasterScene scene;
  LocalStorage held = scene.held(0, 0);
  LocalStorage wire = scene.wire(*scene.trainer, 0, 0);
  const auto make = [&](const std::vector<TensorRef>& local) {
    ShardedPublisher(scene.trainer, 0, local, ShardedOptions{});
  };
  make(refs_of(*scene.trainer, 0, wire));
  // Nothing is guessed from sizes.
  expect_error(ErrorCode::kUsage, [&] { make(refs_of(*scene.trainer, 0, held)); },
               {"bytes for", "local tensor 'a.weight'"});
  std::vector<void*> data;
  for (std::vector<std::byte>& tensor : held) data.push_back(tensor.data());
  const std::vector<TensorRef> masters = with_masters(refs_to(*scene.trainer, 0, data, kHostMemory), held);
  make(masters);
  std::vector<TensorRef> local = masters;
  local[0].dtype = DType::kF16;
  expect_error(ErrorCode::kUsage, [&] { make(local); }, {"F16 given for BF16", "rank 0: local tensor 'a.weight'"});
  local = masters;
  local[1].dtype = DType::kBF16;
  expect_error(ErrorCode::kUsage, [&] { make(local); }, {"BF16 given for F32", "local tensor 'norm.weight'"});
  local.pop_back();
  expect_error(ErrorCode::kUsage, [&] { make(local); }, {"5 local tensors for a layout of 6", "rank 0"});
  LocalStorage engine = scene.wire(*scene.engine_b, 0, 0);
  std::vector<TensorRef> served = refs_of(*scene.engine_b, 0, engine);
  for (TensorRef& ref : served) {
    if (ref.dtype == DType::kBF16) ref.dtype = DType::kF32;
  }
  expect_error(ErrorCode::kUsage, [&] { ShardedSubscriber("b", scene.engine_b, 0, served, ShardedOptions{}); },
               {"F32 given for BF16", "engine"});
}

}  // namespace
}  // namespace sparsecast::test
