// SPDX-License-Identifier: Apache-2.0

// Whatever fails while a delta file is written, under its name there is the old content (or none) or the new one.

#include <gtest/gtest.h>

#include "sparsecast/sync.hpp"
#include "support/detectors.hpp"
#include "support/fault_fs.hpp"
#include "support/training_model.hpp"

namespace sparsecast::test {
namespace {

constexpr const char* kPath = "deltas/1.scd";

/// Two deltas of one model, and the bytes that their files must have.
class Written {
 public:
  Written() : model_(run_seed(), 24) {
    PublisherOptions options;
    Publisher publisher(model_.table(), host_snapshot(*model_.table(), model_.live()), options);
    for (Delta* delta : {&old_delta, &new_delta}) {
      model_.train();
      *delta = publisher.publish();
      publisher.commit(delta->info.version);
    }
    old_content = content_of(old_delta);
    new_content = content_of(new_delta);
  }

  void write(FileSystem& fs, const Delta& delta) const { write_delta_file(fs, kPath, *model_.table(), delta); }

  /// A file system with the directory and, if asked, the old file.
  std::unique_ptr<FaultFileSystem> disk(bool with_old) const {
    auto fs = std::make_unique<FaultFileSystem>();
    fs->put_file("deltas/other", "something else");
    if (with_old) fs->put_file(kPath, old_content);
    fs->reset_log();
    return fs;
  }

  std::uint64_t operations() const {
    const auto fs = disk(false);
    write(*fs, new_delta);
    return fs->operations();
  }

  Delta old_delta;
  Delta new_delta;
  std::string old_content;
  std::string new_content;

 private:
  std::string content_of(const Delta& delta) const {
    FaultFileSystem fs;
    fs.put_file("deltas/other", "");
    write(fs, delta);
    return fs.content(kPath).value();
  }

  TrainingModel model_;
};

/// Nothing is there, or exactly the old file, or exactly the new one, which opens.
testing::AssertionResult old_or_new(const Written& written, bool with_old, FaultFileSystem& fs) {
  const std::optional<std::string> content = fs.content(kPath);
  if (!content) return with_old ? testing::AssertionFailure() << "the old file is gone" : testing::AssertionSuccess();
  if (with_old && *content == written.old_content) return testing::AssertionSuccess();
  if (*content == written.new_content) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "a file of " << content->size() << " bytes is neither the old nor the new one";
}

TEST(FileFaults, AFailureOfAnyOperationLeavesTheOldFileOrAWholeNewOneAndIsReported) {
  SCOPED_TRACE(seed_note());
  const Written written;
  const std::uint64_t operations = written.operations();
  ASSERT_GE(operations, 8U);
  for (const bool with_old : {false, true}) {
    for (std::uint64_t n = 0; n < operations; ++n) {
      for (const int mode : {0, 1, 2}) {
        const auto fs = written.disk(with_old);
        if (mode == 0) fs->fail_at(n);
        if (mode == 1) fs->fail_at(n, ENOSPC, FaultFileSystem::Repeat::kForEver);
        if (mode == 2) fs->short_write_at(n);
        ErrorCode code{};
        try {
          written.write(*fs, written.new_delta);
        } catch (const Error& error) {
          code = error.code();
        }
        const std::string where = n < fs->log().size() ? fs->log()[n].name : "nothing";
        EXPECT_EQ(code, ErrorCode::kIo) << "operation " << n << " (" << where << "), mode " << mode << ": success";
        EXPECT_TRUE(old_or_new(written, with_old, *fs)) << "operation " << n << " (" << where << "), mode " << mode;
        if (mode != 1) {
          EXPECT_EQ(fs->files().size(), fs->content(kPath) ? 2U : 1U) << "a temporary file is left at " << where;
        }
        fs->clear_fault();
        EXPECT_NO_THROW(written.write(*fs, written.new_delta)) << "the next try after " << where;
        EXPECT_EQ(fs->content(kPath), written.new_content);
      }
    }
  }
}

TEST(FileFaults, APowerLossAtAnyOperationLeavesTheOldFileOrAWholeNewOne) {
  SCOPED_TRACE(seed_note());
  const Written written;
  const std::uint64_t operations = written.operations();
  for (const bool with_old : {false, true}) {
    for (std::uint64_t n = 0; n < operations; ++n) {
      const auto fs = written.disk(with_old);
      fs->crash_at(n);
      EXPECT_THROW(written.write(*fs, written.new_delta), CrashException);
      for (std::uint64_t state = 0; state < 40; ++state) {
        const auto disk = state == 0 ? fs->durable_state() : fs->crash_state(case_seed(run_seed(), n * 100 + state));
        ASSERT_TRUE(old_or_new(written, with_old, *disk)) << "operation " << n << ", state " << state;
        if (state % 8 != 0) continue;
        EXPECT_NO_THROW(written.write(*disk, written.new_delta));
        EXPECT_EQ(disk->content(kPath), written.new_content);
      }
    }
  }
}

TEST(FileFaults, AFileThatWasReportedAsWrittenSurvivesAPowerLoss) {
  const Written written;
  const auto fs = written.disk(true);
  written.write(*fs, written.new_delta);
  EXPECT_EQ(fs->durable_state()->content(kPath), written.new_content);
  const DeltaFile file = DeltaFile::open(*fs->durable_state(), kPath);
  EXPECT_EQ(file.commit().result_digest, written.new_delta.result.result_digest);
}

}  // namespace
}  // namespace sparsecast::test
