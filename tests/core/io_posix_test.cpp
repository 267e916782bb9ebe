// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "core/file_tree.hpp"
#include "sparsecast/error.hpp"
#include "sparsecast/io.hpp"
#include "sparsecast/object_store.hpp"
#include "support/expect_error.hpp"
#include "support/temporary_directory.hpp"

namespace sparsecast::test {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

class PosixFileSystem : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) {
    fs.open(directory / name, OpenMode::kCreate)->write_at(0, bytes_of(text));
  }
  std::string read(const std::string& name) {
    const auto file = fs.open(directory / name, OpenMode::kRead);
    std::string text(file->size(), '\0');
    file->read_at(0, std::as_writable_bytes(std::span(text)));
    return text;
  }

  FileSystem& fs = FileSystem::posix();
  TemporaryDirectory directory;
};

TEST_F(PosixFileSystem, ReadsBackWhatWasWritten) {
  write("f", "abcdef");
  EXPECT_EQ(read("f"), "abcdef");
  const auto file = fs.open(directory / "f", OpenMode::kReadWrite);
  file->write_at(8, bytes_of("gh"));
  file->sync();
  EXPECT_EQ(read("f"), std::string("abcdef\0\0gh", 10));
  file->truncate(2);
  EXPECT_EQ(file->size(), 2U);
  EXPECT_EQ(read("f"), "ab");
}

TEST_F(PosixFileSystem, OpenModesSayWhatMustExist) {
  expect_error(ErrorCode::kIo, [&] { fs.open(directory / "none", OpenMode::kRead); }, {"none", "open", "No such file"});
  expect_error(ErrorCode::kIo, [&] { fs.open(directory / "none", OpenMode::kReadWrite); });
  EXPECT_FALSE(fs.exists(directory / "none"));
  fs.open(directory / "new", OpenMode::kCreateExclusive);
  expect_error(ErrorCode::kIo, [&] { fs.open(directory / "new", OpenMode::kCreateExclusive); }, {"exists"});
  write("new", "text");
  fs.open(directory / "new", OpenMode::kCreate);
  EXPECT_EQ(read("new"), "");
}

TEST_F(PosixFileSystem, ReadPastTheEndSaysWhereTheFileEnds) {
  write("f", "abc");
  std::byte four[4];
  expect_error(ErrorCode::kIo, [&] { fs.open(directory / "f", OpenMode::kRead)->read_at(0, four); },
               {"offset 3", "/f"});
}

TEST_F(PosixFileSystem, WriteToAReadOnlyFileNamesThePath) {
  write("f", "abc");
  const auto file = fs.open(directory / "f", OpenMode::kRead);
  expect_error(ErrorCode::kIo, [&] { file->write_at(0, bytes_of("x")); }, {"/f", "write"});
  expect_error(ErrorCode::kIo, [&] { file->truncate(0); }, {"/f", "truncate"});
}

TEST_F(PosixFileSystem, ReadsWholeFilesAndEmptyFiles) {
  write("f", "abc");
  write("empty", "");
  EXPECT_EQ(read_file(fs, directory / "f"), (std::vector<std::byte>{std::byte{'a'}, std::byte{'b'}, std::byte{'c'}}));
  EXPECT_TRUE(read_file(fs, directory / "empty").empty());
  expect_error(ErrorCode::kIo, [&] { read_file(fs, directory / "none"); }, {"none"});
  expect_error(ErrorCode::kIo, [&] { read_file(fs, directory.path()); }, {"regular"});
}

