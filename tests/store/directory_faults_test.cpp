// SPDX-License-Identifier: Apache-2.0

// Objects as files when the disk fails or the power goes: never a torn object under its key, and what a call returned
// from is durable.

#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "sparsecast/object_store.hpp"
#include "store/store_contract.hpp"
#include "support/expect_error.hpp"
#include "support/fault_fs.hpp"

namespace sparsecast::test {
namespace {

const std::string kKey = "commits/7";
const std::string kPath = "log/commits/7";
const std::string kOld(700, 'o');
const std::string kNew = std::string(900, 'n') + std::string(2000, 'm');

enum class Call { kPut, kCreate, kUpload };

struct Case {
  Call call;
  bool exists;  ///< An object of the key is there before.
};

constexpr Case kCases[] = {{Call::kPut, false},   {Call::kPut, true},     {Call::kCreate, false},
                           {Call::kCreate, true}, {Call::kUpload, false}, {Call::kUpload, true}};

void prepare(FaultFileSystem& fs, bool exists) {
  if (exists) fs.put_file(kPath, kOld);
}

/// False when it says that there was one.
bool write(FileSystem& fs, Call call) {
  const auto store = open_directory_store(fs, "log");
  if (call == Call::kCreate) return store->put_if_absent(kKey, bytes_of_text(kNew));
  if (call == Call::kPut) {
    store->put(kKey, bytes_of_text(kNew));
  } else {
    const auto upload = store->upload(kKey, kNew.size());
    upload->append(bytes_of_text(kNew).first(900));
    upload->append(bytes_of_text(kNew).subspan(900));
    upload->commit();
  }
  return true;
}

std::optional<std::string> before(Case c) { return c.exists ? std::optional(kOld) : std::nullopt; }
/// Returns the content after a complete call.
std::string after(Case c) { return c.call == Call::kCreate && c.exists ? kOld : kNew; }

std::uint64_t operations_of_a_clean_run(Case c) {
  FaultFileSystem fs;
  prepare(fs, c.exists);
  EXPECT_EQ(write(fs, c.call), !(c.call == Call::kCreate && c.exists));
  EXPECT_EQ(fs.files(), std::vector<std::string>{kPath});
  EXPECT_EQ(fs.durable_state()->content(kPath), after(c)) << "not durable after the return";
  for (std::uint64_t seed = 0; seed < 50; ++seed) EXPECT_EQ(fs.crash_state(seed)->content(kPath), after(c));
  return fs.operations();
}

/// A loser's last operation removes its temporary file; that it fails harms nobody.
bool is_clean_up_of_a_loser(Case c, std::uint64_t at, std::uint64_t operations) {
  return c.call == Call::kCreate && c.exists && at + 1 == operations;
}

TEST(DirectoryStoreFaults, EveryFailedOperationIsAClearErrorWithoutTornObjectsOrTemporaryFiles) {
  for (const Case c : kCases) {
    const std::uint64_t operations = operations_of_a_clean_run(c);
    for (std::uint64_t at = 0; at < operations; ++at) {
      for (const int error : {EIO, ENOSPC, 0}) {
        SCOPED_TRACE(testing::Message() << "call " << static_cast<int>(c.call) << ", " << c.exists << ", at " << at);
        FaultFileSystem fs;
        prepare(fs, c.exists);
        if (error == 0) {
          fs.short_write_at(at);
        } else {
          fs.fail_at(at, error);
        }
        if (is_clean_up_of_a_loser(c, at, operations)) {
          EXPECT_FALSE(write(fs, c.call));
        } else {
          expect_error(ErrorCode::kIo, [&] { write(fs, c.call); }, {"failed: "});
          EXPECT_EQ(fs.files().size(), fs.content(kPath) ? 1U : 0U) << "a temporary file is left";
        }
        const auto content = fs.content(kPath);
        EXPECT_TRUE(content == before(c) || content == after(c));
        EXPECT_EQ(write(fs, c.call), c.call != Call::kCreate || !content) << "the same call again";
        EXPECT_EQ(fs.durable_state()->content(kPath), after(c));
      }
    }
  }
}

TEST(DirectoryStoreFaults, EveryFailedReadIsAClearError) {
  const std::vector<std::function<void(ObjectStore&)>> reads = {
      [](ObjectStore& store) { EXPECT_EQ(text_of(store.get(kKey, 5000)), kNew); },
      [](ObjectStore& store) { EXPECT_EQ(store.size(kKey), kNew.size()); },
      [](ObjectStore& store) {
        Bytes part(10);
        store.get_range(kKey, 895, part);
        EXPECT_EQ(text_of(part), "nnnnnmmmmm");
      },
      [](ObjectStore& store) { EXPECT_EQ(store.list("").size(), 1U); }, [](ObjectStore& store) { store.remove(kKey); }};
  for (std::size_t i = 0; i < reads.size(); ++i) {
    for (std::uint64_t at = 0;; ++at) {
      SCOPED_TRACE(testing::Message() << "read " << i << ", operation " << at);
      FaultFileSystem fs;
      fs.put_file(kPath, kNew);
      const auto store = open_directory_store(fs, "log");
      fs.reset_log();
      fs.fail_at(at, EIO);
      const std::string words = words_of([&] { reads[i](*store); });
      if (fs.operations() <= at) break;
      EXPECT_TRUE(words.starts_with("io: ")) << words;
      EXPECT_NE(words.find("log"), std::string::npos) << words;
    }
  }
}

TEST(DirectoryStoreFaults, EveryCrashLeavesTheOldOrTheWholeNewObjectAndARestartGoesOn) {
  for (const Case c : kCases) {
    const std::uint64_t operations = operations_of_a_clean_run(c);
    for (std::uint64_t at = 0; at < operations; ++at) {
      FaultFileSystem fs;
      prepare(fs, c.exists);
      fs.crash_at(at);
      // The destructor in which a loser's temporary file goes lets no crash out.
      if (is_clean_up_of_a_loser(c, at, operations)) {
        EXPECT_FALSE(write(fs, c.call));
      } else {
        EXPECT_THROW(write(fs, c.call), CrashException);
      }
      for (std::uint64_t seed = 0; seed < 100; ++seed) {
        SCOPED_TRACE(testing::Message() << "call " << static_cast<int>(c.call) << ", " << c.exists << ", at " << at
                                        << ", seed " << seed);
        const auto state = fs.crash_state(seed);
        const auto content = state->content(kPath);
        EXPECT_TRUE(content == before(c) || content == after(c));
        const bool created = write(*state, c.call);
        EXPECT_EQ(created, c.call != Call::kCreate || !content);
        EXPECT_EQ(state->content(kPath), after(c));
        EXPECT_EQ(state->durable_state()->content(kPath), after(c));
        // The remains of a crashed writer are told from objects by their names.
        for (const StoredObject& object : open_directory_store(*state, "log")->list("")) {
          EXPECT_TRUE(object.key == kKey || object.key.find(".tmp.") != std::string::npos) << object.key;
        }
      }
    }
  }
}

TEST(DirectoryStoreFaults, AnObjectThatWasThereIsDurableWhenCreationSaysSo) {
  // The winner is between its link and the sync of the directory; the loser acts on what it saw.
  FaultFileSystem fs;
  fs.put_file("log/commits/1", "x");
  fs.open("log/winner", OpenMode::kCreate)->write_at(0, bytes_of_text(kNew));
  fs.open("log/winner", OpenMode::kReadWrite)->sync();
  ASSERT_TRUE(fs.rename_exclusive("log/winner", kPath));
  ASSERT_EQ(fs.durable_state()->content(kPath), std::nullopt);
  EXPECT_FALSE(open_directory_store(fs, "log")->put_if_absent(kKey, bytes_of_text("loser")));
  EXPECT_EQ(fs.durable_state()->content(kPath), kNew);
}

}  // namespace
}  // namespace sparsecast::test
