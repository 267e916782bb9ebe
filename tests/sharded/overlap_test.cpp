// SPDX-License-Identifier: Apache-2.0

// A sync whose routes are published one after another while others are on the wire: that they are, and what is left
// behind when one of them fails, lasts too long, or has no wire any more.

#include <gtest/gtest.h>

#include "sharded/group_sync.hpp"
#include "sparsecast/layout.hpp"
#include "sparsecast/nccl_transport.hpp"
#include "support/detectors.hpp"
#include "support/expect_error.hpp"
#include "support/fake_groups.hpp"
#include "support/gate.hpp"
#include "support/hashed_weights.hpp"
#include "transport/tcp/meeting.hpp"

namespace sparsecast {
namespace {

using namespace std::chrono_literals;
using test::Gate;
using test::HashedWeights;
using test::LocalStorage;
using test::Tryst;
using test::words_of;

constexpr std::chrono::milliseconds kTimeout = 20s;
constexpr int kEngineRanks = 3;

std::shared_ptr<const Layout> one_tensor(std::uint32_t ranks, const Cut& rule) {
  LayoutBuilder builder({Mesh{{"tp", ranks}}});
  builder.tensor({"w", DType::kBF16, {30, 40}});
  builder.add("w", {"w"}, rule);
  return std::make_shared<const Layout>(builder.build());
}

/// Hook of a test, called when the publisher detects in a route.
using AtPublish = std::function<void(std::size_t route)>;

class WatchedDetector final : public TileDetector {
 public:
  WatchedDetector(std::unique_ptr<TileDetector> inner, AtPublish at_detect)
      : inner_(std::move(inner)), at_detect_(std::move(at_detect)) {}

  std::uint32_t part() const noexcept override { return inner_->part(); }
  TileView detect(std::size_t tensor, std::uint64_t first, std::uint32_t count, TileWorkspace& workspace) override {
    if (first == 0) at_detect_(tensor);  // Each route has one.
    return inner_->detect(tensor, first, count, workspace);
  }
  TensorRef current(std::size_t tensor) const override { return inner_->current(tensor); }
  std::span<const TensorRef> snapshot() const noexcept override { return inner_->snapshot(); }
  bool knows_old() const noexcept override { return inner_->knows_old(); }
  bool consumes_changes() const noexcept override { return inner_->consumes_changes(); }
  void finish() override { inner_->finish(); }
  void committed() override { inner_->committed(); }
  void aborted() override { inner_->aborted(); }

 private:
  std::unique_ptr<TileDetector> inner_;
  AtPublish at_detect_;
};

/// Host memory whose detectors can be watched.
class WatchedMemory final : public MemoryBackend {
 public:
  explicit WatchedMemory(AtPublish at_publish) : at_publish_(std::move(at_publish)) {}

  int device() const noexcept override { return inner_->device(); }
  std::unique_ptr<Detector> make_detector(std::shared_ptr<const TensorTable> table, std::vector<TensorRef> live,
                                          DetectorOptions options) const override {
    return std::make_unique<WatchedDetector>(make_host_detector(table, std::move(live), std::move(options)),
                                             at_publish_);
  }
  std::unique_ptr<SubscriberBackend> make_subscriber(const JoinedTables& tables, std::vector<TensorRef> live,
                                                     int threads) const override {
    return inner_->make_subscriber(tables, std::move(live), threads);
  }
  Allocation allocate(std::uint64_t bytes) const override { return inner_->allocate(bytes); }
  void copy(const MemoryBox& box, const std::byte* from, std::byte* to, bool from_tensor) const override {
    inner_->copy(box, from, to, from_tensor);
  }
  void cast(const MemoryBox& box, const std::byte* masters, std::byte* to) const override {
    inner_->cast(box, masters, to);
  }
  std::unique_ptr<RegionReader> make_reader(const TensorTable& table, const std::vector<TensorRef>& regions) override {
    return inner_->make_reader(table, regions);
  }
  std::unique_ptr<RegionWriter> make_writer(const TensorTable& table, const std::vector<TensorRef>& regions) override {
    return inner_->make_writer(table, regions);
  }

