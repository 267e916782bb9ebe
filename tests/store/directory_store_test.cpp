// SPDX-License-Identifier: Apache-2.0

// Objects as files, on the real file system: what the contract of ObjectStore promises.

#include <gtest/gtest.h>

#include <unistd.h>

#include <atomic>
#include <thread>

#include "sparsecast/object_store.hpp"
#include "store/store_contract.hpp"
#include "support/expect_error.hpp"
#include "support/temporary_directory.hpp"

namespace sparsecast::test {
namespace {

TEST(DirectoryStore, KeepsTheContractOfStores) {
  const TemporaryDirectory directory;
  const auto store = open_directory_store(FileSystem::posix(), directory / "not/there/yet");
  check_store_contract(*store, 100'000);
}

TEST(DirectoryStore, KnowsWhereItIs) {
  EXPECT_EQ(open_directory_store(FileSystem::posix(), "some/where//")->location(), "some/where");
  EXPECT_EQ(open_directory_store(FileSystem::posix(), "/")->location(), "/");
  expect_error(ErrorCode::kUsage, [] { open_directory_store(FileSystem::posix(), ""); });
  EXPECT_EQ(open_object_store(FileSystem::posix(), "some/where")->location(), "some/where");
}

TEST(DirectoryStore, HasNothingWhereThereIsNoDirectory) {
  const TemporaryDirectory directory;
  const auto store = open_directory_store(FileSystem::posix(), directory / "none");
  EXPECT_EQ(store->get("a/b", 10), std::nullopt);
  EXPECT_EQ(store->size("a/b"), std::nullopt);
  EXPECT_TRUE(store->list("").empty());
  store->remove("a/b");
  EXPECT_FALSE(FileSystem::posix().exists(directory / "none"));
}

TEST(DirectoryStore, ListsEachDirectoryOnceThoughLinksGoRoundInACircle) {
  const TemporaryDirectory directory;
  const auto store = open_directory_store(FileSystem::posix(), directory.path());
  store->put("deltas/1", bytes_of_text("x"));
  store->put("commits/1", bytes_of_text("y"));
  for (const auto& [target, link] : {std::pair("..", "deltas/up"), {".", "round"}, {"itself", "itself"}}) {
    ASSERT_EQ(::symlink(target, (directory / link).c_str()), 0);
  }
  std::vector<std::string> keys;
  for (const StoredObject& object : store->list("")) keys.push_back(object.key);
  EXPECT_EQ(keys, (std::vector<std::string>{"commits/1", "deltas/1"}));
}

TEST(DirectoryStore, IsNoFileAndNoLinkToNothing) {
  const TemporaryDirectory directory;
  FileSystem& fs = FileSystem::posix();
  fs.open(directory / "file", OpenMode::kCreate);
  ASSERT_EQ(::symlink("nothing", (directory / "link").c_str()), 0);
  expect_error(ErrorCode::kUsage, [&] { open_directory_store(fs, directory / "file"); }, {"/file", "no directory"});
  expect_error(ErrorCode::kUsage, [&] { open_directory_store(fs, directory / "link"); }, {"/link", "is a link"});
}

TEST(DirectoryStore, TakesADirectoryForNoObject) {
  const TemporaryDirectory directory;
  const auto store = open_directory_store(FileSystem::posix(), directory.path());
  store->put("commits/1", bytes_of_text("x"));
  EXPECT_EQ(store->get("commits", 10), std::nullopt);
  EXPECT_EQ(store->size("commits"), std::nullopt);
  store->remove("commits/1");
  store->remove("commits");
  EXPECT_TRUE(FileSystem::posix().is_directory(directory / "commits"));
  store->put("commits/1", bytes_of_text("y"));
  EXPECT_EQ(text_of(store->get("commits/1", 10)), "y");
}

TEST(DirectoryStore, ListsTemporaryFilesOfCrashedWritersAndNothingForeign) {
  const TemporaryDirectory directory;
  FileSystem& fs = FileSystem::posix();
  const auto store = open_directory_store(fs, directory.path());
  store->put("objects/a", bytes_of_text("x"));
  fs.open(directory / "objects/b.tmp.1.2", OpenMode::kCreate);
  fs.open(directory / "objects/not ours", OpenMode::kCreate);
  fs.make_directory(directory / "lost+found");
  std::vector<std::string> keys;
  for (const StoredObject& object : store->list("")) keys.push_back(object.key);
  EXPECT_EQ(keys, (std::vector<std::string>{"objects/a", "objects/b.tmp.1.2"}));
  store->remove("objects/b.tmp.1.2");
  EXPECT_EQ(store->list("").size(), 1U);
}

TEST(DirectoryStore, DropsAnUploadThatIsNotCommitted) {
  const TemporaryDirectory directory;
  const auto store = open_directory_store(FileSystem::posix(), directory.path());
  {
    const auto upload = store->upload("objects/a", 3);
    upload->append(bytes_of_text("abc"));
    EXPECT_EQ(store->size("objects/a"), std::nullopt);
  }
  EXPECT_TRUE(store->list("").empty());
}

TEST(DirectoryStore, TwoStoresThatRaceMakeEveryObjectOnce) {
  constexpr int kThreads = 8;
  constexpr int kKeys = 300;
  const TemporaryDirectory directory;
  std::vector<std::atomic<int>> winners(kKeys);
  std::vector<std::atomic<int>> winner_of(kKeys);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      const auto store = open_directory_store(FileSystem::posix(), directory.path());
      for (std::size_t key = 0; key < kKeys; ++key) {
        if (!store->put_if_absent("commits/" + std::to_string(key), bytes_of_text(std::to_string(thread)))) continue;
        ++winners[key];
        winner_of[key] = thread;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto store = open_directory_store(FileSystem::posix(), directory.path());
  for (std::size_t key = 0; key < kKeys; ++key) {
    EXPECT_EQ(winners[key], 1);
    EXPECT_EQ(text_of(store->get("commits/" + std::to_string(key), 10)), std::to_string(winner_of[key]));
  }
  EXPECT_EQ(store->list("").size(), std::size_t{kKeys}) << "a temporary file is left";
}

TEST(RenameExclusive, SucceedsOnceAndKeepsTheLoser) {
  const TemporaryDirectory directory;
  FileSystem& fs = FileSystem::posix();
  fs.open(directory / "a", OpenMode::kCreate)->write_at(0, bytes_of_text("a"));
  fs.open(directory / "b", OpenMode::kCreate);
  EXPECT_TRUE(fs.rename_exclusive(directory / "a", directory / "to"));
  EXPECT_FALSE(fs.exists(directory / "a"));
  EXPECT_FALSE(fs.rename_exclusive(directory / "b", directory / "to"));
  EXPECT_TRUE(fs.exists(directory / "b"));
  EXPECT_EQ(fs.open(directory / "to", OpenMode::kRead)->size(), 1U);
  expect_error(ErrorCode::kIo, [&] { fs.rename_exclusive(directory / "none", directory / "new"); }, {"none", "link"});
}

TEST(RenameExclusive, IsItsOwnWhenTheReplyWasLost) {
  const TemporaryDirectory directory;
  FileSystem& fs = FileSystem::posix();
  fs.open(directory / "a", OpenMode::kCreate);
  ASSERT_EQ(::link((directory / "a").c_str(), (directory / "to").c_str()), 0);
  EXPECT_TRUE(fs.rename_exclusive(directory / "a", directory / "to"));
  EXPECT_FALSE(fs.exists(directory / "a"));
}

}  // namespace
}  // namespace sparsecast::test
