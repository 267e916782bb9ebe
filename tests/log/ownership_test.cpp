// SPDX-License-Identifier: Apache-2.0

// What an anchor may replace, and what it leaves: only the log's own tensors, and only files of the old checkpoint.

#include <gmock/gmock.h>

#include <map>
#include <string>

#include "log/follower/checkpoint_place.hpp"
#include "support/expect_error.hpp"
#include "support/follow_scene.hpp"
#include "support/safetensors_bytes.hpp"

namespace sparsecast::test {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kIndex = R"({"weight_map": {"a": "model-1.safetensors"}})";

/// What is at `path`, by name; not what belongs to the follower.
std::map<std::string, std::string> contents(const FaultFileSystem& fs, const std::string& path) {
  std::map<std::string, std::string> found;
  for (const std::string& file : fs.files()) {
    if (file == path || file.starts_with(path + "/")) found[file] = *fs.content(file);
  }
  return found;
}

class Ownership : public testing::Test {
 protected:
  Ownership() {
    scene_.publish_to(3);
    scene_.add_anchor(2);
    fs_.make_directory("/d");
    fs_.sync_directory("/");
  }
  LogFollower follower(const std::string& path, bool replace = false) {
    CheckpointTargetOptions options;
    options.replace = replace;
    return {scene_.shared_store(), fs_, path + ".follow/state", make_checkpoint_target(fs_, path, options), {}};
  }
  /// Expects that the target is refused by this name, before an anchor is read, and is what it was.
  void expect_refused(const std::string& path, const std::string& words) {
    const auto before = contents(fs_, path);
    scene_.store().forget_calls();
    LogFollower follower = this->follower(path);
    expect_error(ErrorCode::kUsage, [&] { follower.step(); }, {words});
    EXPECT_EQ(contents(fs_, path), before);
  }
  void expect_version(const std::string& path, std::uint64_t version) {
    EXPECT_EQ(scene_.version_of(fs_, path, 4), version);
  }