 private:
  std::shared_ptr<MemoryBackend> inner_ = make_host_memory();
  AtPublish at_publish_;
};

/// A channel on which a test has something to say before a broadcast that is not one of a regroup.
class WatchedTransport final : public Transport {
 public:
  WatchedTransport(std::unique_ptr<Transport> inner, std::function<void()> at_broadcast)
      : inner_(std::move(inner)), at_broadcast_(std::move(at_broadcast)) {}
  void broadcast(std::vector<Bytes>& records, int source, Deadline deadline) override {
    at_broadcast_();
    inner_->broadcast(records, source, deadline);
  }
  ControlChannel& control() const noexcept override { return inner_->control(); }

 private:
  std::unique_ptr<Transport> inner_;
  std::function<void()> at_broadcast_;
};

/// One trainer rank, the first of the world, and an engine of three ranks, each of which gets a route and a transfer of
/// its own.
class Trio {
 public:
  std::shared_ptr<const Layout> trainer = one_tensor(1, Cut::replicate());
  std::shared_ptr<const Layout> engine = one_tensor(kEngineRanks, Cut::column_parallel({"tp"}));
  HashedWeights weights{11, 0.05};

  AtPublish at_publish = [](std::size_t) {};
  std::function<void(std::size_t transfer)> at_send = [](std::size_t) {};
#ifdef SPARSECAST_HAVE_NCCL
  std::unique_ptr<test::FakeGroups> nccl;  ///< Carries the groups, when there is one.
#endif

  /// Opens the groups of a world rank.
  GroupOpener open([[maybe_unused]] int rank) const {
#ifdef SPARSECAST_HAVE_NCCL
    if (nccl) return nccl->open(rank);
#endif
    return open_control_groups();
  }

  /// Each rank of the world on a thread.
  void run(const std::function<void(std::shared_ptr<Rendezvous>)>& body) const {
    test::Meeting meeting(test::meeting_options(1 + kEngineRanks));
    meeting.run(body);
  }
};

/// The trainer's rank.
class Sender {
 public:
  explicit Sender(const Trio& trio)
      : trio_(trio),
        storage_(trio.weights.make(*trio.trainer, 0, 0)),
        memory_(std::make_shared<ShardMemory>(test::refs_of(*trio.trainer, 0, storage_), std::vector{DType::kBF16},
                                              std::make_shared<WatchedMemory>([this](std::size_t route) {
                                                if (watching_) trio_.at_publish(route);
                                              }))),
        side_(trio.trainer, 0, memory_, {}) {}

  void regroup(std::shared_ptr<ControlChannel> control) {
    watching_ = false;
    group_.reset();
    group_.emplace(Roles{&side_, nullptr}, std::move(control), opener(), kTimeout);
    watching_ = true;
  }
  ShardedReport sync(std::chrono::milliseconds timeout = kTimeout) {
    sent_ = 0;
    return group_->sync(Roles{&side_, nullptr}, timeout);
  }
  void train(std::uint64_t step) { trio_.weights.train(*trio_.trainer, 0, step, storage_); }
  TrainerMember& side() { return side_; }

 private:
  GroupOpener opener() {
    return [this](ControlChannel& world, const FanoutPlan& plan, Deadline deadline) {
      auto channels = trio_.open(0)(world, plan, deadline);
      for (auto& channel : channels) {
        // One that is wrapped has no rounds.
        if (!channel || dynamic_cast<NcclTransport*>(channel.get()) != nullptr) continue;
        channel = std::make_unique<WatchedTransport>(std::move(channel), [this] {
          if (watching_) trio_.at_send(sent_++);
        });
      }
      return channels;
    };
  }

