// SPDX-License-Identifier: Apache-2.0

// A trainer that is killed at any moment: what was durable stays, what followers get is what was trained, and the next
// trainer goes on from there.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "sparsecast/log_follower.hpp"
#include "sparsecast/log_publisher.hpp"
#include "support/detectors.hpp"
#include "support/safetensors_bytes.hpp"
#include "support/temporary_directory.hpp"
#include "support/training_model.hpp"

namespace sparsecast::test {
namespace {

constexpr std::chrono::milliseconds kLong{60'000};
constexpr std::uint64_t kWidth = 6;

void write_checkpoint(const TrainingModel& model, const std::string& path) {
  std::string data;
  for (const auto& bits : model.weights()) data.append(reinterpret_cast<const char*>(bits.data()), bits.size());
  AtomicFile file(FileSystem::posix(), path);
  file.append(safetensors_file(std::vector<TensorSpec>(model.table()->begin(), model.table()->end()), data));
  file.commit();
}

/// The trainer's process: publishes for ever, and tells each version once it is durable.
[[noreturn]] void train_until_killed(const TemporaryDirectory& directory, std::uint64_t seed, int told) {
  try {
    FileSystem& fs = FileSystem::posix();
    TrainingModel model(seed, kWidth);
    LogPublisherOptions options;
    options.mirror = directory / "mirror.safetensors";
    options.writer.merge_spans = {2, 4};
    options.writer.anchor_rule.min_versions = 2;
    options.writer.anchor_rule.max_versions = 3;
    LogPublisher publisher(open_directory_store(fs, directory / "log"), fs, {}, model.table(),
                           host_snapshot(*model.table(), model.live()), options);
    for (;;) {
      model.train(1e-3F);
      publisher.publish();
      const std::uint64_t version = publisher.wait(kLong).commit.version;
      if (::write(told, &version, sizeof version) != sizeof version) break;
    }
  } catch (const std::exception&) {
    ::_exit(1);
  }
  ::_exit(2);
}

class KilledTrainer : public ::testing::Test {
 protected:
  /// A new log, and its weights as the mirror.
  void begin() {
    for (const char* name : {"log", "mirror.safetensors", "mirror.safetensors.follow"}) {
      std::filesystem::remove_all(directory_ / name);
    }
    const TrainingModel model(seed_, kWidth);
    LogReader reader(store());
    LogWriter writer(reader, {});
    LogCreation creation;
    creation.table = model.table();
    creation.digest = sum(digest_tensors(*model.table(), refs_to(*model.table(), model.live())));
    genesis_ = writer.create(creation);
    write_checkpoint(model, directory_ / "mirror.safetensors");
  }
  std::shared_ptr<ObjectStore> store() { return open_directory_store(fs_, directory_ / "log"); }

  /// The newest version that the trainer said was durable when it was killed; 0: none.
  std::uint64_t train_and_kill(std::chrono::microseconds after) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      ::close(ends[0]);
      train_until_killed(directory_, seed_, ends[1]);
    }
    ::close(ends[1]);
    std::this_thread::sleep_for(after);
    ::kill(child, SIGKILL);
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status)) << "the trainer ended by itself: " << status;
    std::uint64_t version = 0;
    for (std::uint64_t told = 0; ::read(ends[0], &told, sizeof told) == sizeof told;) version = told;
    ::close(ends[0]);
    return version;
  }

  FileSystem& fs_ = FileSystem::posix();
  TemporaryDirectory directory_;
  std::uint64_t seed_ = case_seed(run_seed(), 1);
  LogCommit genesis_;
};

TEST_F(KilledTrainer, LosesNothingThatWasDurable) {
  SCOPED_TRACE(seed_note());
  Random random(case_seed(run_seed(), 2));
  std::uint64_t told_in_all = 0;
  for (int round = 0; round < 12; ++round) {
    const TemporaryDirectory fresh;
    begin();
    const auto after = std::chrono::microseconds(random.between(1'000, 400'000));
    const std::uint64_t told = train_and_kill(after);
    told_in_all += told;
    SCOPED_TRACE(testing::Message() << "killed after " << after.count() << " us; version " << told << " was durable");

    LogReader reader(store());
    const std::uint64_t head = reader.head()->version;
    EXPECT_GE(head, told);
    EXPECT_LE(head, std::max<std::uint64_t>(told, 1) + 1);

    // The training was a takeover, then one step for each version.
    TrainingModel expected(seed_, kWidth);
    Storage live = expected.weights();
    for (std::uint64_t v = 2; v <= head; ++v) expected.train(1e-3F);
    SubscriberOptions options;
    options.stream = genesis_.stream;
    Subscriber subscriber(expected.table(), refs_to(*expected.table(), tensor_views(live)), options);
    LogFollower follower(store(), fs_, fresh / "state",
                         make_subscriber_target(subscriber, expected.table(),
                                                refs_to(*expected.table(), tensor_views(live)), fs_, fresh.path()),
                         {});
    ASSERT_EQ(follower.step().version, head);
    EXPECT_EQ(count_wrong(*expected.table(), live, expected.weights()), 0U);

    // The next trainer, with the mirror as it was left.
    LogPublisherOptions next;
    next.mirror = directory_ / "mirror.safetensors";
    LogPublisher publisher(store(), fs_, {}, expected.table(), host_snapshot(*expected.table(), expected.live()), next);
    EXPECT_EQ(publisher.head().version, head + 1);
    expected.train(1e-3F);
    publisher.publish();
    EXPECT_EQ(publisher.wait(kLong).commit.version, head + 2);
    ASSERT_TRUE(publisher.wait_maintenance(kLong));
    EXPECT_EQ(publisher.maintenance_error(), std::nullopt) << publisher.maintenance_error()->what();
  }
  EXPECT_GT(told_in_all, 0U);
}

}  // namespace
}  // namespace sparsecast::test
