// SPDX-License-Identifier: Apache-2.0

// The shared trace through a log: every version, by single deltas, merged deltas, anchors and over gaps, for a
// checkpoint in place, one by copies, and live tensors; compared byte by byte.

#include <gtest/gtest.h>

#include <filesystem>

#include "sparsecast/log_follower.hpp"
#include "sparsecast/safetensors.hpp"
#include "support/delta_bytes.hpp"
#include "support/temporary_directory.hpp"

namespace sparsecast::test {
namespace {

constexpr std::uint64_t kFirst = 12;
constexpr std::uint64_t kLast = 18;

std::string step_file(std::uint64_t step) {
  return std::string(SPARSECAST_TESTDATA_DIR) + "/trace/step_0000" + std::to_string(step) + ".safetensors";
}

/// The trace published once into a directory, with merged deltas and an anchor.
class PublishedTrace {
 public:
  PublishedTrace() {
    FileSystem& fs = FileSystem::posix();
    const Checkpoint base = Checkpoint::open(fs, step_file(kFirst));
    table_ = std::make_shared<TensorTable>(base.table());
    TensorState state;
    for (std::size_t t = 0; t < base.table().size(); ++t) state.push_back(base.tensor(t));
    states_.push_back(state);
    LogReader reader(store());
    LogWriterOptions options;
    options.merge_spans = {2, 4};
    LogWriter writer(reader, options);
    LogCreation creation;
    creation.stream = table_->hash();
    creation.first_version = kFirst;
    creation.table = table_;
    creation.digest = sum(digest_tensors(*table_, refs_to(*table_, views(state))));
    writer.create(creation);
    for (std::uint64_t step = kFirst + 1; step <= kLast; ++step) {
      SparseStep::open(fs, step_file(step), *table_).apply(live_views(state));
      const Bytes delta = encode_file(*table_, states_.back(), state, {}, {step - 1, step});
      writer.publish(DeltaFile::over(delta, "step"));
      states_.push_back(state);
    }
    std::filesystem::create_directory(directory_ / "scratch");
    EXPECT_GT(writer.compact(fs, directory_ / "scratch").merged, 0U);
    copy_base(directory_ / "mirror.safetensors");
    LogFollower mirror(store(), fs, directory_ / "mirror.safetensors.follow/state",
                       make_checkpoint_target(fs, directory_ / "mirror.safetensors", {}), {});
    EXPECT_EQ(mirror.step(15).version, 15U);
    writer.write_anchor(fs, directory_ / "mirror.safetensors", 15);
  }

  std::shared_ptr<ObjectStore> store() const { return open_directory_store(FileSystem::posix(), directory_ / "log"); }
  void copy_base(const std::string& path) const { std::filesystem::copy_file(step_file(kFirst), path); }
  const std::shared_ptr<const TensorTable>& table() const { return table_; }
  const TensorState& state(std::uint64_t version) const { return states_.at(version - kFirst); }
  /// Removes everything below the anchor.
  void collect() const {
    LogReader reader(store());
    LogWriter writer(reader, {});
    RetentionPolicy policy;
    policy.keep_versions = 1;
    policy.grace = std::chrono::milliseconds(0);
    EXPECT_EQ(writer.gc(policy).floor, 15U);
  }

 private:
  TemporaryDirectory directory_;
  std::shared_ptr<const TensorTable> table_;
  std::vector<TensorState> states_;
};

const PublishedTrace& published() {
  static const PublishedTrace trace;
  return trace;
}

enum class Kind { kInPlace, kCopyOnWrite, kLive };

/// One follower with its target.
class Followed {
 public:
  Followed(const PublishedTrace& trace, Kind kind, bool with_base, FollowerOptions options = {})
      : trace_(trace), kind_(kind), path_(directory_ / "model") {
    FileSystem& fs = FileSystem::posix();
    std::unique_ptr<FollowerTarget> target;
    if (kind == Kind::kLive) {
      live_ = trace.state(kFirst);
      if (!with_base) live_[0][0] ^= std::byte{1};
      SubscriberOptions subscriber_options;
      subscriber_options.stream = trace.table()->hash();
      subscriber_ =
          std::make_unique<Subscriber>(trace.table(), refs_to(*trace.table(), live_views(live_)), subscriber_options);
      std::filesystem::create_directory(directory_ / "scratch");
      target = make_subscriber_target(*subscriber_, trace.table(), refs_to(*trace.table(), live_views(live_)), fs,
                                      directory_ / "scratch", [this](bool pause) {
                                        pauses_.push_back(pause);
                                        return true;
                                      });
    } else {
      if (with_base) {
        std::filesystem::create_directory(path_);
        trace.copy_base(path_ + "/model.safetensors");
      }
      CheckpointTargetOptions how;
      how.copy_on_write = kind == Kind::kCopyOnWrite;
      how.threads = 2;
      target = make_checkpoint_target(fs, path_, how);
    }
    follower_ = std::make_unique<LogFollower>(trace.store(), fs, directory_ / "state", std::move(target), options);
  }