TEST_F(PosixFileSystem, ListsNamesSortedAndTellsDirectoriesFromFiles) {
  write("b", "");
  write("a", "");
  fs.make_directory(directory / "c");
  fs.make_directory(directory / "c");
  EXPECT_EQ(fs.list(directory.path()), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_TRUE(fs.is_directory(directory / "c"));
  EXPECT_FALSE(fs.is_directory(directory / "a"));
  EXPECT_FALSE(fs.is_directory(directory / "none"));
  EXPECT_FALSE(fs.exists(directory / "a/none"));
  expect_error(ErrorCode::kIo, [&] { fs.make_directory(directory / "a"); }, {"/a", "exists"});
  expect_error(ErrorCode::kIo, [&] { fs.make_directory(directory / "none/d"); });
  expect_error(ErrorCode::kIo, [&] { fs.list(directory / "none"); }, {"none"});
}

TEST_F(PosixFileSystem, TellsLinksFromWhatTheyLeadTo) {
  fs.make_directory(directory / "d");
  write("d/f", "abc");
  std::filesystem::create_symlink("d", directory / "to_d");
  std::filesystem::create_symlink("d/f", directory / "to_f");
  std::filesystem::create_symlink("nowhere", directory / "to_nothing");
  EXPECT_FALSE(fs.is_link(directory / "d"));
  EXPECT_FALSE(fs.is_link(directory / "none"));
  for (const char* link : {"to_d", "to_f", "to_nothing"}) EXPECT_TRUE(fs.is_link(directory / link)) << link;
  EXPECT_FALSE(fs.is_link(directory / "to_d/f")) << "a file behind a link is none";
  EXPECT_EQ(fs.resolved(directory / "to_d/f"), fs.resolved(directory / "d/f"));
  EXPECT_EQ(fs.resolved(directory / "none"), directory / "none");
  EXPECT_EQ(fs.names(directory / "to_f"), 1U);
  std::filesystem::create_hard_link(directory / "d/f", directory / "again");
  EXPECT_EQ(fs.names(directory / "d/f"), 2U);
}

TEST_F(PosixFileSystem, NamesALinkThatLeadsNowhere) {
  std::filesystem::create_symlink("nowhere", directory / "link");
  std::filesystem::create_symlink("circle", directory / "circle");
  for (const char* name : {"link", "circle"}) {
    EXPECT_FALSE(fs.exists(directory / name)) << name;
    EXPECT_FALSE(fs.is_directory(directory / name)) << name;
    expect_error(ErrorCode::kUsage, [&] { settled_path(fs, directory / name); }, {name, "is a link"});
  }
  expect_error(ErrorCode::kIo, [&] { fs.open(directory / "link", OpenMode::kRead); }, {"/link", "a link to 'nowhere'"});
  expect_error(ErrorCode::kIo, [&] { read_file(fs, directory / "circle"); }, {"/circle", "links"});
}

TEST_F(PosixFileSystem, AFileAndALinkGetAnotherName) {
  write("f", "abc");
  std::filesystem::create_symlink("nowhere", directory / "link");
  for (const char* name : {"f", "link"}) {
    const std::string to = directory / (std::string("of_") + name);
    EXPECT_TRUE(fs.link(directory / name, to));
    EXPECT_EQ(fs.is_link(to), std::string(name) == "link");
    expect_error(ErrorCode::kIo, [&] { fs.link(directory / name, to); }, {name, "link as", "exists"});
  }
  EXPECT_EQ(fs.names(directory / "f"), 2U);
  EXPECT_FALSE(fs.link(directory.path(), directory / "d")) << "a directory has one name";
}

TEST_F(PosixFileSystem, ADirectoryHasOnePathWhateverLeadsThere) {
  fs.make_directory(directory / "d");
  std::filesystem::create_symlink("d", directory / "link");
  for (const char* name : {"d", "d/", "d/.", "link", "link/", "link/.", "d/../link"}) {
    EXPECT_EQ(settled_path(fs, directory / name), fs.resolved(directory / "d")) << name;
  }
  write("f", "abc");
  std::filesystem::create_symlink("f", directory / "to_f");
  EXPECT_EQ(settled_path(fs, directory / "to_f"), directory / "to_f");
  EXPECT_EQ(settled_path(fs, directory / "none/"), directory / "none");
}

TEST_F(PosixFileSystem, ATreeIsRemovedWithItsLinksAndNothingBehindThem) {
  fs.make_directory(directory / "kept");
  write("kept/f", "abc");
  fs.make_directory(directory / "tree");
  std::filesystem::create_directory_symlink("../kept", directory / "tree/link");
  std::filesystem::create_directory_symlink("kept", directory / "latest");
  remove_tree(fs, directory / "tree");
  remove_tree(fs, directory / "latest");
  EXPECT_FALSE(fs.exists(directory / "tree"));
  EXPECT_FALSE(fs.is_link(directory / "latest"));
  EXPECT_EQ(read("kept/f"), "abc");
}

TEST_F(PosixFileSystem, RefusesWhatIsNoLocalPathAndMakesNothing) {
  for (const char* path : {"gs://b/run", "S3://b/run", "s3a://b", "s3:/b/run", "s3://b/f", "az://c/p", "hf://org/m",
                           "file:///tmp/x", "https://host/x", "a+b.c-d:/x", "~", "~/run", "$HOME/run", "${HOME}/run"}) {
    expect_error(ErrorCode::kUsage, [&] { fs.open(path, OpenMode::kCreate); }, {path});
    expect_error(ErrorCode::kUsage, [&] { fs.make_directory(path); }, {path});
    expect_error(ErrorCode::kUsage, [&] { (void)fs.exists(path); }, {path});
    expect_error(ErrorCode::kUsage, [&] { (void)fs.is_directory(path); }, {path});
    if (std::string(path).starts_with("s3://")) continue;
    expect_error(ErrorCode::kUsage, [&] { open_object_store(fs, path)->put("k", {}); });
  }
  EXPECT_FALSE(std::filesystem::exists("gs:"));
  EXPECT_FALSE(std::filesystem::exists("~"));
}

TEST_F(PosixFileSystem, TakesOtherNamesWithColonsAndTildes) {
  for (const char* name : {"a:b", "x:", "~run", "run~", "1s://x", "c:/x", ":/x", "$1", "$"}) {
    EXPECT_FALSE(fs.exists(name)) << name;
    EXPECT_FALSE(fs.exists(directory / name)) << name;
  }
  EXPECT_FALSE(fs.exists("./gs://b/run"));
}

TEST_F(PosixFileSystem, WaitsForNoPipe) {
  const std::string pipe = directory / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {pipe, directory / ".", std::string("/dev/zero")}) {
    expect_error(ErrorCode::kIo, [&] { fs.open(path, OpenMode::kRead); }, {path, "not a regular file"});
  }
}

