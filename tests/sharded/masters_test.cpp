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
  ShardedOptions options;
  const auto make = [&](LocalStorage& tensors) { ShardedPublisher(scene.trainer, 0, views_of(tensors), options); };
  make(wire);
  // Nothing is guessed from sizes.
  expect_error(ErrorCode::kUsage, [&] { make(held); }, {"bytes for", "local tensor 'a.weight'"});
  options.local_dtypes = scene.dtypes(0);
  make(held);
  expect_error(ErrorCode::kUsage, [&] { make(wire); }, {"bytes for", "local tensor 'a.weight'"});
  options.local_dtypes[0] = DType::kF16;
  expect_error(ErrorCode::kUsage, [&] { make(wire); }, {"F16 given for BF16", "rank 0: local tensor 'a.weight'"});
  options.local_dtypes = scene.dtypes(0);
  options.local_dtypes[1] = DType::kBF16;
  expect_error(ErrorCode::kUsage, [&] { make(held); }, {"BF16 given for F32", "local tensor 'norm.weight'"});
  options.local_dtypes.pop_back();
  expect_error(ErrorCode::kUsage, [&] { make(held); }, {"5 dtypes for 6 local tensors", "rank 0"});
  options.local_dtypes = scene.dtypes(0);
  expect_error(ErrorCode::kUsage, [&] { ShardedSubscriber("b", scene.engine_b, 0, views_of(wire), options); },
               {"local_dtypes", "publisher's"});
}

}  // namespace
}  // namespace sparsecast::test