  LogFollower& operator*() { return *follower_; }
  LogFollower* operator->() { return follower_.get(); }
  const std::vector<bool>& pauses() const { return pauses_; }

  void expect_holds(std::uint64_t version) {
    EXPECT_EQ(follower_->version(), version);
    const TensorState& expected = trace_.state(version);
    if (kind_ == Kind::kLive) {
      EXPECT_EQ(first_difference(*trace_.table(), live_, expected), "");
      EXPECT_EQ(subscriber_->version(), pauses_.empty() ? 0 : version) << "the number is set when it is needed";
      return;
    }
    const Checkpoint found = Checkpoint::open(FileSystem::posix(), path_);
    TensorState state;
    for (std::size_t t = 0; t < found.table().size(); ++t) state.push_back(found.tensor(t));
    EXPECT_EQ(first_difference(*trace_.table(), state, expected), "") << "version " << version;
  }

 private:
  const PublishedTrace& trace_;
  const Kind kind_;
  TemporaryDirectory directory_;
  const std::string path_;
  TensorState live_;
  std::vector<bool> pauses_;
  std::unique_ptr<Subscriber> subscriber_;
  std::unique_ptr<LogFollower> follower_;
};

class FollowedTrace : public testing::TestWithParam<Kind> {};

INSTANTIATE_TEST_SUITE_P(By, FollowedTrace, testing::Values(Kind::kInPlace, Kind::kCopyOnWrite, Kind::kLive),
                         [](const auto& parameter) {
                           return parameter.param == Kind::kInPlace       ? "a_checkpoint_in_place"
                                  : parameter.param == Kind::kCopyOnWrite ? "copies"
                                                                          : "live_tensors";
                         });

TEST_P(FollowedTrace, IsBitIdenticalAtEveryVersion) {
  const PublishedTrace& trace = published();
  FollowerOptions options;
  options.every_version = true;
  Followed followed(trace, GetParam(), true, options);
  for (std::uint64_t version = kFirst; version <= kLast; ++version) {
    EXPECT_EQ(followed->step(version).version, version);
    followed.expect_holds(version);
  }
  if (GetParam() == Kind::kLive) {
    std::vector<bool> expected;
    for (std::uint64_t version = kFirst; version < kLast; ++version) expected.insert(expected.end(), {true, false});
    EXPECT_EQ(followed.pauses(), expected);
  }
}

TEST_P(FollowedTrace, IsBitIdenticalThroughMergedDeltasOfAnyLength) {
  const PublishedTrace& trace = published();
  for (std::uint64_t middle = kFirst; middle <= kLast; ++middle) {
    Followed followed(trace, GetParam(), true);
    followed->step(middle);
    followed.expect_holds(middle);
    EXPECT_LE(followed->step().applied, kLast - middle);
    followed.expect_holds(kLast);
  }
}

TEST_P(FollowedTrace, TakesMergedDeltas) {
  const PublishedTrace& trace = published();
  Followed followed(trace, GetParam(), true);
  EXPECT_LT(followed->step().applied, kLast - kFirst);
  followed.expect_holds(kLast);
}

TEST_P(FollowedTrace, IsBitIdenticalFromAnAnchorOn) {
  const PublishedTrace& trace = published();
  Followed followed(trace, GetParam(), false);
  EXPECT_TRUE(followed->step(15).reseeded);
  followed.expect_holds(15);
  EXPECT_FALSE(followed->step().reseeded);
  followed.expect_holds(kLast);
}

TEST_P(FollowedTrace, IsBitIdenticalOverAGap) {
  const PublishedTrace trace;
  Followed followed(trace, GetParam(), true);
  followed->step(13);
  trace.collect();
  EXPECT_TRUE(followed->step().reseeded);
  followed.expect_holds(kLast);
}

}  // namespace
}  // namespace sparsecast::test
