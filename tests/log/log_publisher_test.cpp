// SPDX-License-Identifier: Apache-2.0

// The trainer's end: what is published is what followers get, whatever the store does, and nothing is published twice.

#include "sparsecast/log_publisher.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <thread>

#include "core/interrupt.hpp"
#include "sparsecast/log_follower.hpp"
#include "sparsecast/safetensors.hpp"
#include "support/detectors.hpp"
#include "support/expect_error.hpp"
#include "support/fault_fs.hpp"
#include "support/memory_store.hpp"
#include "support/safetensors_bytes.hpp"
#include "support/training_model.hpp"
#include "support/unreliable_store.hpp"

namespace sparsecast::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Fault = UnreliableStore::Fault;

constexpr milliseconds kLong{30'000};

StateDigest digest_of(const TrainingModel& model) {
  return sum(digest_tensors(*model.table(), refs_to(*model.table(), model.live())));
}

std::string checkpoint_of(const TrainingModel& model) {
  std::string data;
  for (const auto& bits : model.weights()) data.append(reinterpret_cast<const char*>(bits.data()), bits.size());
  const Bytes file = safetensors_file(std::vector<TensorSpec>(model.table()->begin(), model.table()->end()), data);
  return {reinterpret_cast<const char*>(file.data()), file.size()};
}

class LogPublisherTest : public ::testing::Test {
 protected:
  LogPublisherTest() {
    fs_.make_directory("mirrors");
    fs_.make_directory("scratch");
    create(*memory_);
  }

  void create(MemoryStore& memory) {
    LogReader reader(std::shared_ptr<ObjectStore>(&memory, [](ObjectStore*) {}));
    LogWriter writer(reader, {});
    LogCreation creation;
    creation.table = model_.table();
    creation.digest = digest_of(model_);
    writer.create(creation);
    states_[0] = model_.weights();
  }
  std::unique_ptr<LogPublisher> publisher(LogPublisherOptions options = {}) {
    if (options.deadline == milliseconds(120'000)) options.deadline = kLong;
    auto made = std::make_unique<LogPublisher>(store_, fs_, LogTrust{}, model_.table(),
                                               host_snapshot(*model_.table(), model_.live()), options);
    states_[made->head().version] = model_.weights();
    return made;
  }
  LogPublisherOptions with_mirror() {
    fs_.put_file("mirrors/model.safetensors", checkpoint_of(model_));
    LogPublisherOptions options;
    options.mirror = "mirrors/model.safetensors";
    options.scratch = "scratch";
    return options;
  }
  /// One step of training, and the version that it becomes.
  std::uint64_t train_and_publish(LogPublisher& publisher) {
    model_.train(1e-3F);
    const std::uint64_t version = publisher.publish("step");
    states_[version] = model_.weights();
    return version;
  }

  /// A plain follower goes through every version and has the trainer's bytes at each.
  void expect_followed(std::uint64_t head) {
    Storage live = states_.at(0);
    SubscriberOptions options;
    LogReader reader(memory_);
    ASSERT_TRUE(reader.head());
    ASSERT_EQ(reader.head()->version, head);
    options.stream = reader.head()->stream;
    Subscriber subscriber(model_.table(), refs_to(*model_.table(), tensor_views(live)), options);
    FollowerOptions one_by_one;
    one_by_one.every_version = true;
    LogFollower follower(memory_, fs_, "follower-state",
                         make_subscriber_target(subscriber, model_.table(),
                                                refs_to(*model_.table(), tensor_views(live)), fs_, "scratch"),
                         one_by_one);
    for (std::uint64_t v = 0; v <= head; ++v) {
      ASSERT_EQ(follower.step(v).version, v);
      ASSERT_TRUE(states_.contains(v)) << v;
      EXPECT_EQ(count_wrong(*model_.table(), live, states_.at(v)), 0U) << "version " << v;
    }
    fs_.remove("follower-state");
  }

  FaultFileSystem fs_;
  std::shared_ptr<MemoryStore> memory_ = std::make_shared<MemoryStore>();
  std::shared_ptr<UnreliableStore> store_ = std::make_shared<UnreliableStore>(memory_);
  TrainingModel model_{run_seed(), 6};
  std::map<std::uint64_t, Storage> states_;
};

TEST_F(LogPublisherTest, AFollowerHasTheTrainersBytesAtEveryVersion) {
  SCOPED_TRACE(seed_note());
  const auto publisher = this->publisher();
  EXPECT_EQ(publisher->head().kind, CommitKind::kTakeover);
  for (std::uint64_t step = 0; step < 12; ++step) {
    EXPECT_EQ(train_and_publish(*publisher), step + 2);
    if (step % 3 == 0) {
      const Publication done = publisher->wait(kLong);
      EXPECT_EQ(done.commit.version, step + 2);
      EXPECT_EQ(done.commit.digest, digest_of(model_));
      EXPECT_EQ(done.commit.label, "step");
      EXPECT_EQ(publisher->head().version, step + 2);
      EXPECT_FALSE(publisher->in_flight());
    }
  }
  EXPECT_EQ(publisher->wait(kLong).commit.version, 13U);
  EXPECT_EQ(publisher->wait(kLong).commit.version, 13U) << "the same answer again";
  expect_followed(13);
}

TEST_F(LogPublisherTest, OtherWeightsThanTheLogsAreRefused) {
  model_.train(1e-3F);
  expect_error(ErrorCode::kWrongBase, [&] { publisher(); });
  EXPECT_EQ(LogReader(memory_).head()->version, 0U);
}

TEST_F(LogPublisherTest, WaitingBeforeAnythingWasPublishedIsRefused) {
  const auto publisher = this->publisher();
  expect_error(ErrorCode::kUsage, [&] { publisher->wait(kLong); });
  LogPublisherOptions options;
  options.deadline = milliseconds(0);
  expect_error(ErrorCode::kUsage, [&] { this->publisher(options); });
}

TEST_F(LogPublisherTest, WhateverCallFailsEachVersionIsDurableOnceOrSaidNotToBe) {
  SCOPED_TRACE(seed_note());
  std::uint64_t calls = 100;
  std::uint64_t errors = 0;
  const std::map<std::string, Bytes> begin = memory_->objects();
  const std::uint64_t first = LogReader(memory_).head()->version;
  for (const Fault fault : {Fault::kRefused, Fault::kReplyLost, Fault::kLate}) {
    for (std::uint64_t call = 0; call < calls; ++call) {
      SCOPED_TRACE(testing::Message() << "fault " << static_cast<int>(fault) << " at call " << call);
      memory_->set_objects(begin);
      model_ = TrainingModel(run_seed(), 6);
      states_ = {{first, model_.weights()}};
      const auto publisher = this->publisher();
      store_->fail_at(call, fault);
      std::uint64_t version = 0;
      for (int step = 0; step < 3; ++step) {
        version = train_and_publish(*publisher);
        try {
          publisher->wait(kLong);
        } catch (const Error& error) {
          ++errors;
          EXPECT_EQ(error.code(), ErrorCode::kIo) << error.what();
          if (step % 2 == 0) {
            EXPECT_EQ(publisher->wait(kLong).commit.version, version);
          }
        }
        store_->deliver();
      }
      EXPECT_EQ(publisher->wait(kLong).commit.version, version);
      calls = std::min(calls, store_->calls());
      ASSERT_GT(calls, 9U);
      expect_followed(version);
    }
  }
  EXPECT_GT(errors, 6U);
}

TEST_F(LogPublisherTest, AStoreThatIsDownIsReportedAndNothingNewIsEncoded) {
  SCOPED_TRACE(seed_note());
  const auto publisher = this->publisher();
  store_->fail_at(0, Fault::kRefused, true);
  const std::uint64_t version = train_and_publish(*publisher);
  expect_error(ErrorCode::kIo, [&] { publisher->wait(kLong); }, {"connection"});
  model_.train(1e-3F);
  for (int i = 0; i < 3; ++i) expect_error(ErrorCode::kIo, [&] { publisher->publish(); }, {"connection"});
  expect_error(ErrorCode::kIo, [&] { publisher->wait(kLong); });
  EXPECT_EQ(publisher->head().version, version - 1);
  store_->release();
  // The one before, as it was; then all that changed since.
  EXPECT_EQ(publisher->publish(), version + 1);
  states_[version + 1] = model_.weights();
  publisher->wait(kLong);
  expect_followed(version + 1);
}

TEST_F(LogPublisherTest, AForkedChildWaitsForNoThreadOfItsParent) {
  SCOPED_TRACE(seed_note());
  auto publisher = this->publisher({});
  const std::uint64_t version = train_and_publish(*publisher);
  const pid_t child = fork();
  if (child == 0) {
    const std::string words = words_of([&] { publisher->wait(kLong); });
    publisher.reset();
    _exit(words.find("a forked child cannot use it") != std::string::npos ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(publisher->wait(kLong).commit.version, version);
}

TEST_F(LogPublisherTest, AStoreThatHangsIsWaitedForUntilTheDeadline) {
  SCOPED_TRACE(seed_note());
  LogPublisherOptions options;
  options.deadline = milliseconds(50);
  const auto publisher = this->publisher(options);
  store_->fail_at(0, Fault::kStuck);
  const std::uint64_t version = train_and_publish(*publisher);
  expect_error(ErrorCode::kTimeout, [&] { publisher->wait(milliseconds(10)); }, {"not known to be durable"});
  EXPECT_TRUE(publisher->in_flight());
  model_.train(1e-3F);  // The next step writes the weights while the version is on its way.
  expect_error(ErrorCode::kTimeout, [&] { publisher->publish(); });
  ask_during_waits(+[]() noexcept { return true; });
  expect_error(ErrorCode::kPeerFailed, [&] { publisher->wait(kLong); }, {"interrupted by a signal"});
  ask_during_waits(nullptr);
  store_->release();
  EXPECT_EQ(publisher->wait(kLong).commit.version, version);
  expect_followed(version);
  EXPECT_EQ(publisher->publish(), version + 1);
  states_[version + 1] = model_.weights();
  publisher->wait(kLong);
  expect_followed(version + 1);
}

TEST_F(LogPublisherTest, AStoreThatHangsForEverIsLeftBehind) {
  LogPublisherOptions options;
  options.deadline = milliseconds(50);
  auto publisher = this->publisher(options);
  store_->fail_at(0, Fault::kStuck);
  train_and_publish(*publisher);
  publisher.reset();
  store_->release();
  // The thread that was left behind owns the store; it ends by itself.
  for (int i = 0; i < 3000 && store_.use_count() > 1; ++i) std::this_thread::sleep_for(milliseconds(10));
  EXPECT_EQ(store_.use_count(), 1);
}

TEST_F(LogPublisherTest, ASecondPublisherFencesTheFirst) {
  SCOPED_TRACE(seed_note());
  const auto first = publisher();
  train_and_publish(*first);
  first->wait(kLong);
  const auto second = publisher();
  EXPECT_EQ(second->head().epoch, 3U);
  Storage before = model_.weights();
  model_.train(1e-3F);
  first->publish();
  expect_error(ErrorCode::kFenced, [&] { first->wait(kLong); }, {"epoch 3"});
  expect_error(ErrorCode::kFenced, [&] { first->wait(kLong); });
  expect_error(ErrorCode::kFenced, [&] { first->publish(); });
  EXPECT_EQ(first->head().version, 2U);
  const std::uint64_t version = train_and_publish(*second);
  EXPECT_EQ(version, 4U);
  second->wait(kLong);
  expect_followed(4);
}

TEST_F(LogPublisherTest, MergesAndAnchorsAreMadeInTheBackground) {
  SCOPED_TRACE(seed_note());
  LogPublisherOptions options = with_mirror();
  options.writer.merge_spans = {2, 4};
  options.writer.anchor_rule.min_versions = 2;
  options.writer.anchor_rule.bytes_per_second = 1;
  options.writer.anchor_rule.seconds_per_delta = 1e9;
  const auto publisher = this->publisher(options);
  for (int step = 0; step < 7; ++step) {
    train_and_publish(*publisher);
    publisher->wait(kLong);
    ASSERT_TRUE(publisher->wait_maintenance(kLong));
    ASSERT_EQ(publisher->maintenance_error(), std::nullopt) << publisher->maintenance_error()->what();
  }
  LogReader reader(memory_);
  const LogCatalog catalog = *reader.catalog();
  EXPECT_EQ(catalog.head, 8U);
  EXPECT_EQ(catalog.merged.size(), 4U + 2U);
  EXPECT_EQ(catalog.anchors.size(), 4U) << "at 1 (none was there), 3, 5 and 7";
  EXPECT_EQ(fs_.content("mirrors/model.safetensors"), checkpoint_of(model_)) << "the mirror is at the head";
  expect_followed(8);
}

TEST_F(LogPublisherTest, AMirrorIsWhatTheNextPublisherStartsFrom) {
  SCOPED_TRACE(seed_note());
  const LogPublisherOptions options = with_mirror();
  std::uint64_t version = 0;
  {
    const auto publisher = this->publisher(options);
    for (int step = 0; step < 3; ++step) version = train_and_publish(*publisher);
    publisher->wait(kLong);
    ASSERT_TRUE(publisher->wait_maintenance(kLong));
  }
  // The trainer is gone with its memory; what comes back reads the mirror.
  const Checkpoint mirror = Checkpoint::open(fs_, options.mirror);
  Storage weights;
  for (const TensorSpec& spec : *model_.table()) {
    const Bytes bits = mirror.tensor(*mirror.table().find(spec.name));
    weights.emplace_back(bits.begin(), bits.end());
  }
  LogPublisher again(store_, fs_, {}, model_.table(), host_snapshot(*model_.table(), const_tensor_views(weights)), {});
  EXPECT_EQ(again.head().version, version + 1);
  EXPECT_EQ(again.head().kind, CommitKind::kTakeover);
}

TEST_F(LogPublisherTest, KeepsASnapshotInTheCallersMemory) {
  SCOPED_TRACE(seed_note());
  const TensorTable& table = *model_.table();
  Storage held = model_.weights();
  LogPublisherOptions options;
  options.deadline = kLong;
  options.detection.held = refs_to(table, tensor_views(held));
  LogPublisher publisher(store_, fs_, {}, model_.table(), refs_to(table, model_.live()), options);
  const std::uint64_t version = train_and_publish(publisher);
  EXPECT_EQ(publisher.wait(kLong).commit.version, version);
  EXPECT_EQ(held, model_.weights());
}

TEST_F(LogPublisherTest, FailuresOfMaintenanceNeverHarmPublishing) {
  SCOPED_TRACE(seed_note());
  LogPublisherOptions options;
  options.mirror = "mirrors/model.safetensors";  // Not there, and no anchor to make it from.
  const auto publisher = this->publisher(options);
  ASSERT_TRUE(publisher->wait_maintenance(kLong));
  EXPECT_NE(publisher->maintenance_error(), std::nullopt);
  const std::uint64_t version = train_and_publish(*publisher);
  EXPECT_EQ(publisher->wait(kLong).commit.version, version);
  ASSERT_TRUE(publisher->wait_maintenance(kLong));
  EXPECT_NE(publisher->maintenance_error(), std::nullopt);
  expect_followed(version);
}

}  // namespace
}  // namespace sparsecast::test
