// SPDX-License-Identifier: Apache-2.0
#include "support/fault_fs.hpp"

#include <gtest/gtest.h>

#include <set>

#include "support/expect_error.hpp"
#include "support/random.hpp"

namespace sparsecast::test {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

void write(FileSystem& fs, const std::string& path, const std::string& text, OpenMode mode = OpenMode::kCreate) {
  fs.open(path, mode)->write_at(0, bytes_of(text));
}

TEST(FaultFileSystem, ReadsBackWhatWasWritten) {
  FaultFileSystem fs;
  fs.make_directory("d");
  const auto file = fs.open("d/f", OpenMode::kCreateExclusive);
  file->write_at(3, bytes_of("abc"));
  EXPECT_EQ(file->size(), 6U);
  std::string read(3, ' ');
  file->read_at(3, std::as_writable_bytes(std::span(read)));
  EXPECT_EQ(read, "abc");
  EXPECT_EQ(fs.content("d/f"), std::string("\0\0\0abc", 6));
  file->truncate(4);
  EXPECT_EQ(fs.content("d/f"), std::string("\0\0\0a", 4));
}

TEST(FaultFileSystem, RefusesWhatAFileSystemRefuses) {
  FaultFileSystem fs;
  fs.put_file("d/f", "x");
  expect_error(ErrorCode::kIo, [&] { fs.open("none", OpenMode::kRead); }, {"none", "No such file"});
  expect_error(ErrorCode::kIo, [&] { fs.open("none", OpenMode::kReadWrite); });
  expect_error(ErrorCode::kIo, [&] { fs.open("d/f", OpenMode::kCreateExclusive); }, {"exists"});
  expect_error(ErrorCode::kIo, [&] { fs.open("e/f", OpenMode::kCreate); });
  expect_error(ErrorCode::kIo, [&] { fs.open("d", OpenMode::kCreate); });
  expect_error(ErrorCode::kIo, [&] { fs.open("d/f", OpenMode::kRead)->write_at(0, bytes_of("y")); });
  expect_error(ErrorCode::kIo, [&] {
    std::byte two[2];
    fs.open("d/f", OpenMode::kRead)->read_at(0, two);
  });
  expect_error(ErrorCode::kIo, [&] { fs.rename("none", "d/g"); });
  expect_error(ErrorCode::kIo, [&] { fs.rename("d/f", "e/g"); });
  expect_error(ErrorCode::kIo, [&] { fs.remove("d"); }, {"not empty"});
  expect_error(ErrorCode::kIo, [&] { fs.make_directory("d/f"); });
  expect_error(ErrorCode::kIo, [&] { fs.list("none"); });
  EXPECT_EQ(fs.content("d/f"), "x");
}

TEST(FaultFileSystem, ListsEntriesOfOneDirectorySorted) {
  FaultFileSystem fs;
  fs.put_file("d/b", "");
  fs.put_file("d/a", "");
  fs.put_file("d/sub/c", "");
  fs.put_file("top", "");
  EXPECT_EQ(fs.list("d"), (std::vector<std::string>{"a", "b", "sub"}));
  EXPECT_EQ(fs.list("."), (std::vector<std::string>{"d", "top"}));
  EXPECT_TRUE(fs.is_directory("d/sub"));
  EXPECT_FALSE(fs.is_directory("d/a"));
}

TEST(FaultFileSystem, FailsTheChosenOperationOnceWithTheChosenError) {
  FaultFileSystem fs;
  fs.put_file("f", "old");
  fs.fail_at(1, EIO);
  const auto file = fs.open("f", OpenMode::kReadWrite);
  expect_error(ErrorCode::kIo, [&] { file->write_at(0, bytes_of("new")); }, {"f: write failed: Input/output error"});
  EXPECT_EQ(fs.content("f"), "old");
  file->write_at(0, bytes_of("new"));
  EXPECT_EQ(fs.content("f"), "new");
  EXPECT_EQ(fs.operations(), 3U);
}

TEST(FaultFileSystem, FailsForEverWhenAskedTo) {
  FaultFileSystem fs;
  fs.fail_at(1, EROFS, FaultFileSystem::Repeat::kForEver);
  EXPECT_FALSE(fs.exists("f"));
  for (int i = 0; i < 3; ++i) expect_error(ErrorCode::kIo, [&] { fs.exists("f"); }, {"Read-only"});
  fs.clear_fault();
  EXPECT_FALSE(fs.exists("f"));
}

TEST(FaultFileSystem, ShortWritePutsDownTheFirstHalfAndThrows) {
  FaultFileSystem fs;
  fs.short_write_at(1);
  const auto file = fs.open("f", OpenMode::kCreate);
  expect_error(ErrorCode::kIo, [&] { file->write_at(0, bytes_of("abcdef")); }, {"No space left"});
  EXPECT_EQ(fs.content("f"), "abc");
}

TEST(FaultFileSystem, LogsOperationsInTheirOrder) {
  FaultFileSystem fs;
  write(fs, "f", "abc");
  fs.rename("f", "g");
  fs.sync_directory(".");
  std::vector<std::string> names;
  for (const FaultFileSystem::Operation& operation : fs.log()) names.push_back(operation.name);
  EXPECT_EQ(names, (std::vector<std::string>{"open", "write", "rename", "sync_directory"}));
  EXPECT_EQ(fs.log()[1].bytes, 3U);
  EXPECT_EQ(fs.log()[2].to, "g");
  fs.reset_log();
  EXPECT_EQ(fs.operations(), 0U);
}

TEST(FaultFileSystem, CrashesInTheChosenOperationAndInAllLaterOnes) {
  FaultFileSystem fs;
  fs.put_file("f", "x");
  fs.crash_at(1);
  EXPECT_TRUE(fs.exists("f"));
  EXPECT_THROW(fs.exists("f"), CrashException);
  EXPECT_THROW(fs.open("f", OpenMode::kRead), CrashException);
  const auto after = fs.crash_state(1);
  EXPECT_TRUE(after->exists("f"));
  EXPECT_EQ(after->content("f"), "x");
}

/// Everything that the file can be after a crash, over many seeds.
std::set<std::string> contents_after_crash(const FaultFileSystem& fs, const std::string& path) {
  std::set<std::string> found;
  for (std::uint64_t seed = 0; seed < 400; ++seed) found.insert(fs.crash_state(seed)->content(path).value_or("<none>"));
  return found;
}

TEST(FaultFileSystem, CrashKeepsSyncedDataAndLosesOrKeepsTheRest) {
  FaultFileSystem fs;
  fs.put_file("f", "aaaa");
  const auto file = fs.open("f", OpenMode::kReadWrite);
  file->write_at(0, bytes_of("b"));
  file->sync();
  EXPECT_EQ(contents_after_crash(fs, "f"), (std::set<std::string>{"baaa"}));
  file->write_at(1, bytes_of("c"));
  file->write_at(2, bytes_of("d"));
  EXPECT_EQ(contents_after_crash(fs, "f"), (std::set<std::string>{"baaa", "bcaa", "bada", "bcda"}));
  EXPECT_EQ(fs.durable_state()->content("f"), "baaa");
  EXPECT_EQ(fs.content("f"), "bcda");
}

TEST(FaultFileSystem, CrashTearsWritesAtSectors) {
  FaultFileSystem fs;
  constexpr std::size_t kSector = FaultFileSystem::kSectorBytes;
  fs.put_file("f", std::string(3 * kSector, 'a'));
  fs.open("f", OpenMode::kReadWrite)->write_at(kSector / 2, bytes_of(std::string(2 * kSector, 'b')));
  bool torn = false;
  for (const std::string& content : contents_after_crash(fs, "f")) {
    ASSERT_EQ(content.size(), 3 * kSector);
    EXPECT_EQ(content.substr(0, kSector / 2), std::string(kSector / 2, 'a'));
    const std::string middle = content.substr(kSector, kSector);
    EXPECT_TRUE(middle == std::string(kSector, 'a') || middle == std::string(kSector, 'b')) << "torn inside a sector";
    torn = torn || content[kSector - 1] != content[kSector];
  }
  EXPECT_TRUE(torn);
}

TEST(FaultFileSystem, CrashMayLoseNamesUntilTheirDirectoryIsSynced) {
  FaultFileSystem fs;
  fs.put_file("d/old", "1");
  {
    const auto file = fs.open("d/new", OpenMode::kCreate);
    file->write_at(0, bytes_of("2"));
    file->sync();
  }
  fs.rename("d/new", "d/old");
  EXPECT_EQ(contents_after_crash(fs, "d/old"), (std::set<std::string>{"1", "2"}));
  EXPECT_EQ(contents_after_crash(fs, "d/new"), (std::set<std::string>{"<none>", "2"}));
  fs.sync_directory("d");
  EXPECT_EQ(contents_after_crash(fs, "d/old"), (std::set<std::string>{"2"}));
  EXPECT_EQ(contents_after_crash(fs, "d/new"), (std::set<std::string>{"<none>"}));
  fs.remove("d/old");
  EXPECT_EQ(contents_after_crash(fs, "d/old"), (std::set<std::string>{"<none>", "2"}));
}

TEST(FaultFileSystem, RenameWithoutFsyncOfTheDataMayLeaveAnEmptyFile) {
  FaultFileSystem fs;
  fs.put_file("f", "old");
  write(fs, "f.new", "new");
  fs.rename("f.new", "f");
  fs.sync_directory(".");
  EXPECT_TRUE(contents_after_crash(fs, "f").count("") != 0);
}

TEST(FaultFileSystem, CrashMayLoseADirectoryWithAllThatIsInIt) {
  FaultFileSystem fs;
  fs.make_directory("d");
  {
    const auto file = fs.open("d/f", OpenMode::kCreate);
    file->sync();
  }
  fs.sync_directory("d");
  EXPECT_EQ(contents_after_crash(fs, "d/f"), (std::set<std::string>{"<none>", ""}));
  fs.sync_directory(".");
  EXPECT_EQ(contents_after_crash(fs, "d/f"), (std::set<std::string>{""}));
}

TEST(FaultFileSystem, FailedFsyncIsNotRepairedByALaterOne) {
  FaultFileSystem fs;
  fs.put_file("f", "aa");
  const auto file = fs.open("f", OpenMode::kReadWrite);
  file->write_at(0, bytes_of("b"));
  fs.reset_log();
  fs.fail_at(0);
  expect_error(ErrorCode::kIo, [&] { file->sync(); });
  file->write_at(1, bytes_of("c"));
  file->sync();
  EXPECT_EQ(fs.content("f"), "bc");
  EXPECT_EQ(contents_after_crash(fs, "f"), (std::set<std::string>{"ac", "bc"}));
  EXPECT_EQ(fs.durable_state()->content("f"), "ac");
}

TEST(FaultFileSystem, CrashInAnFsyncPromisesNothing) {
  FaultFileSystem fs;
  fs.put_file("f", "a");
  const auto file = fs.open("f", OpenMode::kReadWrite);
  file->write_at(0, bytes_of("b"));
  fs.reset_log();
  fs.crash_at(0);
  EXPECT_THROW(file->sync(), CrashException);
  EXPECT_EQ(contents_after_crash(fs, "f"), (std::set<std::string>{"a", "b"}));
}

TEST(FaultFileSystem, CrashStateIsTheSameForTheSameSeed) {
  FaultFileSystem fs;
  for (int i = 0; i < 20; ++i) write(fs, "f" + std::to_string(i), std::string(3000, 'x'));
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto a = fs.crash_state(seed);
    const auto b = fs.crash_state(seed);
    ASSERT_EQ(a->files(), b->files());
    for (const std::string& path : a->files()) EXPECT_EQ(a->content(path), b->content(path));
  }
}