  FollowScene scene_;
  FaultFileSystem fs_;
};

TEST_F(Ownership, AnotherModelIsNotReplaced) {
  const Bytes other = safetensors_file({{"other.weight", DType::kF32, {2}}}, std::string(8, 'x'));
  fs_.put_file("/d/live/model.safetensors", other);
  fs_.put_file("/d/live/config.json", std::string("{}"));
  expect_refused("/d/live", "--replace");
  EXPECT_THAT(scene_.store().reads(), Not(Contains(HasSubstr("model.safetensors")))) << "it was fetched for nothing";
  fs_.put_file("/d/one.safetensors", other);
  expect_refused("/d/one.safetensors", "/d/one.safetensors");
}

TEST_F(Ownership, AnotherModelIsReplacedWhenThatIsAskedFor) {
  const Bytes other = safetensors_file({{"other.weight", DType::kF32, {2}}}, std::string(8, 'x'));
  fs_.put_file("/d/live/model.safetensors", other);
  fs_.put_file("/d/live/config.json", std::string("{}"));
  fs_.put_file("/d/one.safetensors", other);
  for (const char* path : {"/d/live", "/d/one.safetensors"}) {
    EXPECT_EQ(follower(path, true).step().version, 3U);
    expect_version(path, 3);
  }
  EXPECT_EQ(fs_.content("/d/live/config.json"), "{}");
}

TEST_F(Ownership, WhatCannotBeReadIsReplacedOnlyWhereItWasOurs) {
  fs_.put_file("/d/live/model.safetensors", std::string("a thesis"));
  expect_refused("/d/live", "cannot be read");

  fs_.remove("/d/live/model.safetensors");
  EXPECT_EQ(follower("/d/live").step().version, 3U);
  fs_.put_file("/d/live/model.safetensors", std::string("damaged later"));
  EXPECT_TRUE(follower("/d/live").step().reseeded) << "it heals by itself";
  expect_version("/d/live", 3);
}

TEST_F(Ownership, ADirectoryOfOtherFilesTakesTheModel) {
  fs_.put_file("/d/live/notes.txt", std::string("mine"));
  EXPECT_EQ(follower("/d/live").step().version, 3U);
  EXPECT_EQ(fs_.content("/d/live/notes.txt"), "mine");
}

TEST_F(Ownership, WeightsThatNoIndexTellsApartAreInTheWay) {
  // A checkpoint of the log's tensors that is damaged, with a draft head beside it: an anchor without an index comes.
  fs_.put_file("/d/live/model-1.safetensors", std::string("damaged"));
  fs_.put_file("/d/live/model.safetensors.index.json", std::string(kIndex));
  fs_.put_file("/d/live/eagle.safetensors", std::string("a draft head"));
  const auto before = contents(fs_, "/d/live");
  LogFollower follower = this->follower("/d/live", true);
  expect_error(ErrorCode::kUsage, [&] { follower.step(); }, {"/d/live/eagle.safetensors", "move it away"});
  EXPECT_EQ(contents(fs_, "/d/live"), before);
  fs_.remove("/d/live/eagle.safetensors");
  EXPECT_EQ(this->follower("/d/live", true).step().version, 3U);
  EXPECT_FALSE(fs_.exists("/d/live/model-1.safetensors"));
}

/// Two checkpoints with an index, and files beside the old one.
void lay_out(FaultFileSystem& fs) {
  fs.put_file("/d/live/model-1.safetensors", std::string("old"));
  fs.put_file("/d/live/model.safetensors.index.json", std::string(kIndex));
  fs.put_file("/d/live/eagle.safetensors", std::string("a draft head"));
  fs.put_file("/d/live/config.json", std::string("{}"));
  fs.put_file("/d/live.follow/new/model-00001.safetensors", std::string("new"));
  fs.put_file("/d/live.follow/new/model.safetensors.index.json",
              std::string(R"({"weight_map": {"a": "model-00001.safetensors"}})"));
}

void replace(FaultFileSystem& fs) {
  CheckpointPlace place(fs, "/d/live");
  place.require_room("/d/live.follow/new");
  place.carry_over("/d/live.follow/new");
  fs.sync_directory("/d/live.follow/new");
  place.replace("/d/live.follow/new");
}

TEST(CheckpointPlaceTest, KeepsWhatTheOldIndexDoesNotNameAtEveryCrash) {
  FaultFileSystem whole;
  lay_out(whole);
  whole.reset_log();
  replace(whole);
  const std::uint64_t operations = whole.operations();
  ASSERT_GT(operations, 20U);
  for (std::uint64_t operation = 0; operation <= operations; ++operation) {
    FaultFileSystem fs;
    lay_out(fs);
    fs.reset_log();
    fs.crash_at(operation);
    try {
      replace(fs);
    } catch (const CrashException&) {
    }
    const std::unique_ptr<FaultFileSystem> after = fs.crash_state(operation);
    CheckpointPlace(*after, "/d/live").recover();
    EXPECT_EQ(after->content("/d/live/eagle.safetensors"), "a draft head") << "operation " << operation;
    EXPECT_EQ(after->content("/d/live/config.json"), "{}") << "operation " << operation;
    const bool old = after->exists("/d/live/model-1.safetensors");
    EXPECT_NE(old, after->exists("/d/live/model-00001.safetensors")) << "operation " << operation;
    EXPECT_EQ(after->content("/d/live/model.safetensors.index.json") == kIndex, old) << "operation " << operation;
  }
}

TEST(CheckpointPlaceTest, NamesAFileThatTheNewCheckpointWouldOverwrite) {
  FaultFileSystem fs;
  lay_out(fs);
  fs.put_file("/d/live/model-00001.safetensors", std::string("no file of the old checkpoint"));
  expect_error(ErrorCode::kUsage, [&] { replace(fs); }, {"/d/live/model-00001.safetensors", "move it away"});
  EXPECT_EQ(fs.content("/d/live/model-1.safetensors"), "old");
}

}  // namespace
}  // namespace sparsecast::test