TEST_F(PosixFileSystem, RenamesAndRemoves) {
  write("a", "1");
  write("b", "2");
  fs.rename(directory / "a", directory / "b");
  fs.sync_directory(directory.path());
  EXPECT_EQ(read("b"), "1");
  EXPECT_FALSE(fs.exists(directory / "a"));
  fs.remove(directory / "b");
  EXPECT_FALSE(fs.exists(directory / "b"));
  expect_error(ErrorCode::kIo, [&] { fs.remove(directory / "b"); }, {"/b", "remove"});
  expect_error(ErrorCode::kIo, [&] { fs.rename(directory / "b", directory / "c"); }, {"/b", "/c", "rename"});
  fs.make_directory(directory / "full");
  write("full/x", "");
  expect_error(ErrorCode::kIo, [&] { fs.remove(directory / "full"); }, {"not empty"});
  expect_error(ErrorCode::kIo, [&] { fs.sync_directory(directory / "none"); }, {"none"});
}

TEST_F(PosixFileSystem, ClockDoesNotGoBack) {
  const auto first = fs.now();
  EXPECT_LE(first, fs.now());
}

TEST_F(PosixFileSystem, AtomicFilesOfManyThreadsAreEachWholeAndLeaveNothingBehind) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 10; ++i) {
        const std::string text(10'000, static_cast<char>('a' + t));
        AtomicFile file(fs, directory / "target");
        file.append(bytes_of(text));
        file.commit();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string text = read("target");
  EXPECT_EQ(text, std::string(10'000, text.at(0)));
  EXPECT_EQ(fs.list(directory.path()), std::vector<std::string>{"target"});
}

}  // namespace
}  // namespace sparsecast::test