TEST(FaultFileSystem, ClockMovesOnlyWhenTold) {
  FaultFileSystem fs;
  const auto before = fs.now();
  EXPECT_EQ(fs.now(), before);
  fs.advance(std::chrono::seconds(3));
  EXPECT_EQ(fs.now() - before, std::chrono::seconds(3));
}

TEST(FaultFileSystem, RenamesADirectoryWithAllThatIsInItOrNotAtAll) {
  FaultFileSystem fs;
  fs.put_file("/a/old/x/file", std::string("bytes"));
  fs.put_file("/a/old-too", std::string("other"));
  fs.rename("/a/old", "/a/new");
  EXPECT_EQ(fs.files(), (std::vector<std::string>{"/a/new/x/file", "/a/old-too"}));
  EXPECT_EQ(fs.durable_state()->files(), (std::vector<std::string>{"/a/old-too", "/a/old/x/file"}));
  bool lost = false;
  bool kept = false;
  for (std::uint64_t seed = 0; seed < 64; ++seed) {
    const auto files = fs.crash_state(seed)->files();
    const bool moved = files == fs.files();
    EXPECT_TRUE(moved || files == fs.durable_state()->files());
    (moved ? kept : lost) = true;
  }
  EXPECT_TRUE(lost && kept);
  fs.sync_directory("/a");
  EXPECT_EQ(fs.durable_state()->files(), fs.files());
  fs.make_directory("/a/other");
  EXPECT_THROW(fs.rename("/a/new", "/a/other"), Error);
}

TEST(FaultFileSystem, ForgetsWhatWasPendingInADirectoryThatIsGone) {
  FaultFileSystem fs;
  fs.put_file("/a/b/file", std::string("old"));
  fs.remove("/a/b/file");
  fs.remove("/a/b");
  fs.sync_directory("/a");
  fs.put_file("/a/b/file", std::string("new"));
  for (std::uint64_t seed = 0; seed < 64; ++seed) EXPECT_EQ(fs.crash_state(seed)->content("/a/b/file"), "new");
}

}  // namespace
}  // namespace sparsecast::test
