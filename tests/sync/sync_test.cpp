// SPDX-License-Identifier: Apache-2.0

// sync_send and sync_receive without MPI: what travels arrives bit for bit, version after version.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sync/sync_group.hpp"

namespace sparsecast::test {
namespace {

using testing::HasSubstr;

/// All ranks at the publisher's version, digest and bits.
void expect_all_synchronised(SyncGroup& group, const std::vector<RankResult>& results) {
  for (int rank = 0; rank < group.options.ranks; ++rank) {
    const RankResult& result = results[static_cast<std::size_t>(rank)];
    ASSERT_TRUE(result.report) << "rank " << rank << ": " << result.text();
    EXPECT_EQ(result.report->version, group.publisher->version()) << "rank " << rank;
    if (rank == 0) continue;
    EXPECT_EQ(group.subscriber(rank).version(), group.publisher->version()) << "rank " << rank;
    EXPECT_EQ(group.subscriber(rank).digest(), group.publisher->digest()) << "rank " << rank;
    EXPECT_EQ(group.wrong(rank), 0U) << "rank " << rank;
  }
}

TEST(Sync, LeavesAllReceiversBitIdenticalVersionAfterVersion) {
  SCOPED_TRACE(seed_note());
  for (const ValueCodec values : {ValueCodec::kUlp, ValueCodec::kXor, ValueCodec::kRaw}) {
    GroupOptions options;
    options.ranks = 4;
    options.encode.values = values;
    SyncGroup group(options);
    for (int version = 1; version <= 5; ++version) {
      group.model.train();
      const auto results = group.sync();
      expect_all_synchronised(group, results);
      EXPECT_GT(results[0].report->changed, 0U);
      EXPECT_EQ(results[1].report->changed, results[0].report->changed);
      EXPECT_EQ(results[1].report->wire_bytes, results[0].report->wire_bytes);
    }
    EXPECT_EQ(group.publisher->version(), 5U);
  }
}

TEST(Sync, MovesTheVersionAloneWhenNothingChanged) {
  SyncGroup group({});
  const StateDigest before = group.publisher->digest();
  const auto results = group.sync();
  expect_all_synchronised(group, results);
  EXPECT_EQ(results[1].report->version, 1U);
  EXPECT_EQ(results[1].report->changed, 0U);
  EXPECT_EQ(group.publisher->digest(), before);
}

TEST(Sync, CarriesAJumpOfEveryWeightInSeveralFrames) {
  GroupOptions options;
  options.width = 500;
  options.encode.frame_capacity = kMinFrameCapacity;
  options.encode.values = ValueCodec::kRaw;
  SyncGroup group(options);
  group.model.jump();
  const auto results = group.sync();
  expect_all_synchronised(group, results);
  EXPECT_EQ(results[1].report->changed, group.model.table()->elements());
  EXPECT_GT(results[1].report->wire_bytes, 2 * std::uint64_t{kMinFrameCapacity});
  EXPECT_LE(results[1].report->wire_bytes, group.model.table()->bytes() * 101 / 100);
}

TEST(Sync, WorksWithADetectorThatConsumesTheChangesAndJoinsWhatWasAborted) {
  SCOPED_TRACE(seed_note());
  GroupOptions options;
  options.fused_cast = true;
  SyncGroup group(options);
  group.model.train_masters();
  expect_all_synchronised(group, group.sync());

  group.model.train_masters();
  group.use_channel({.receive = [](int rank, std::vector<Bytes>& records) {
    if (rank == 2) records[1][100] ^= std::byte{1};
  }});
  const auto refused = group.sync();
  ASSERT_TRUE(refused[0].error) << refused[0].text();
  EXPECT_EQ(group.wrong(1), 0U);

  group.use_channel();
  group.model.train_masters();
  expect_all_synchronised(group, group.sync());
}

TEST(Sync, CountsAVerifiedDuplicateAsSuccessAndAppliesNothingAgain) {
  SyncGroup group({});
  group.model.train();
  // Rank 1 gets the delta on another way first, as from a publisher that crashed after its receivers had verified it.
  const Delta& delta = group.publisher->publish();
  group.subscriber(1).stage(delta);
  group.subscriber(1).apply();
  const Storage held = group.replica(1).bytes;
  group.publisher->abort(delta.info.version);
  group.publisher.emplace(
      group.model.table(),
      make_compare_detector(*group.model.table(), group.model.live(), const_tensor_views(group.committed)),
      PublisherOptions{}, group.subscriber(2).digest());
  const auto results = group.sync();
  expect_all_synchronised(group, results);
  EXPECT_EQ(results[1].report->changed, 0U);
  EXPECT_GT(results[2].report->changed, 0U);
  EXPECT_EQ(group.replica(1).bytes, held);
}

TEST(Sync, RefusesAStaleVersionThatIsNotWhatTheReceiverHolds) {
  SyncGroup group({});
  group.model.train();
  expect_all_synchronised(group, group.sync());
  // A second trainer that knows nothing of version 1 publishes another version 1.
  SyncGroup other({}, 99);
  other.model.train();
  PublisherOptions options;
  options.stream = Hash128{1, 2};
  group.publisher.emplace(
      group.model.table(),
      make_compare_detector(*group.model.table(), other.model.live(), const_tensor_views(other.committed)),
      PublisherOptions{});
  const Storage before = group.replica(1).bytes;
  const auto results = group.sync();
  for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(results[static_cast<std::size_t>(rank)].error) << "rank " << rank;
  EXPECT_EQ(results[1].error->code(), ErrorCode::kStaleVersion) << results[1].text();
  EXPECT_EQ(results[0].error->code(), ErrorCode::kPeerFailed) << results[0].text();
  EXPECT_THAT(results[0].error->message(), HasSubstr("stale_version"));
  EXPECT_EQ(group.replica(1).bytes, before);
}

TEST(Sync, TellsTheReceiversAtOnceWhenTheSourceCannotPublish) {
  SyncGroup group({});
  group.model.train();
  const std::uint64_t pending = group.publisher->publish().info.version;
  const auto results = group.sync();
  ASSERT_TRUE(results[0].error && results[1].error && results[2].error);
  EXPECT_EQ(results[0].error->code(), ErrorCode::kUsage) << results[0].text();
  EXPECT_EQ(results[1].error->code(), ErrorCode::kPeerFailed) << results[1].text();
  EXPECT_TRUE(group.publisher->pending()) << "the delta of another caller was aborted";
  group.publisher->abort(pending);
  expect_all_synchronised(group, group.sync());
}

}  // namespace
}  // namespace sparsecast::test