  const Trio& trio_;
  LocalStorage storage_;
  std::shared_ptr<ShardMemory> memory_;
  TrainerMember side_;
  std::optional<ShardedGroup> group_;
  bool watching_ = false;
  std::size_t sent_ = 0;
};

/// A rank of the engine.
class Receiver {
 public:
  Receiver(const Trio& trio, std::size_t place)
      : trio_(trio),
        place_(place),
        storage_(trio.weights.make(*trio.engine, place, 0)),
        subscriber_("engine", trio.engine, place, test::refs_of(*trio.engine, place, storage_), {}) {}

  void regroup(std::shared_ptr<ControlChannel> control) {
    const int rank = control->rank();
    subscriber_.regroup(std::move(control), trio_.open(rank), kTimeout);
  }
  ShardedReport sync(std::chrono::milliseconds timeout = kTimeout) { return subscriber_.sync(timeout); }
  std::uint64_t version() const { return subscriber_.version(); }
  std::uint64_t wrong(std::uint64_t step) const {
    return trio_.weights.count_wrong(*trio_.engine, place_, step, storage_);
  }

 private:
  const Trio& trio_;
  std::size_t place_;
  LocalStorage storage_;
  ShardedSubscriber subscriber_;
};

/// A sync that the trainer cannot finish.
struct Failure {
  std::string words;                             ///< The trainer's.
  std::string error;                             ///< Error of the next regroup; "" if it succeeds.
  std::chrono::milliseconds timeout = kTimeout;  ///< The trainer's.
  /// The engine's: ranks whose channel falls silent wait for it as long.
  std::chrono::milliseconds engine_timeout = kTimeout;
  std::function<void()> when_known = [] {};  ///< Each of the engine's ranks, when it has learned of it.
};

/// The failure, then a regroup of all, and, unless that is refused, a sync that brings what was lost.
void fail_and_heal(const Trio& trio, const Failure& failure) {
  test::Meeting again(test::meeting_options(1 + kEngineRanks));
  trio.run([&](const std::shared_ptr<Rendezvous>& channel) {
    const int r = channel->rank();
    if (r == 0) {
      Sender sender(trio);
      sender.regroup(channel);
      sender.train(1);
      const std::string said = words_of([&] { sender.sync(failure.timeout); });
      EXPECT_NE(said.find(failure.words), std::string::npos) << said;
      EXPECT_EQ(sender.side().version(), 0U);
      const std::string refused = words_of([&] { sender.regroup(again.meet(r)); });
      EXPECT_EQ(refused.substr(0, failure.error.size()), failure.error);
      if (!failure.error.empty()) return;
      ASSERT_EQ(refused, "");
      sender.train(2);
      EXPECT_EQ(sender.sync().version, 2U);
      return;
    }
    Receiver receiver(trio, static_cast<std::size_t>(r - 1));
    receiver.regroup(channel);
    EXPECT_NE(words_of([&] { receiver.sync(failure.engine_timeout); }), "");
    failure.when_known();
    EXPECT_EQ(receiver.version(), 0U);
    EXPECT_EQ(receiver.wrong(0), 0U);
    const std::string refused = words_of([&] { receiver.regroup(again.meet(r)); });
    EXPECT_EQ(refused.empty(), failure.error.empty()) << refused;
    if (!refused.empty()) return;
    EXPECT_EQ(receiver.sync().version, 2U);
    EXPECT_EQ(receiver.wrong(2), 0U);
  });
}

TEST(Overlap, ARouteIsPublishedWhileTheOneBeforeIsSentAndNothingElseChanges) {
  Trio trio;
  Tryst trysts[3];
  std::size_t version = 0;
  trio.at_publish = [&](std::size_t route) {
    if (route == 1) trysts[version].first();
  };
  trio.at_send = [&](std::size_t transfer) {
    if (transfer == 0) trysts[version].second();
  };
  trio.run([&](const std::shared_ptr<Rendezvous>& channel) {
    if (channel->rank() == 0) {
      Sender sender(trio);
      sender.regroup(channel);
      for (std::uint64_t v = 1; v <= 3; ++v) {
        sender.train(v);
        const ShardedReport report = sender.sync();
        EXPECT_EQ(report.version, v);
        EXPECT_GT(report.encode_seconds, 0);
        EXPECT_GT(report.wire_seconds, 0);
        version = v;
      }
      return;
    }
    Receiver receiver(trio, static_cast<std::size_t>(channel->rank() - 1));
    receiver.regroup(channel);
    for (std::uint64_t v = 1; v <= 3; ++v) {
      EXPECT_EQ(receiver.sync().version, v);
      EXPECT_EQ(receiver.wrong(v), 0U);
    }
  });
}

TEST(Overlap, ARouteThatFailsIsKnownEverywhereAndTheSnapshotIsLost) {
  for (std::size_t bad = 0; bad < kEngineRanks; ++bad) {
    Trio trio;
    trio.at_publish = [&](std::size_t route) {
      if (route == bad) throw Error(ErrorCode::kIo, "the memory of this route is gone");
    };
    fail_and_heal(trio, {"io: the memory of this route is gone", "dirty: an earlier publish"});
  }
}

#ifdef SPARSECAST_HAVE_NCCL
TEST(Overlap, ARouteThatFailsBeforeARoundIsKnownEverywhereAndTheSnapshotIsLost) {
  for (std::size_t bad = 0; bad < kEngineRanks; ++bad) {
    Trio trio;
    trio.nccl = std::make_unique<test::FakeGroups>();
    trio.at_publish = [&](std::size_t route) {
      if (route == bad) throw Error(ErrorCode::kIo, "the memory of this route is gone");
    };
    fail_and_heal(trio, {"io: the memory of this route is gone", "dirty: an earlier publish"});
    EXPECT_EQ(trio.nccl->misuses(), "");
  }
}
#endif

TEST(Overlap, ATransferThatFailsLosesNothingWhicheverRoutesArePublished) {
  for (std::size_t bad = 0; bad < kEngineRanks; ++bad) {
    Trio trio;
    bool failed = false;
    trio.at_send = [&](std::size_t transfer) {
      if (transfer == bad && !std::exchange(failed, true)) throw Error(ErrorCode::kIo, "the cable was cut");
    };
    fail_and_heal(trio, {"the cable was cut", "", kTimeout, 2s});
  }
}

TEST(Overlap, ARouteThatLastsBeyondTheDeadlineLosesNothing) {
  Trio trio;
  Gate known;
  bool first = true;
  trio.at_publish = [&](std::size_t route) {
    if (route == 1 && std::exchange(first, false)) known.pass();
  };
  // The others know of it while the route is still being published.
  fail_and_heal(
      trio, {"timeout: encoding of routes was at 1 of 3 when the deadline passed", "", 1s, 4s, [&] { known.open(); }});
}

/// The engine's server has failed where its ranks cannot know: they never come, and somebody else ends the wait.
TEST(Overlap, ATrainerThatWaitsForAnEngineIsReleasedByAnotherThread) {
  Trio trio;
  Gate waiting;
  trio.at_send = [&](std::size_t) { waiting.open(); };
  test::Meeting again(test::meeting_options(1 + kEngineRanks));
  trio.run([&](const std::shared_ptr<Rendezvous>& channel) {
    const int r = channel->rank();
    if (r == 0) {
      Sender sender(trio);
      sender.regroup(channel);
      sender.train(1);
      std::jthread other([&] {
        waiting.pass();
        channel->abort("the engine's server is gone");
      });
      test::expect_error(ErrorCode::kPeerFailed, [&] { sender.sync(kTimeout); }, {"the engine's server is gone"});
      EXPECT_EQ(sender.side().version(), 0U);
      sender.regroup(again.meet(r));
      sender.train(2);
      EXPECT_EQ(sender.sync().version, 2U);
      return;
    }
    Receiver receiver(trio, static_cast<std::size_t>(r - 1));
    receiver.regroup(channel);
    receiver.regroup(again.meet(r));
    EXPECT_EQ(receiver.sync().version, 2U);
    EXPECT_EQ(receiver.wrong(2), 0U);
  });
}

}  // namespace
}  // namespace sparsecast
