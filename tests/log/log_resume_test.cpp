// SPDX-License-Identifier: Apache-2.0

// A publisher that goes on in its epoch after a restart, and one that may not.

#include <gtest/gtest.h>

#include "support/expect_error.hpp"
#include "support/fault_fs.hpp"
#include "support/log_scene.hpp"

namespace sparsecast::test {
namespace {

class LogResumeTest : public ::testing::Test {
 protected:
  /// One life of the publisher with this id.
  struct Life {
    LogReader reader;
    LogWriter writer;
    Life(std::shared_ptr<ObjectStore> store, const Hash128& publisher)
        : reader(std::move(store)), writer(reader, options_of(publisher)) {}
    static LogWriterOptions options_of(const Hash128& publisher) {
      LogWriterOptions options;
      options.publisher = publisher;
      return options;
    }
  };
  std::unique_ptr<Life> live(std::uint64_t id) {
    return std::make_unique<Life>(open_directory_store(fs_, "log"), Hash128{id, 7});
  }
  LogCommit publish(LogWriter& writer, std::uint64_t step) {
    const Bytes bytes = scene_.delta(step - 1, step, step);
    return writer.publish(DeltaFile::over(bytes, "delta"));
  }

  FaultFileSystem fs_;
  LogScene scene_;
};

TEST_F(LogResumeTest, APublisherGoesOnInItsEpochWithoutACommit) {
  EXPECT_EQ(live(1)->writer.create(scene_.creation()).publisher, (Hash128{1, 7}));
  for (std::uint64_t step = 1; step <= 3; ++step) {
    const auto life = live(1);
    const LogCommit resumed = life->writer.resume(scene_.table(), scene_.digest(step - 1));
    EXPECT_EQ(resumed.version, step - 1);
    const LogCommit commit = publish(life->writer, step);
    EXPECT_EQ(commit.version, step);
    EXPECT_EQ(commit.epoch, 1U);
    EXPECT_EQ(commit.publisher, (Hash128{1, 7}));
  }
}

TEST_F(LogResumeTest, WhoWasTakenOverFromIsFenced) {
  const auto first = live(1);
  first->writer.create(scene_.creation());
  live(2)->writer.take_over(scene_.table(), scene_.digest(0));
  expect_error(ErrorCode::kFenced, [&] { live(1)->writer.resume(scene_.table(), scene_.digest(0)); },
               {"version 1", "another publisher's"});
  EXPECT_EQ(live(2)->writer.resume(scene_.table(), scene_.digest(0)).epoch, 2U);
}

TEST_F(LogResumeTest, AWriterWithoutAnIdOfItsOwnNeverResumes) {
  live(1)->writer.create(scene_.creation());
  LogReader reader(open_directory_store(fs_, "log"));
  LogWriter writer(reader, {});
  expect_error(ErrorCode::kFenced, [&] { writer.resume(scene_.table(), scene_.digest(0)); }, {"another publisher's"});
  expect_error(ErrorCode::kUsage, [&] { publish(writer, 1); }, {"taken over"});
}

TEST_F(LogResumeTest, OtherWeightsThanTheHeadsAreRefused) {
  live(1)->writer.create(scene_.creation());
  const auto life = live(1);
  expect_error(ErrorCode::kWrongBase, [&] { life->writer.resume(scene_.table(), scene_.digest(1)); }, {"digest"});
  const auto other = std::make_shared<TensorTable>(std::vector<TensorSpec>{{"a", DType::kF32, {3}}});
  expect_error(ErrorCode::kTableMismatch, [&] { life->writer.resume(other, scene_.digest(0)); }, {"tensor table"});
  expect_error(ErrorCode::kUsage, [&] { life->writer.resume(nullptr, scene_.digest(0)); }, {"tensor table"});
  EXPECT_EQ(life->writer.resume(scene_.table(), scene_.digest(0)).version, 0U);
}

TEST_F(LogResumeTest, TwoProcessesOfOnePublisherCannotFork) {
  live(1)->writer.create(scene_.creation());
  const auto one = live(1);
  const auto two = live(1);
  one->writer.resume(scene_.table(), scene_.digest(0));
  two->writer.resume(scene_.table(), scene_.digest(0));
  publish(one->writer, 1);
  const Bytes other = scene_.delta(0, 2, 1);
  expect_error(ErrorCode::kFenced, [&] { two->writer.publish(DeltaFile::over(other, "delta")); }, {"committed"});
  EXPECT_EQ(live(1)->writer.resume(scene_.table(), scene_.digest(1)).version, 1U);
}

}  // namespace
}  // namespace sparsecast::test
