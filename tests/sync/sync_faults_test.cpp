// SPDX-License-Identifier: Apache-2.0

// A failed sync leaves every rank at the old version or the new one, and says why.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "sync/sync_group.hpp"

namespace sparsecast::test {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr milliseconds kShort{1500};  ///< Timeout of a sync that must time out; all other syncs have a minute.

ErrorCode code_of(const RankResult& result) {
  EXPECT_TRUE(result.error) << result.text();
  return result.error ? result.error->code() : ErrorCode{};
}

/// Rank 0 and all receivers hold `version`, clean, with the committed bits.
void expect_all_at(SyncGroup& group, std::uint64_t version) {
  EXPECT_EQ(group.publisher->version(), version);
  EXPECT_FALSE(group.publisher->pending());
  for (int rank = 1; rank < group.options.ranks; ++rank) {
    EXPECT_EQ(group.subscriber(rank).version(), version) << "rank " << rank;
    EXPECT_FALSE(group.subscriber(rank).dirty()) << "rank " << rank;
    EXPECT_FALSE(group.subscriber(rank).ready()) << "rank " << rank << " still holds a staged delta";
    EXPECT_EQ(group.wrong(rank), 0U) << "rank " << rank;
    EXPECT_NO_THROW(group.subscriber(rank).audit()) << "rank " << rank;
  }
}

/// A sync without faults brings everyone to the trainer's weights.
void expect_recovery(SyncGroup& group) {
  group.use_channel();
  for (const RankResult& result : group.sync()) EXPECT_TRUE(result.report) << result.text();
  expect_all_at(group, group.publisher->version());
  EXPECT_EQ(count_wrong(*group.model.table(), group.committed, group.model.weights()), 0U);
}

TEST(SyncFaults, AReceiverWithAWrongBaseIsRefusedEverywhereAndRepairedByAnAnchor) {
  SyncGroup group({});
  group.replica(2).bytes[0][7] ^= std::byte{0x40};
  group.subscriber(2) = Subscriber(
      group.model.table(), refs_to(*group.model.table(), tensor_views(group.replica(2).bytes)), SubscriberOptions{});
  group.model.train();
  const auto results = group.sync();
  EXPECT_EQ(code_of(results[2]), ErrorCode::kWrongBase);
  EXPECT_EQ(code_of(results[0]), ErrorCode::kPeerFailed);
  EXPECT_EQ(code_of(results[1]), ErrorCode::kPeerFailed);
  EXPECT_THAT(results[0].error->message(), HasSubstr("wrong_base"));
  EXPECT_EQ(group.publisher->version(), 0U);
  EXPECT_EQ(group.wrong(1), 0U);
  group.repair(2);
  expect_all_at(group, 0);
  expect_recovery(group);
}

TEST(SyncFaults, AnyAlteredLostOrRepeatedRecordIsRefusedAndTheSameChangesArriveNextTime) {
  using Alter = std::function<void(std::vector<Bytes>&)>;
  const std::vector<std::pair<const char*, Alter>> faults = {
      {"a bit of the header", [](auto& records) { records.front()[40] ^= std::byte{1}; }},
      {"a bit of a frame's fields", [](auto& records) { records[1][30] ^= std::byte{8}; }},
      {"a bit of a frame's payload", [](auto& records) { records[1].back() ^= std::byte{0x80}; }},
      {"a bit of the commit", [](auto& records) { records.back()[50] ^= std::byte{2}; }},
      {"a frame cut short", [](auto& records) { records[1].resize(records[1].size() - 8); }},
      {"a lost frame", [](auto& records) { records.erase(records.begin() + 1); }},
      {"a lost commit", [](auto& records) { records.pop_back(); }},
      {"a lost header", [](auto& records) { records.erase(records.begin()); }},
      {"everything lost", [](auto& records) { records.clear(); }},
      {"an empty record", [](auto& records) { records.push_back({}); }},
      {"garbage behind the commit", [](auto& records) { records.push_back(Bytes(64, std::byte{0xAB})); }},
  };
  for (const auto& [name, alter] : faults) {
    SCOPED_TRACE(name);
    SyncGroup group({});
    group.model.train();
    group.use_channel({.receive = [&change = alter](int rank, std::vector<Bytes>& records) {
      if (rank == 1) change(records);
    }});
    const auto results = group.sync();
    for (const RankResult& result : results) EXPECT_TRUE(result.error) << result.text();
    EXPECT_EQ(code_of(results[2]), ErrorCode::kPeerFailed);
    EXPECT_THAT(results[2].error->message(), testing::Not(HasSubstr("digest"))) << "it came as far as an apply";
    expect_all_at(group, 0);
    expect_recovery(group);
    EXPECT_EQ(group.publisher->version(), 2U) << "an attempt's number was used again";
  }
}

TEST(SyncFaults, AFrameThatArrivesTwiceAndOutOfOrderDoesNoHarm) {
  GroupOptions options;
  options.width = 500;
  options.encode.frame_capacity = kMinFrameCapacity;
  SyncGroup group(options);
  group.model.jump();
  group.use_channel({.receive = [](int rank, std::vector<Bytes>& records) {
    if (rank != 1) return;
    std::swap(records[1], records[2]);
    records.insert(records.begin() + 1, records[2]);
  }});
  for (const RankResult& result : group.sync()) EXPECT_TRUE(result.report) << result.text();
  expect_all_at(group, 1);
}

TEST(SyncFaults, ASilentReceiverBecomesATimeoutThatNamesIt) {
  SyncGroup group({});
  group.model.train();
  const auto results = group.sync(kShort, 2);
  EXPECT_EQ(code_of(results[0]), ErrorCode::kTimeout);
  EXPECT_EQ(code_of(results[1]), ErrorCode::kTimeout);
  EXPECT_THAT(results[0].error->message(), HasSubstr("no vote from 2"));
  expect_all_at(group, 0);
  EXPECT_EQ(code_of(group.sync(kShort)[0]), ErrorCode::kPeerFailed) << "a broken channel was used again";
  expect_all_at(group, 0);
  expect_recovery(group);
}

TEST(SyncFaults, ASilentSourceBecomesATimeoutAtEveryReceiver) {
  SyncGroup group({});
  group.model.train();
  const auto results = group.sync(kShort, 0);
  EXPECT_EQ(code_of(results[1]), ErrorCode::kTimeout);
  EXPECT_EQ(code_of(results[2]), ErrorCode::kTimeout);
  expect_all_at(group, 0);
  expect_recovery(group);
}

TEST(SyncFaults, AReceiverThatDiesAfterItsApplyMakesTheOthersUndoTheirs) {
  SyncGroup group({});
  group.model.train();
  group.use_channel({.before_vote = [](int rank, int vote) {
    if (rank == 2 && vote == kVerifiedVote) throw RankDied();
  }});
  const auto results = group.sync(kShort);
  EXPECT_EQ(code_of(results[0]), ErrorCode::kTimeout);
  EXPECT_EQ(code_of(results[1]), ErrorCode::kTimeout);
  EXPECT_THAT(results[1].error->context(), HasSubstr("version 1 was applied and rolled back, 0 stands"));
  EXPECT_EQ(group.publisher->version(), 0U);
  EXPECT_EQ(group.subscriber(1).version(), 0U);
  EXPECT_EQ(group.wrong(1), 0U);
  EXPECT_GT(group.wrong(2), 0U) << "the dead rank is meant to have applied";
  group.repair(2);
  expect_recovery(group);
}

TEST(SyncFaults, AReceiverThatCannotApplyMakesTheOthersUndoTheirs) {
  SyncGroup group({});
  group.model.train();
  group.use_channel({.before_vote = [&](int rank, int vote) {
    // Staged against the right digest, but altered under the subscriber before the apply: every element of a tensor.
    if (rank == 2 && vote == kStagedVote) {
      for (std::byte& byte : group.replica(2).bytes[0]) byte ^= std::byte{0x20};
    }
  }});
  const auto results = group.sync();
  EXPECT_EQ(code_of(results[2]), ErrorCode::kDigestMismatch);
  EXPECT_EQ(code_of(results[0]), ErrorCode::kPeerFailed);
  EXPECT_EQ(code_of(results[1]), ErrorCode::kPeerFailed);
  EXPECT_THAT(results[0].error->message(), HasSubstr("digest_mismatch"));
  for (std::byte& byte : group.replica(2).bytes[0]) byte ^= std::byte{0x20};
  expect_all_at(group, 0);
  expect_recovery(group);
}

TEST(SyncFaults, ALostDecisionOfTheFirstVoteWritesNothing) {
  SyncGroup group({});
  group.model.train();
  group.use_channel({.lose_decision = [](int rank, int vote) { return rank == 1 && vote == kStagedVote; }});
  const auto results = group.sync(kShort);
  for (const RankResult& result : results) EXPECT_EQ(code_of(result), ErrorCode::kTimeout);
  expect_all_at(group, 0);
  expect_recovery(group);
}

TEST(SyncFaults, ALostResultOfTheVotesMakesEveryRankUndoItsApply) {
  SyncGroup group({});
  group.model.train();
  group.use_channel({.lose_decision = [](int rank, int vote) { return rank == 1 && vote == kVerifiedVote; }});
  const auto results = group.sync(kShort);
  for (const RankResult& result : results) EXPECT_EQ(code_of(result), ErrorCode::kTimeout);
  EXPECT_THAT(results[1].error->context(), HasSubstr("version 1 was applied and rolled back, 0 stands"));
  expect_all_at(group, 0);
  expect_recovery(group);
}

TEST(SyncFaults, AReceiverInDoubtTakesItsApplyBackAndIsNeverSilentlyAhead) {
  SyncGroup group({});
  group.model.train();
  group.use_channel({.lose_decision = [](int rank, int vote) { return rank == 1 && vote == kDecisionVote; }});
  auto results = group.sync(kShort);
  EXPECT_TRUE(results[0].report) << results[0].text();
  EXPECT_TRUE(results[2].report) << results[2].text();
  EXPECT_EQ(code_of(results[1]), ErrorCode::kTimeout);
  EXPECT_EQ(group.publisher->version(), 1U);
  EXPECT_EQ(group.subscriber(1).version(), 0U);
  EXPECT_EQ(group.wrong(2), 0U);

  group.model.train();
  group.use_channel();
  results = group.sync();
  EXPECT_EQ(code_of(results[1]), ErrorCode::kVersionGap);
  EXPECT_EQ(code_of(results[0]), ErrorCode::kPeerFailed);
  EXPECT_THAT(results[2].error->message(), HasSubstr("version_gap"));
  EXPECT_EQ(group.publisher->version(), 1U);
  group.repair(1);
  expect_all_at(group, 1);
  expect_recovery(group);
}

TEST(SyncFaults, ADirtyReceiverStopsTheSyncUntilItsAnchor) {
  SyncGroup group({});
  group.replica(1).bytes[1][0] ^= std::byte{1};
  EXPECT_THROW(group.subscriber(1).audit(), Error);
  group.model.train();
  const auto results = group.sync();
  EXPECT_EQ(code_of(results[1]), ErrorCode::kDirty);
  EXPECT_EQ(code_of(results[0]), ErrorCode::kPeerFailed);
  group.repair(1);
  expect_recovery(group);
}

// Whatever happens to whom: no rank ends between two versions, none reports a version whose bits it does not hold, and
// one sync without faults repairs all but ranks in doubt, which say so.
TEST(SyncFaults, RandomFaultsNeverLeaveAMixedState) {
  SCOPED_TRACE(seed_note());
  Random random(run_seed());
  for (int round = 0; round < 20; ++round) {
    GroupOptions options;
    options.ranks = 2 + static_cast<int>(random.below(3));
    options.width = 16 + random.below(40);
    options.encode.values = static_cast<ValueCodec>(random.below(3));
    SyncGroup group(options, random.next());
    for (int step = 0; step < 4; ++step) {
      const int victim = 1 + static_cast<int>(random.below(static_cast<std::uint64_t>(options.ranks - 1)));
      const std::uint64_t fault = random.below(4);
      const std::uint64_t where = random.next();
      const int fatal_vote = 1 + static_cast<int>(random.below(3));
      LoopbackHooks hooks;
      if (fault == 1) {
        hooks.receive = [&](int rank, std::vector<Bytes>& records) {
          if (rank != victim || records.empty()) return;
          Bytes& record = records[where % records.size()];
          record[(where >> 16) % record.size()] ^= static_cast<std::byte>(1U << (where >> 60) % 8);
        };
      } else if (fault == 2) {
        hooks.lose_decision = [&](int rank, int vote) { return rank == victim && vote == fatal_vote; };
      }
      group.use_channel(std::move(hooks));
      group.model.train(random.chance(0.2) ? 1e-3F : 1e-6F);
      const Storage before = group.committed;
      const std::uint64_t version_before = group.publisher->version();
      const auto results =
          group.sync(fault == 2 && fatal_vote != kDecisionVote ? milliseconds(500) : milliseconds(60000));
      const bool in_doubt = fault == 2 && fatal_vote == kDecisionVote;
      EXPECT_EQ(results[0].report.has_value(), fault == 0 || fault == 3 || in_doubt) << results[0].text();
      for (int rank = 1; rank < options.ranks; ++rank) {
        const bool left_behind = in_doubt && rank == victim;
        const Storage& expected = left_behind ? before : group.committed;
        EXPECT_EQ(group.subscriber(rank).version(), left_behind ? version_before : group.publisher->version());
        EXPECT_EQ(count_wrong(*group.model.table(), group.replica(rank).bytes, expected), 0U)
            << "round " << round << ", step " << step << ", fault " << fault << ", rank " << rank;
        if (left_behind) group.repair(rank);
      }
    }
    expect_recovery(group);
  }
}

}  // namespace
}  // namespace sparsecast::test
