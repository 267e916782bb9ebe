// SPDX-License-Identifier: Apache-2.0

// Effects and errors of each call of LogWriter.

#include "log/log_fixture.hpp"

namespace sparsecast::test {
namespace {

class LogWriterTest : public LogFixture {
 protected:
  LogReader reader_{open()};
  LogWriter writer_{reader_, {}};
};

TEST_F(LogWriterTest, ANewLogBeginsWithItsGenesis) {
  EXPECT_EQ(reader_.head(), std::nullopt);
  const LogCommit genesis = writer_.create(scene_.creation(7));
  EXPECT_EQ(genesis.version, 7U);
  EXPECT_EQ(genesis.kind, CommitKind::kGenesis);
  EXPECT_EQ(genesis.epoch, 1U);
  EXPECT_EQ(genesis.digest, scene_.digest(0));
  LogReader other(open());
  ASSERT_TRUE(other.head());
  EXPECT_EQ(other.head()->record_hash, genesis.record_hash);
  EXPECT_EQ(other.floor(), 7U);
  EXPECT_EQ(other.catalog()->head, 7U);
}

TEST_F(LogWriterTest, ALogIsCreatedOnce) {
  writer_.create(scene_.creation());
  LogReader reader(open());
  LogWriter other(reader, {});
  expect_error(ErrorCode::kUsage, [&] { other.create(scene_.creation()); }, {"log", "already"});
  expect_error(ErrorCode::kUsage, [&] { other.create(scene_.creation(5)); }, {"log", "already"});
}

TEST_F(LogWriterTest, PublishedVersionsAreRead) {
  writer_.create(scene_.creation());
  for (std::uint64_t v = 1; v <= 5; ++v) {
    const LogCommit commit = publish(writer_, v, v);
    EXPECT_EQ(commit.version, v);
    EXPECT_EQ(commit.digest, scene_.digest(v));
    EXPECT_EQ(commit.label, "step");
  }
  LogReader reader(open());
  EXPECT_EQ(reader.head()->version, 5U);
  for (std::uint64_t v = 1; v <= 5; ++v) {
    const LogCommit commit = *reader.commit(v);
    reader.fetch_delta({v - 1, v, commit.delta, commit.delta_bytes}, fs_, "fetched");
    const Bytes expected = scene_.delta(v - 1, v, v);
    EXPECT_EQ(fs_.content("fetched"), std::string(reinterpret_cast<const char*>(expected.data()), expected.size()));
  }
  EXPECT_EQ(reader.commit(6), std::nullopt);
  EXPECT_EQ(reader.catalog()->deltas.size(), 5U);
}

TEST_F(LogWriterTest, ATakeoverFencesThePublisherBefore) {
  writer_.create(scene_.creation());
  publish(writer_, 1, 1);
  LogReader reader(open());
  LogWriter second(reader, {});
  expect_error(ErrorCode::kUsage, [&] { publish(second, 2, 2); });
  const LogCommit takeover = second.take_over(scene_.table(), scene_.digest(1));
  EXPECT_EQ(takeover.kind, CommitKind::kTakeover);
  EXPECT_EQ(takeover.version, 2U);
  EXPECT_EQ(takeover.epoch, 2U);
  EXPECT_EQ(takeover.digest, scene_.digest(1));
  expect_error(ErrorCode::kFenced, [&] { publish(writer_, 2, 2); }, {"commits/0000000002", "epoch 2"});
  expect_error(ErrorCode::kFenced, [&] { publish(writer_, 2, 2); });
  EXPECT_EQ(publish(second, 2, 3).version, 3U);
  // It may come back, by an epoch of its own.
  EXPECT_EQ(writer_.take_over(scene_.table(), scene_.digest(2)).epoch, 3U);
  EXPECT_EQ(publish(writer_, 3, 5).version, 5U);
  expect_error(ErrorCode::kFenced, [&] { publish(second, 3, 4); });
}

TEST_F(LogWriterTest, TakeoversWithOtherWeightsAreRefused) {
  writer_.create(scene_.creation());
  publish(writer_, 1, 1);
  LogWriter second(reader_, {});
  expect_error(ErrorCode::kWrongBase, [&] { second.take_over(scene_.table(), scene_.digest(0)); });
  const LogScene other(3, 100);
  expect_error(ErrorCode::kTableMismatch, [&] { second.take_over(other.table(), scene_.digest(1)); });
  EXPECT_EQ(publish(writer_, 2, 2).version, 2U);
}

TEST_F(LogWriterTest, DeltasThatDoNotBelongAreRefused) {
  writer_.create(scene_.creation());
  publish(writer_, 1, 1);
  expect_error(ErrorCode::kVersionGap, [&] { publish(writer_, 2, 3); });
  expect_error(ErrorCode::kWrongBase, [&] { publish(writer_, 3, 2); });
  LogScene other(1, 300);
  const Bytes foreign = other.delta(1, 2, 2);
  expect_error(ErrorCode::kForeignStream, [&] { writer_.publish(DeltaFile::over(foreign, "delta")); });
  EXPECT_EQ(publish(writer_, 2, 2).version, 2U);
}

TEST_F(LogWriterTest, PublishingTheSameDeltaAgainIsHarmless) {
  writer_.create(scene_.creation());
  const LogCommit once = publish(writer_, 1, 1);
  EXPECT_EQ(publish(writer_, 1, 1).record_hash, once.record_hash);
  EXPECT_EQ(writer_.head().version, 1U);
}

TEST_F(LogWriterTest, AHeadFarAheadIsFoundWithoutTheCatalog) {
  writer_.create(scene_.creation(3));
  for (std::uint64_t v = 1; v <= 40; ++v) publish(writer_, v, v + 3);
  fs_.remove("log/catalog");
  LogReader without(open());
  EXPECT_EQ(without.head()->version, 43U);
  EXPECT_EQ(without.catalog(), std::nullopt);
  LogReader remembering(open());
  remembering.remember(*without.commit(17));
  EXPECT_EQ(remembering.head()->version, 43U);
}

TEST_F(LogWriterTest, ACatalogLargerThanAnyRecordIsNoObstacle) {
  writer_.create(scene_.creation());
  publish(writer_, 1, 1);
  fs_.put_file("log/catalog", std::string((std::size_t{16} << 20) + 1, 'x'));
  LogReader reader(open());
  EXPECT_EQ(reader.head()->version, 1U);
  EXPECT_EQ(reader.catalog(), std::nullopt);
  publish(writer_, 2, 2);
  EXPECT_EQ(reader.catalog()->head, 2U);
}

}  // namespace
}  // namespace sparsecast::test
