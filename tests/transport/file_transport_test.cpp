// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "sparsecast/sync.hpp"
#include "support/detectors.hpp"
#include "support/expect_error.hpp"
#include "support/temporary_directory.hpp"
#include "support/training_model.hpp"

namespace sparsecast::test {
namespace {

struct TrainerAndReplica {
  explicit TrainerAndReplica(const EncodeOptions& encode = {})
      : model(run_seed(), 64),
        replica(model.weights()),
        subscriber(model.table(), refs_to(*model.table(), tensor_views(replica)), {}) {
    PublisherOptions options;
    options.encode = encode;
    publisher.emplace(model.table(), host_snapshot(*model.table(), model.live()), options);
  }

  TrainingModel model;
  Storage replica;
  Subscriber subscriber;
  std::optional<Publisher> publisher;
};

TEST(FileTransport, CarriesVersionsThroughFiles) {
  SCOPED_TRACE(seed_note());
  const TemporaryDirectory directory;
  for (const int zstd_level : {0, 1}) {
    EncodeOptions encode;
    encode.zstd_level = zstd_level;
    TrainerAndReplica pair(encode);
    for (std::uint64_t version = 1; version <= 5; ++version) {
      pair.model.train();
      if (version == 3) pair.model.jump();
      const std::string path = directory / (std::to_string(version) + ".scd");
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
  const TemporaryDirectory directory;
  TrainerAndReplica pair;
  write_delta_file(FileSystem::posix(), directory / "empty.scd", *pair.model.table(), pair.publisher->publish());
  stage_delta_file(pair.subscriber, DeltaFile::open(FileSystem::posix(), directory / "empty.scd"));
  EXPECT_EQ(pair.subscriber.apply().changed, 0U);
  EXPECT_EQ(pair.subscriber.version(), 1U);
}

TEST(FileTransport, RefusesATableThatIsNotTheDeltasAndWritesNothing) {
  const TemporaryDirectory directory;
  TrainerAndReplica pair;
  const TrainingModel other(1, 32);
  const Delta& delta = pair.publisher->publish();
  expect_error(ErrorCode::kTableMismatch,
               [&] { write_delta_file(FileSystem::posix(), directory / "x.scd", *other.table(), delta); });
  EXPECT_TRUE(FileSystem::posix().list(directory.path()).empty());
}

TEST(FileTransport, NamesTheFileWhenStagingIsRefused) {
  const TemporaryDirectory directory;
  TrainerAndReplica pair;
  pair.model.train();
  write_delta_file(FileSystem::posix(), directory / "1.scd", *pair.model.table(), pair.publisher->publish());
  const DeltaFile file = DeltaFile::open(FileSystem::posix(), directory / "1.scd");
  stage_delta_file(pair.subscriber, file);
  pair.subscriber.apply();
  const Storage before = pair.replica;
  expect_error(ErrorCode::kStaleVersion, [&] { stage_delta_file(pair.subscriber, file); }, {"1.scd"});
  EXPECT_EQ(pair.replica, before);
}

}  // namespace
}  // namespace sparsecast::test
