// SPDX-License-Identifier: Apache-2.0

// AtomicFile: after any failure and any crash the old or the whole new content, never a part (I2), and after a clean
// return the new content for certain.

#include <gtest/gtest.h>

#include "sparsecast/error.hpp"
#include "sparsecast/io.hpp"
#include "support/expect_error.hpp"
#include "support/fault_fs.hpp"

namespace sparsecast::test {
namespace {

const std::string kPath = "dir/target";
const std::string kOld(1500, 'o');
const std::string kNew = std::string(900, 'n') + std::string(2000, 'm');

void put_old(FaultFileSystem& fs, bool exists) {
  fs.put_file("dir/other", "untouched");
  if (exists) fs.put_file(kPath, kOld);
}

void write_new(FileSystem& fs) {
  AtomicFile file(fs, kPath);
  const auto bytes = std::as_bytes(std::span(kNew));
  file.append(bytes.first(900));
  file.append(bytes.subspan(900));
  file.commit();
}

std::uint64_t operations_of_a_clean_run() {
  FaultFileSystem fs;
  put_old(fs, true);
  write_new(fs);
  return fs.operations();
}

std::optional<std::string> old_content(bool exists) { return exists ? std::optional<std::string>(kOld) : std::nullopt; }

TEST(AtomicFile, IsVisibleAndDurableAfterCommit) {
  for (const bool exists : {false, true}) {
    FaultFileSystem fs;
    put_old(fs, exists);
    write_new(fs);
    EXPECT_EQ(fs.files(), (std::vector<std::string>{"dir/other", kPath}));
    EXPECT_EQ(fs.durable_state()->content(kPath), kNew);
    for (std::uint64_t seed = 0; seed < 50; ++seed) EXPECT_EQ(fs.crash_state(seed)->content(kPath), kNew);
  }
}

TEST(AtomicFile, LeavesTheOldContentAndNoTraceWhenItIsNotCommitted) {
  FaultFileSystem fs;
  put_old(fs, true);
  {
    AtomicFile file(fs, kPath);
    file.append(std::as_bytes(std::span(kNew)));
    EXPECT_EQ(file.size(), kNew.size());
    EXPECT_EQ(fs.content(kPath), kOld);
  }
  EXPECT_EQ(fs.files(), (std::vector<std::string>{"dir/other", kPath}));
  EXPECT_EQ(fs.content(kPath), kOld);
}

TEST(AtomicFile, SyncsTheDataBeforeTheRenameAndTheDirectoryAfterIt) {
  FaultFileSystem fs;
  put_old(fs, true);
  write_new(fs);
  std::vector<std::string> last;
  const auto log = fs.log();
  for (std::size_t i = log.size() - 3; i < log.size(); ++i) last.push_back(log[i].name);
  EXPECT_EQ(last, (std::vector<std::string>{"sync", "rename", "sync_directory"}));
  EXPECT_EQ(log.back().path, "dir");
}

enum class FaultKind { kOnce, kForEver, kShort };

TEST(AtomicFile, EveryInjectedFailureLeavesTheOldOrTheWholeNewContent) {
  const std::uint64_t operations = operations_of_a_clean_run();
  for (const bool exists : {false, true}) {
    for (const FaultKind kind : {FaultKind::kOnce, FaultKind::kForEver, FaultKind::kShort}) {
      for (std::uint64_t at = 0; at < operations; ++at) {
        SCOPED_TRACE("operation " + std::to_string(at));
        FaultFileSystem fs;
        put_old(fs, exists);
        if (kind == FaultKind::kShort) {
          fs.short_write_at(at);
        } else {
          fs.fail_at(at, EIO,
                     kind == FaultKind::kOnce ? FaultFileSystem::Repeat::kOnce : FaultFileSystem::Repeat::kForEver);
        }
        expect_error(ErrorCode::kIo, [&] { write_new(fs); });
        // Only the last operation, the sync of the directory, comes after the content is in place.
        const auto expected = at + 1 < operations ? old_content(exists) : std::optional<std::string>(kNew);
        EXPECT_EQ(fs.content(kPath), expected);
        EXPECT_EQ(fs.content("dir/other"), "untouched");
        if (kind != FaultKind::kForEver) {
          for (const std::string& path : fs.files()) EXPECT_TRUE(path == kPath || path == "dir/other") << path;
        }
        for (std::uint64_t seed = 0; seed < 20; ++seed) {
          const auto after = fs.crash_state(seed)->content(kPath);
          EXPECT_TRUE(after == old_content(exists) || after == kNew);
        }
      }
    }
  }
}

TEST(AtomicFile, EveryCrashLeavesTheOldOrTheWholeNewContent) {
  const std::uint64_t operations = operations_of_a_clean_run();
  for (const bool exists : {false, true}) {
    for (std::uint64_t at = 0; at < operations; ++at) {
      FaultFileSystem fs;
      put_old(fs, exists);
      fs.crash_at(at);
      EXPECT_THROW(write_new(fs), CrashException);
      for (std::uint64_t seed = 0; seed < 200; ++seed) {
        SCOPED_TRACE("crash at " + std::to_string(at) + ", seed " + std::to_string(seed));
        const auto after = fs.crash_state(seed);
        const auto content = after->content(kPath);
        EXPECT_TRUE(content == old_content(exists) || content == kNew);
        EXPECT_EQ(after->content("dir/other"), "untouched");
        write_new(*after);
        EXPECT_EQ(after->content(kPath), kNew) << "a restart after the crash cannot write the file";
      }
    }
  }
}

TEST(AtomicFile, NeverSyncsAgainAfterAFailedSync) {
  FaultFileSystem fs;
  put_old(fs, true);
  AtomicFile file(fs, kPath);
  file.append(std::as_bytes(std::span(kNew)));
  fs.reset_log();
  fs.fail_at(0, EIO);
  expect_error(ErrorCode::kIo, [&] { file.commit(); }, {"sync"});
  expect_error(ErrorCode::kUsage, [&] { file.commit(); }, {kPath});
  for (const auto& operation : fs.log()) EXPECT_NE(operation.name, "rename");
  EXPECT_EQ(fs.content(kPath), kOld);
}

TEST(AtomicFile, CannotBeCommittedAfterAFailedRename) {
  FaultFileSystem fs;
  put_old(fs, true);
  AtomicFile file(fs, kPath);
  file.append(std::as_bytes(std::span(kNew)));
  fs.reset_log();
  fs.fail_at(1, EACCES);
  expect_error(ErrorCode::kIo, [&] { file.commit(); }, {"rename"});
  expect_error(ErrorCode::kUsage, [&] { file.commit(); });
  EXPECT_EQ(fs.content(kPath), kOld);
}

TEST(AtomicFile, CannotBeCommittedAfterAFailedWrite) {
  FaultFileSystem fs;
  put_old(fs, true);
  {
    AtomicFile file(fs, kPath);
    fs.reset_log();
    fs.short_write_at(0);
    expect_error(ErrorCode::kIo, [&] { file.append(std::as_bytes(std::span(kNew))); }, {"No space left"});
    expect_error(ErrorCode::kUsage, [&] { file.append(std::as_bytes(std::span(kNew))); });
    expect_error(ErrorCode::kUsage, [&] { file.commit(); });
  }
  EXPECT_EQ(fs.files(), (std::vector<std::string>{"dir/other", kPath}));
  EXPECT_EQ(fs.content(kPath), kOld);
}

TEST(AtomicFile, RefusesASecondCommitAndLaterBytes) {
  FaultFileSystem fs;
  fs.put_file("dir/other", "untouched");
  AtomicFile file(fs, kPath);
  file.commit();
  expect_error(ErrorCode::kUsage, [&] { file.commit(); });
  expect_error(ErrorCode::kUsage, [&] { file.append(std::as_bytes(std::span(kNew))); });
  EXPECT_EQ(fs.content(kPath), "");
}

TEST(AtomicFile, TwoOfOneTargetDoNotMeet) {
  FaultFileSystem fs;
  fs.put_file("dir/other", "untouched");
  AtomicFile a(fs, kPath);
  AtomicFile b(fs, kPath);
  a.append(std::as_bytes(std::span(kOld)));
  b.append(std::as_bytes(std::span(kNew)));
  a.commit();
  EXPECT_EQ(fs.content(kPath), kOld);
  b.commit();
  EXPECT_EQ(fs.content(kPath), kNew);
}

TEST(AtomicFile, WritesInTheWorkingDirectoryAndUnderTheRoot) {
  EXPECT_EQ(parent_directory("name"), ".");
  EXPECT_EQ(parent_directory("/name"), "/");
  EXPECT_EQ(parent_directory("a/b/c"), "a/b");
  for (const std::string path : {"name", "/name"}) {
    FaultFileSystem fs;
    AtomicFile file(fs, path);
    file.append(std::as_bytes(std::span(kNew)));
    file.commit();
    EXPECT_EQ(fs.durable_state()->content(path), kNew);
  }
}

}  // namespace
}  // namespace sparsecast::test
