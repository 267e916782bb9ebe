// SPDX-License-Identifier: Apache-2.0

// Anchors, merged deltas and retention.

#include <algorithm>

#include "checkpoint/checkpoint_store.hpp"
#include "log/log_fixture.hpp"
#include "sparsecast/safetensors.hpp"

namespace sparsecast::test {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;

LogWriterOptions options_with(std::vector<std::uint32_t> spans, std::uint64_t anchor_file_bytes = 1 << 30) {
  LogWriterOptions options;
  options.merge_spans = std::move(spans);
  options.anchor_file_bytes = anchor_file_bytes;
  return options;
}

class LogMaintenanceTest : public LogFixture {
 protected:
  LogMaintenanceTest() { writer_.create(scene_.creation()); }

  RetentionPolicy keep(std::uint64_t versions) {
    RetentionPolicy policy;
    policy.keep_versions = versions;
    return policy;
  }

  LogReader reader_{open()};
  LogWriter writer_{reader_, options_with({2, 4, 8})};
};

TEST_F(LogMaintenanceTest, AnAnchorIsACheckpointThatAnyToolOpens) {
  publish_all(writer_, 1, 3);
  const AnchorRef ref = anchor(writer_, 2, 2);
  const Checkpoint checkpoint = Checkpoint::open(fs_, "log/" + anchor_directory(ref));
  EXPECT_EQ(checkpoint.table().hash(), scene_.table()->hash());
  EXPECT_EQ(sum(digest_store(CheckpointStore(checkpoint), 1)), scene_.digest(2));
  EXPECT_EQ(checkpoint.files().front().header.metadata.at("format"), "pt");
  LogReader reader(open());
  EXPECT_EQ(reader.catalog()->anchors, std::vector<AnchorRef>{ref});
  const LogAnchor record = reader.anchor(ref);
  EXPECT_EQ(record.commit, reader.commit(2)->record_hash);
  fs_.make_directory("copy");
  std::uint64_t done = 0;
  reader.fetch_anchor(record, fs_, "copy", [&](std::uint64_t bytes, std::uint64_t) { done = bytes; });
  EXPECT_EQ(done, ref.bytes);
  EXPECT_EQ(fs_.content("copy/model.safetensors"), fs_.content("log/" + anchor_directory(ref) + "/model.safetensors"));
  expect_whole();
}

TEST_F(LogMaintenanceTest, AnAnchorIsCutIntoFilesWithAnIndex) {
  LogWriter writer(reader_, options_with({}, 100));
  fs_.put_file("checkpoint.safetensors", scene_.checkpoint(0));
  const AnchorRef ref = writer.write_anchor(fs_, "checkpoint.safetensors", 0);
  const LogAnchor record = reader_.anchor(ref);
  ASSERT_EQ(record.files.size(), 3U);
  EXPECT_EQ(record.files[0].name, "model-00001-of-00002.safetensors");
  EXPECT_EQ(record.files[2].name, "model.safetensors.index.json");
  const Checkpoint checkpoint = Checkpoint::open(fs_, "log/" + anchor_directory(ref));
  EXPECT_EQ(sum(digest_store(CheckpointStore(checkpoint), 1)), scene_.digest(0));
  // However the checkpoint is cut that it is made from.
  EXPECT_EQ(writer.write_anchor(fs_, "log/" + anchor_directory(ref), 0), ref);
  expect_whole();
}

TEST_F(LogMaintenanceTest, AnAnchorOfOtherBytesIsRefusedBeforeAnythingIsWritten) {
  publish_all(writer_, 1, 2);
  expect_error(ErrorCode::kDigestMismatch, [&] { anchor(writer_, 1, 2); }, {"checkpoint.safetensors"});
  expect_error(ErrorCode::kUsage, [&] { anchor(writer_, 2, 3); });
  LogScene other(5, 90);
  fs_.put_file("other.safetensors", other.checkpoint(0));
  expect_error(ErrorCode::kTableMismatch, [&] { writer_.write_anchor(fs_, "other.safetensors", 2); });
  EXPECT_EQ(count("anchors/"), 0U);
}

TEST_F(LogMaintenanceTest, AnAnchorIsDueWhenReplayingCostsMoreThanReadingIt) {
  LogWriterOptions options = options_with({});
  options.anchor_rule.bytes_per_second = 1000;
  options.anchor_rule.seconds_per_delta = 0;
  options.anchor_rule.min_versions = 3;
  options.anchor_rule.max_versions = 50;
  LogWriter writer(reader_, options);
  EXPECT_TRUE(writer.anchor_due());  // Nobody can join without one.
  const AnchorRef ref = anchor(writer_, 0, 0);
  EXPECT_FALSE(writer.anchor_due());
  std::uint64_t bytes = 0;
  for (std::uint64_t version = 1; version <= 12; ++version) {
    bytes += publish(writer_, version, version).delta_bytes;
    EXPECT_EQ(writer.anchor_due(), version >= 3 && bytes > ref.bytes) << version;
  }
  EXPECT_GT(bytes, ref.bytes);
  options.anchor_rule.bytes_per_second = 1e12;  // Bytes cost nothing: only the distance counts.
  options.anchor_rule.max_versions = 12;
  EXPECT_TRUE(LogWriter(reader_, options).anchor_due());
  options.anchor_rule.max_versions = 13;
  options.anchor_rule.seconds_per_delta = 0;
  EXPECT_FALSE(LogWriter(reader_, options).anchor_due() && bytes < ref.bytes);
}

TEST_F(LogMaintenanceTest, SpansAreMergedFromTheSmallestOn) {
  publish_all(writer_, 1, 9);
  EXPECT_EQ(writer_.compact(fs_, "scratch", 1).merged, 1U);
  EXPECT_EQ(writer_.compact(fs_, "scratch").merged, 6U);
  EXPECT_EQ(writer_.compact(fs_, "scratch").merged, 0U);
  const std::vector<DeltaRef> merged = LogReader(open()).catalog()->merged;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> spans;
  for (const DeltaRef& ref : merged) spans.emplace_back(ref.from, ref.to);
  EXPECT_EQ(spans, (decltype(spans){{0, 2}, {0, 4}, {2, 4}, {4, 6}, {0, 8}, {4, 8}, {6, 8}}));
  // The merged delta equals the one computed from the states.
  reader_.fetch_delta(merged[4], fs_, "merged.scd");
  const DeltaFile file = DeltaFile::open(fs_, "merged.scd");
  EXPECT_EQ(file.commit().changed, count_changes(*scene_.table(), scene_.state(0), scene_.state(8)));
  EXPECT_EQ(file.commit().result_digest, scene_.digest(8));
  expect_whole();
}

TEST_F(LogMaintenanceTest, MergedDeltasThatTheCatalogLostAreTheSameWhenMadeAgain) {
  publish_all(writer_, 1, 4);
  writer_.compact(fs_, "scratch");
  const std::vector<DeltaRef> before = reader_.catalog()->merged;
  fs_.remove("log/catalog");
  LogWriter other(reader_, options_with({2, 4, 8}));
  EXPECT_EQ(other.compact(fs_, "scratch").merged, 3U);
  EXPECT_EQ(reader_.catalog()->merged, before);
  EXPECT_EQ(count("merged/"), 3U);
}

TEST_F(LogMaintenanceTest, SpansOverTakeoversAreMergedAndOverOtherCodecsLeftOut) {
  publish_all(writer_, 1, 2);
  LogWriter second(reader_, options_with({2, 4}));
  second.take_over(scene_.table(), scene_.digest(2));
  publish(second, 3, 4);
  EncodeOptions raw;
  raw.values = ValueCodec::kRaw;
  publish(second, 4, 5, raw);
  publish(second, 5, 6);
  publish(second, 6, 7);
  publish(second, 7, 8);
  EXPECT_EQ(second.compact(fs_, "scratch").merged, 4U);  // 0-2, 2-4, 6-8, 0-4; neither 4-6 nor 4-8.
  EXPECT_EQ(second.compact(fs_, "scratch").merged, 0U);
  expect_whole();
}

TEST_F(LogMaintenanceTest, ScratchFilesOfACrashAreSweptWhenTheyAreOld) {
  publish_all(writer_, 1, 2);
  fs_.put_file("scratch/sparsecast-merge.dead.0.scd", "x");
  fs_.put_file("scratch/other", "x");
  writer_.compact(fs_, "scratch");
  EXPECT_TRUE(fs_.exists("scratch/sparsecast-merge.dead.0.scd"));
  fs_.advance(hours(2));
  writer_.compact(fs_, "scratch");
  EXPECT_EQ(fs_.list("scratch"), std::vector<std::string>{"other"});
}

TEST_F(LogMaintenanceTest, GcRaisesTheFloorToAnAnchorAndRemovesWhatLiesBelow) {
  anchor(writer_, 0, 0);
  publish_all(writer_, 1, 12);
  anchor(writer_, 5, 5);
  const AnchorRef kept = anchor(writer_, 9, 9);
  writer_.compact(fs_, "scratch");
  RetentionPolicy policy = keep(4);
  policy.dry_run = true;
  const GcReport plan = writer_.gc(policy);
  EXPECT_EQ(plan.floor, 9U);
  EXPECT_EQ(reader_.floor(), 0U);
  EXPECT_EQ(count("deltas/"), 12U);
  const GcReport report = writer_.gc(keep(4));
  EXPECT_EQ(report.floor, 9U);
  EXPECT_EQ(report.removed_objects, plan.removed_objects);
  EXPECT_EQ(report.removed_bytes, plan.removed_bytes);
  EXPECT_EQ(report.kept_bytes, plan.kept_bytes);
  EXPECT_EQ(reader_.floor(), 9U);
  EXPECT_EQ(count("deltas/"), 3U);
  EXPECT_EQ(count("anchors/"), 2U);
  EXPECT_EQ(count("merged/"), 1U);  // 10-12
  EXPECT_EQ(count("commits/"), 13U);
  EXPECT_EQ(reader_.catalog()->anchors, std::vector<AnchorRef>{kept});
  EXPECT_EQ(writer_.gc(keep(4)).removed_objects, 0U);
  expect_whole();
  publish_all(writer_, 13, 14);
  expect_whole();
}

TEST_F(LogMaintenanceTest, GcKeepsEverythingWithoutAnAnchor) {
  publish_all(writer_, 1, 8);
  EXPECT_EQ(writer_.gc(keep(1)).removed_objects, 0U);
  EXPECT_EQ(reader_.floor(), 0U);
}

TEST_F(LogMaintenanceTest, LeasesHoldTheFloorForAsLongAsTheyLive) {
  publish_all(writer_, 1, 10);
  anchor(writer_, 4, 4);
  anchor(writer_, 8, 8);
  lease("engine-1", 5, minutes(30));
  GcReport report = writer_.gc(keep(1));
  EXPECT_EQ(report.floor, 4U);
  EXPECT_EQ(report.held_by, "engine-1");
  EXPECT_EQ(count("deltas/"), 6U);
  ASSERT_EQ(reader_.leases().size(), 1U);
  EXPECT_EQ(reader_.leases().front().name, "engine-1");
  fs_.advance(hours(1));
  EXPECT_TRUE(reader_.leases().empty());
  report = writer_.gc(keep(1));
  EXPECT_EQ(report.floor, 8U);
  EXPECT_EQ(report.held_by, "");
  EXPECT_EQ(count("leases/"), 1U);
  fs_.advance(hours(2));
  writer_.gc(keep(1));
  EXPECT_EQ(count("leases/"), 0U);
}

TEST_F(LogMaintenanceTest, ALeaseLivesAsLongWhateverTheClockOfItsReaderSays) {
  publish_all(writer_, 1, 10);
  anchor(writer_, 4, 4);
  anchor(writer_, 8, 8);
  fs_.advance(hours(24 * 365));
  lease("behind", 5, minutes(30), hours(-1));
  lease("ahead", 6, minutes(30), hours(1));
  EXPECT_EQ(reader_.leases().size(), 2U);
  EXPECT_EQ(writer_.gc(keep(1)).held_by, "behind");
  fs_.advance(minutes(31));
  EXPECT_TRUE(reader_.leases().empty());
  EXPECT_EQ(writer_.gc(keep(1)).floor, 8U);
}

TEST_F(LogMaintenanceTest, NoLeaseHoldsTheFloorLongerThanThePolicyAllows) {
  publish_all(writer_, 1, 4);
  anchor(writer_, 3, 3);
  lease("far", 1, hours(24 * 365));
  RetentionPolicy policy = keep(1);
  policy.max_lease = hours(2);
  EXPECT_EQ(writer_.gc(policy).floor, 0U);
  fs_.advance(hours(3));
  EXPECT_EQ(writer_.gc(policy).floor, 3U);
}

TEST_F(LogMaintenanceTest, ABrokenLeaseHoldsEverythingWhileItIsYoung) {
  publish_all(writer_, 1, 4);
  anchor(writer_, 3, 3);
  open()->put(lease_key("broken"), owned_bytes_of_text("what?"));
  EXPECT_EQ(reader_.leases().front().version, 0U);
  EXPECT_EQ(writer_.gc(keep(1)).held_by, "broken");
  fs_.advance(hours(2));
  EXPECT_EQ(writer_.gc(keep(1)).floor, 3U);
}

TEST_F(LogMaintenanceTest, VersionsYoungerThanThePolicySaysAreKept) {
  for (std::uint64_t version = 1; version <= 10; ++version) {
    publish(writer_, version, version);
    anchor(writer_, version, version);
    fs_.advance(minutes(10));
  }
  RetentionPolicy policy = keep(1);
  policy.keep_time = minutes(35);
  EXPECT_EQ(writer_.gc(policy).floor, 8U);  // 10, 20 and 30 minutes old.
  policy.keep_time = hours(100);
  fs_.advance(hours(1));
  EXPECT_EQ(writer_.gc(policy).floor, 8U);
}

TEST_F(LogMaintenanceTest, GcRemovesWhatCrashedWritersLeftWhenItIsOldAndCanMeanNothing) {
  publish_all(writer_, 1, 3);
  const auto store = open();
  const Bytes junk = owned_bytes_of_text("junk");
  const std::string lost = delta_key({1, 2, content_hash(junk), 4});
  const std::string perhaps = delta_key({3, 4, content_hash(junk), 4});
  const std::string merged = delta_key({0, 2, content_hash(junk), 4});
  const std::string unfinished = anchor_directory({2, content_hash(junk), 4}) + "/model.safetensors";
  for (const std::string& key : {lost, perhaps, merged, unfinished}) store->put(key, junk);
  fs_.put_file("log/deltas/x.scd.tmp.12.3", "torn");
  EXPECT_EQ(writer_.gc(keep(100)).removed_objects, 0U);
  fs_.advance(hours(2));
  EXPECT_EQ(writer_.gc(keep(100)).removed_objects, 4U);
  EXPECT_FALSE(store->size(lost));
  EXPECT_FALSE(store->size(merged));
  EXPECT_FALSE(store->size(unfinished));
  EXPECT_FALSE(fs_.exists("log/deltas/x.scd.tmp.12.3"));
  EXPECT_TRUE(store->size(perhaps));  // Whoever put it there may be about to commit it.
  expect_whole();
}

TEST_F(LogMaintenanceTest, GcFindsAnchorsThatTheCatalogLost) {
  publish_all(writer_, 1, 4);
  const AnchorRef ref = anchor(writer_, 3, 3);
  fs_.remove("log/catalog");
  fs_.advance(hours(2));
  EXPECT_EQ(writer_.gc(keep(1)).floor, 3U);
  EXPECT_EQ(reader_.catalog()->anchors, std::vector<AnchorRef>{ref});
}

TEST_F(LogMaintenanceTest, ObjectsThatAreGoneAreNamed) {
  publish_all(writer_, 1, 4);
  const LogCommit old = *reader_.commit(1);
  anchor(writer_, 3, 3);
  writer_.gc(keep(1));
  expect_error(ErrorCode::kGone,
               [&] {
                 reader_.fetch_delta({0, 1, old.delta, old.delta_bytes}, fs_, "x");
               },
               {"log/deltas/0000000001-"});
}

}  // namespace
}  // namespace sparsecast::test
