// SPDX-License-Identifier: Apache-2.0

// A log from before format 1.2 (testdata/log/format_1_0), whose digests have the first mix: it is neither followed nor
// continued, and says so; its deltas are applied as files, and a new log begins with the weights.

#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/checkpoint_apply.hpp"
#include "log/log_keys.hpp"
#include "sparsecast/log_follower.hpp"
#include "support/expect_error.hpp"
#include "support/temporary_directory.hpp"

namespace sparsecast::test {
namespace {

class LogOfFirstMix : public testing::Test {
 protected:
  LogOfFirstMix() {
    std::filesystem::copy(SPARSECAST_TESTDATA_DIR "/log/format_1_0", directory_.path(),
                          std::filesystem::copy_options::recursive);
  }

  std::shared_ptr<ObjectStore> log() { return open_directory_store(fs_, directory_.path()); }
  std::string version(int number) { return directory_ / ("version_" + std::to_string(number) + ".safetensors"); }
  std::vector<std::string> deltas() {
    std::vector<std::string> paths;
    for (const StoredObject& object : log()->list(kDeltaPrefix)) paths.push_back(directory_ / object.key);
    return paths;
  }
  std::shared_ptr<const TensorTable> table() {
    return std::make_shared<const TensorTable>(Checkpoint::open(fs_, version(0)).table());
  }
  StateDigest digest_of(const std::string& path) {
    return sum(digest_store(CheckpointStore(Checkpoint::open(fs_, path)), 1));
  }
  template <class Call>
  void expect_refused(const Call& call) {
    expect_error(ErrorCode::kUnsupported, call, {"first mix", "1.0 and 1.1", "begin a new log"});
  }

  FileSystem& fs_ = FileSystem::posix();
  TemporaryDirectory directory_;
};

TEST_F(LogOfFirstMix, IsNotFollowedWhateverTheFollowerHolds) {
  for (const std::string& path : {version(0), version(2), directory_ / "nothing.safetensors"}) {
    LogFollower follower(log(), fs_, path + ".follow/state", make_checkpoint_target(fs_, path, {}), {});
    expect_refused([&] { follower.step(); });
    expect_refused([&] { follower.step(1); });
  }
}

TEST_F(LogOfFirstMix, IsNotContinued) {
  LogReader reader(log());
  LogWriter writer(reader, {});
  expect_refused([&] { writer.take_over(table(), digest_of(version(2))); });
  expect_refused([&] { writer.write_anchor(fs_, version(2), 2); });
  EXPECT_EQ(reader.head()->version, 2U);
}

TEST_F(LogOfFirstMix, DeltasAreAppliedAsFilesAndANewLogBeginsWithTheWeights) {
  ASSERT_EQ(deltas().size(), 2U);
  EXPECT_EQ(DeltaFile::open(fs_, deltas()[0]).header().positions, PositionMode::kAuto) << "of format 1.0";
  EXPECT_EQ(DeltaFile::open(fs_, deltas()[1]).header().positions, PositionMode::kContext) << "of format 1.1";
  EXPECT_EQ(apply_in_place(fs_, version(0), deltas(), {}).applied, 2U);
  EXPECT_EQ(digest_of(version(0)), digest_of(version(2)));

  const std::shared_ptr<ObjectStore> store = open_directory_store(fs_, directory_ / "new");
  LogReader reader(store);
  LogWriter writer(reader, {});
  LogCreation creation;
  creation.stream = DeltaFile::open(fs_, deltas()[1]).header().stream;
  creation.first_version = 2;
  creation.table = table();
  creation.digest = digest_of(version(0));
  writer.create(creation);
  LogFollower follower(store, fs_, directory_ / "state", make_checkpoint_target(fs_, version(2), {}), {});
  EXPECT_EQ(follower.step().version, 2U);
}

TEST_F(LogOfFirstMix, DeltasAreNotPublishedToALog) {
  const DeltaFile delta = DeltaFile::open(fs_, deltas()[0]);
  LogReader reader(open_directory_store(fs_, directory_ / "new"));
  LogWriter writer(reader, {});
  LogCreation creation;
  creation.stream = delta.header().stream;
  creation.table = table();
  creation.digest = digest_of(version(0));
  writer.create(creation);
  expect_refused([&] { writer.publish(delta); });
}

}  // namespace
}  // namespace sparsecast::test
