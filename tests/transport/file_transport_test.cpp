#include <gtest/gtest.h>

#include <filesystem>

#include "sparsecast/transport.hpp"
#include "support/training_model.hpp"

namespace sparsecast::test {
namespace {

/// A directory of its own for one test.
class Directory {
 public:
  Directory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "sparsecast_file_XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = pattern;
  }
  ~Directory() { std::filesystem::remove_all(path_); }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  std::string file(const std::string& name) const { return path_ + "/" + name; }
  std::vector<std::string> names() const { return FileSystem::posix().list(path_); }

 private:
  std::string path_;
};

struct TrainerAndReplica {
  explicit TrainerAndReplica(const EncodeOptions& encode = {})
      : model(run_seed(), 64), replica(model.weights()), subscriber(model.table(), tensor_views(replica), {}) {
    PublisherOptions options;
    options.encode = encode;
    publisher.emplace(model.table(), make_host_snapshot(*model.table(), model.live()), options);
  }

  TrainingModel model;
  Storage replica;
  Subscriber subscriber;
  std::optional<Publisher> publisher;
};

TEST(FileTransport, CarriesVersionsThroughFiles) {
  SCOPED_TRACE(seed_note());
  Directory directory;
  for (const int zstd_level : {0, 1}) {
    EncodeOptions encode;
    encode.zstd_level = zstd_level;
    TrainerAndReplica pair(encode);
    for (std::uint64_t version = 1; version <= 5; ++version) {
      pair.model.train();
      if (version == 3) pair.model.jump();
      const std::string path = directory.file(std::to_string(version) + ".scd");
      const Delta& delta = pair.publisher->publish();
      write_delta_file(FileSystem::posix(), path, *pair.model.table(), delta);
      const DeltaFile file = DeltaFile::open(FileSystem::posix(), path);
      EXPECT_EQ(file.frames(), delta.frames.size());
      EXPECT_EQ(file.table().hash(), pair.model.table()->hash());
      EXPECT_EQ(file.commit().result_digest, delta.result.result_digest);
      pair.publisher->commit(version);
      stage_delta_file(pair.subscriber, file);
      ASSERT_TRUE(pair.subscriber.ready());
      EXPECT_EQ(pair.subscriber.apply().version, version);
      EXPECT_EQ(count_wrong(*pair.model.table(), pair.replica, pair.model.weights()), 0U);
    }
  }
}

TEST(FileTransport, CarriesAnEmptyDelta) {
  Directory directory;
  TrainerAndReplica pair;
  write_delta_file(FileSystem::posix(), directory.file("empty.scd"), *pair.model.table(), pair.publisher->publish());
  stage_delta_file(pair.subscriber, DeltaFile::open(FileSystem::posix(), directory.file("empty.scd")));
  EXPECT_EQ(pair.subscriber.apply().changed, 0U);
  EXPECT_EQ(pair.subscriber.version(), 1U);
}

TEST(FileTransport, RefusesATableThatIsNotTheDeltasAndWritesNothing) {
  Directory directory;
  TrainerAndReplica pair;
  const TrainingModel other(1, 32);
  try {
    write_delta_file(FileSystem::posix(), directory.file("x.scd"), *other.table(), pair.publisher->publish());
    FAIL() << "written";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kTableMismatch);
  }
  EXPECT_TRUE(directory.names().empty());
}

TEST(FileTransport, NamesTheFileWhenStagingIsRefused) {
  Directory directory;
  TrainerAndReplica pair;
  pair.model.train();
  write_delta_file(FileSystem::posix(), directory.file("1.scd"), *pair.model.table(), pair.publisher->publish());
  const DeltaFile file = DeltaFile::open(FileSystem::posix(), directory.file("1.scd"));
  stage_delta_file(pair.subscriber, file);
  pair.subscriber.apply();
  const Storage before = pair.replica;
  try {
    stage_delta_file(pair.subscriber, file);
    FAIL() << "staged twice";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kStaleVersion);
    EXPECT_NE(error.context().find("1.scd"), std::string::npos) << error.what();
  }
  EXPECT_EQ(pair.replica, before);
}

}  // namespace
}  // namespace sparsecast::test
