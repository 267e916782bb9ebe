// SPDX-License-Identifier: Apache-2.0

// Every call of a follower to its disk and to the store failed, once and from then on (docs/architecture.md, I2 to I4).

#include <gmock/gmock.h>

#include "checkpoint/undo_record.hpp"
#include "support/expect_error.hpp"
#include "support/follow_scene.hpp"
#include "support/follower_crash.hpp"

namespace sparsecast::test {
namespace {

using testing::HasSubstr;

class FollowerFaults : public testing::TestWithParam<FollowedCheckpoint> {
 protected:
  FollowerFaults() {
    disk_.make_directory("/d");
    disk_.sync_directory("/");
    scene_.publish_to(2);
    GetParam().put(disk_, scene_.model().checkpoint(0));
    GetParam().follower(scene_, disk_).step();
  }
  void add_deltas() {
    scene_.publish_to(4);
    scene_.add_merged(2, 4);
    scene_.publish_to(5);
  }
  void add_anchor() {
    scene_.publish_to(6);
    scene_.add_anchor(5);
    scene_.collect(5);
  }

  /// An engine that loads the checkpoint now gets a version, or is told that there is none.
  void expect_no_mixture(FaultFileSystem& fs, const std::string& where) {
    if (fs.exists(undo_record_path(fs, GetParam().path)) || !fs.exists(GetParam().path)) return;
    const auto version = scene_.version_of(fs, GetParam().path, scene_.head());
    EXPECT_TRUE(version && *version >= 2) << where;
  }
  void expect_newest(FaultFileSystem& fs, const std::string& where) {
    EXPECT_EQ(scene_.version_of(fs, GetParam().path, scene_.head()), scene_.head()) << where;
    EXPECT_FALSE(fs.exists(undo_record_path(fs, GetParam().path))) << where;
  }

  void fail_every_call() {
    const auto whole = disk_.durable_state();
    GetParam().follower(scene_, *whole).step();
    const std::uint64_t calls = whole->operations();
    std::uint64_t reported = 0;
    for (const char* fault : {"EIO once", "ENOSPC for ever", "half a write"}) {
      for (std::uint64_t call = 0; call < calls; ++call) {
        const auto fs = disk_.durable_state();
        std::unique_ptr<LogFollower> follower;
        if (fault[0] == 'h') {
          fs->short_write_at(call, ENOSPC);
        } else {
          fs->fail_at(call, fault[1] == 'I' ? EIO : ENOSPC,
                      fault[1] == 'I' ? FaultFileSystem::Repeat::kOnce : FaultFileSystem::Repeat::kForEver);
        }
        const auto log_entry = [&] {
          const auto log = fs->log();
          return call < log.size() ? log[call].name + " " + log[call].path : std::string("not reached");
        };
        bool failed = false;
        try {
          const auto target = [&] {
            CheckpointTargetOptions how;
            how.copy_on_write = GetParam().copy_on_write;
            return make_checkpoint_target(*fs, GetParam().path, how);
          };
          FollowerOptions options;
          options.fetch_threads = 0;
          follower =
              std::make_unique<LogFollower>(scene_.shared_store(), *fs, GetParam().state_path(), target(), options);
          follower->step();
        } catch (const Error& error) {
          failed = true;
          ++reported;
          EXPECT_EQ(error.code(), ErrorCode::kIo) << error.what();
        }
        const std::string where = std::string(fault) + " at " + std::to_string(call) + " (" + log_entry() + ")";
        fs->clear_fault();
        if (!failed) expect_newest(*fs, where + ", and no error");
        expect_no_mixture(*fs, where);
        // A power loss now, or the same process goes on, or another one.
        const auto lost = fs->crash_state(call);
        GetParam().follower(scene_, *lost).step();
        expect_newest(*lost, where + ", power loss");
        if (follower) follower->step();
        GetParam().follower(scene_, *fs).step();
        expect_newest(*fs, where);
      }
    }
    EXPECT_GT(reported, calls);
  }

  FollowScene scene_;
  FaultFileSystem disk_;
};

INSTANTIATE_TEST_SUITE_P(Of, FollowerFaults, testing::ValuesIn(kFollowedCheckpoints), [](const auto& parameter) {
  std::string name = parameter.param.name;
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
});

TEST_P(FollowerFaults, EveryCallToTheDiskWhileDeltasAreApplied) {
  add_deltas();
  fail_every_call();
}

TEST_P(FollowerFaults, EveryCallToTheDiskWhileAnAnchorIsTaken) {
  add_anchor();
  fail_every_call();
}

TEST_P(FollowerFaults, EveryCallToTheStore) {
  add_deltas();
  FollowerOptions options;
  options.lease = "reader";
  for (const bool for_ever : {false, true}) {
    for (const ErrorCode code : {ErrorCode::kIo, ErrorCode::kTimeout}) {
      std::uint64_t at = 0;
      for (bool struck = true; struck; ++at) {
        const auto fs = disk_.durable_state();
        std::uint64_t count = 0;
        struck = false;
        scene_.store().before = [&](const std::string& operation, const std::string& key) {
          const std::uint64_t number = count++;
          if (number != at && !(for_ever && number > at)) return;
          struck = true;
          throw Error(code, operation + " failed", key);
        };
        LogFollower follower = GetParam().follower(scene_, *fs, options);
        const std::string words = words_of([&] { follower.step(); });
        if (struck && (for_ever || !words.empty())) {
          EXPECT_THAT(words, HasSubstr("failed")) << "request " << at;
          EXPECT_THAT(words, HasSubstr(std::string(to_string(code)))) << "request " << at;
        } else {
          expect_newest(*fs, "request " + std::to_string(at) + ", and no error");
        }
        scene_.store().before = nullptr;
        expect_no_mixture(*fs, "request " + std::to_string(at));
        follower.step();
        expect_newest(*fs, "request " + std::to_string(at));
      }
      EXPECT_GT(at, 8U);
    }
  }
}

TEST_P(FollowerFaults, ObjectsThatVanishWhileTheyAreWanted) {
  scene_.publish_to(10);
  scene_.add_merged_schedule({4});
  const auto whole = scene_.store().objects();
  for (const auto& [key, bytes] : whole) {
    if (!key.starts_with("deltas/") && !key.starts_with("merged/") && key != "catalog") continue;
    const auto fs = disk_.durable_state();
    scene_.store().set_objects(whole);
    // Gone when the first delta is fetched, whatever had been planned.
    scene_.store().before = [&, gone = key](const std::string& operation, const std::string&) {
      if (operation == "get_range") scene_.store().erase(gone);
    };
    LogFollower follower = GetParam().follower(scene_, *fs);
    const std::string words = words_of([&] { follower.step(); });
    scene_.store().before = nullptr;
    EXPECT_THAT(words, testing::AnyOf("", HasSubstr("gone"))) << key;
    expect_no_mixture(*fs, key);
    scene_.store().set_objects(whole);
    follower.step();
    expect_newest(*fs, key);
  }
}

}  // namespace
}  // namespace sparsecast::test
