// SPDX-License-Identifier: Apache-2.0

// Sharded syncs whose frames go from device to device in one round, on the fake NCCL and the emulated device, each rank
// a thread: every version bit for bit, ends on a host among those on devices, failures, and what a sync costs a rank
// whatever the number of its routes.

#if defined(SPARSECAST_CUDA_EMULATION) && defined(SPARSECAST_HAVE_NCCL)

#include <gmock/gmock.h>

#include "support/expect_error.hpp"
#include "support/expected_leak.hpp"
#include "support/fake_groups.hpp"
#include "tests/cuda/sharded_scene.hpp"
#include "transport/tcp/meeting.hpp"

namespace sparsecast::test {
namespace {

using namespace std::chrono_literals;

class DeviceFrameRound : public testing::TestWithParam<ShardedSetting> {
 protected:
  void SetUp() override {
    if (!rendezvous_available()) GTEST_SKIP() << "the ranks meet over TCP; built without libsodium";
  }
  void run(const std::function<void(const std::shared_ptr<Rendezvous>&)>& body) {
    Meeting meeting(meeting_options(ShardedScene::kRanks, 60s));
    meeting.run(body);
    EXPECT_EQ(fake_.misuses(), "");
  }

  const ShardedScene scene_{GetParam()};
  FakeGroups fake_;
};

INSTANTIATE_TEST_SUITE_P(Settings, DeviceFrameRound, testing::ValuesIn(sharded_settings()), name_of_setting);

TEST_P(DeviceFrameRound, BringsEveryVersionBitForBit) {
  run([&](const std::shared_ptr<Rendezvous>& channel) {
    const int r = channel->rank();
    SceneRank rank(scene_, r);
    rank.regroup(channel, fake_.open(r));
    for (std::uint64_t v = 1; v <= 4; ++v) {
      rank.train(v);
      const ShardedReport report = rank.sync();
      EXPECT_EQ(report.version, v);
      EXPECT_EQ(rank.wrong(v), 0U) << "rank " << r << ", version " << v;
      EXPECT_GT(r < 2 ? report.sent_bytes : report.received_bytes, 0U);
      EXPECT_GT(report.changed + report.applied, 0U);
    }
    if (rank.subscriber()) rank.subscriber()->audit();
  });
}

TEST_P(DeviceFrameRound, AnEngineOfOtherBytesRefusesForAllAndNobodyWrites) {
  Meeting again(meeting_options(ShardedScene::kRanks, 60s));
  run([&](const std::shared_ptr<Rendezvous>& channel) {
    const int r = channel->rank();
    SceneRank rank(scene_, r);
    rank.regroup(channel, fake_.open(r));
    rank.train(1);
    rank.sync();
    // What rank 3 holds changes behind its back: its apply ends with another digest.
    if (r == 3) rank.spoil(std::byte{0x55});
    rank.train(2);
    const std::string words = words_of([&] { rank.sync(); });
    EXPECT_NE(words, "");
    EXPECT_EQ(rank.version(), 1U);
    if (r != 3) {
      EXPECT_EQ(rank.wrong(r < 2 ? 2 : 1), 0U) << "rank " << r;
    }
  });
}

/// A trainer of `sources` ranks, which shards rows, and an engine of `places` ranks, which shards columns.
struct Wide {
  Wide(std::uint32_t sources, std::uint32_t places)
      : trainer(cut(sources, Cut::row_parallel({"x"}))), engine(cut(places, Cut::column_parallel({"x"}))) {}

  static std::shared_ptr<const Layout> cut(std::uint32_t ranks, const Cut& rule) {
    LayoutBuilder builder({Mesh{{"x", ranks}}});
    for (const char* const name : {"a", "b"}) {
      builder.tensor({name, DType::kBF16, {64, 640}});
      builder.add(name, {name}, ranks == 1 ? Cut::replicate() : rule);
    }
    return std::make_shared<const Layout>(builder.build());
  }

  std::shared_ptr<const Layout> trainer;
  std::shared_ptr<const Layout> engine;
  HashedWeights weights{11, 0.03};
};

/// One rank of a wide group.
class WideRank {
 public:
  WideRank(const Wide& wide, std::uint32_t sources, int rank)
      : wide_(wide),
        trains_(rank < static_cast<int>(sources)),
        place_(static_cast<std::size_t>(trains_ ? rank : rank - static_cast<int>(sources))),
        layout_(trains_ ? wide.trainer : wide.engine),
        host_(wide.weights.make(*layout_, place_, 0)),
        device_(host_) {
    if (trains_) {
      publisher_.emplace(layout_, place_, refs_to(*layout_, place_, device_.pointers(), 0), ShardedOptions{},
                         DeviceOptions{});
    } else {
      subscriber_.emplace("engine", layout_, place_, refs_to(*layout_, place_, device_.pointers(), 0), ShardedOptions{},
                          DeviceOptions{});
    }
  }

  void regroup(const std::shared_ptr<ControlChannel>& control, const GroupOpener& open) {
    trains_ ? publisher_->regroup(control, open, 60s) : subscriber_->regroup(control, open, 60s);
  }
  void train(std::uint64_t step) {
    if (!trains_) return;
    wide_.weights.train(*layout_, place_, step, host_);
    device_.write(host_);
  }
  ShardedReport sync(std::chrono::milliseconds timeout = 60s) {
    return trains_ ? publisher_->sync(timeout) : subscriber_->sync(timeout);
  }
  std::uint64_t version() const { return trains_ ? publisher_->version() : subscriber_->version(); }
  std::uint64_t wrong(std::uint64_t step) const {
    return wide_.weights.count_wrong(*layout_, place_, step, device_.read());
  }
  bool trains() const { return trains_; }

 private:
  const Wide& wide_;
  bool trains_;
  std::size_t place_;
  std::shared_ptr<const Layout> layout_;
  LocalStorage host_;
  DeviceStorage device_;
  std::optional<ShardedPublisher> publisher_;
  std::optional<ShardedSubscriber> subscriber_;
};

/// What one sync costs a rank, once memory has grown.
struct Cost {
  emulation::RuntimeCounts source;    ///< World rank 0, a trainer's.
  emulation::RuntimeCounts receiver;  ///< The last world rank, an engine's.
};

Cost cost_of(std::uint32_t sources, std::uint32_t places) {
  const Wide wide(sources, places);
  const int ranks = static_cast<int>(sources + places);
  FakeGroups fake;
  Cost cost;
  Meeting meeting(meeting_options(ranks, 60s));
  meeting.run([&](const std::shared_ptr<Rendezvous>& channel) {
    const int r = channel->rank();
    WideRank rank(wide, sources, r);
    rank.regroup(channel, fake.open(r));
    for (std::uint64_t v = 1; v <= 3; ++v) {
      rank.train(v);
      const emulation::RuntimeCounts before = emulation::thread_counts();
      rank.sync();
      if (r == 0) cost.source = emulation::thread_counts().since(before);
      if (r == ranks - 1) cost.receiver = emulation::thread_counts().since(before);
    }
    EXPECT_EQ(rank.wrong(3), 0U) << "rank " << r;
  });
  EXPECT_EQ(fake.misuses(), "");
  return cost;
}

void expect_same_cost(const emulation::RuntimeCounts& many, const emulation::RuntimeCounts& one,
                      const std::string& which) {
  EXPECT_EQ(many.launches, one.launches) << which;
  EXPECT_EQ(many.queries, one.queries) << which;
  EXPECT_EQ(many.copies, one.copies) << which;
  EXPECT_EQ(many.late_loads, 0U) << which;
  EXPECT_EQ(many.pageable_copies, 0U) << which;
  EXPECT_LT(many.bus_bytes, 65536U) << which;
  std::cout << which << ": " << many.launches << " launches, " << many.queries << " waits, " << many.copies
            << " copies, " << many.bus_bytes << " bytes over the bus\n";
}

TEST(FrameRoundCost, OfASourceDoesNotGrowWithItsRoutes) {
  if (!rendezvous_available()) GTEST_SKIP() << "the ranks meet over TCP; built without libsodium";
  const Cost one = cost_of(1, 1);
  expect_same_cost(one.source, one.source, "1 route sent");
  for (const std::uint32_t places : {4U, 16U}) {
    expect_same_cost(cost_of(1, places).source, one.source, std::to_string(places) + " routes sent");
  }
}

TEST(FrameRoundCost, OfAReceiverDoesNotGrowWithItsRoutes) {
  if (!rendezvous_available()) GTEST_SKIP() << "the ranks meet over TCP; built without libsodium";
  const Cost one = cost_of(1, 1);
  expect_same_cost(one.receiver, one.receiver, "1 route received");
  for (const std::uint32_t sources : {4U, 16U}) {
    expect_same_cost(cost_of(sources, 1).receiver, one.receiver, std::to_string(sources) + " routes received");
  }
}

/// One rank takes a large tensor and a small one, another the small one alone, from the only transfer of one group: its
/// bytes are more than any delta of the small tensor may have. What is large stays on hosts, which are faster here.
TEST(FrameRound, ARankTakesItsRouteOutOfALargeTransfer) {
  if (!rendezvous_available()) GTEST_SKIP() << "the ranks meet over TCP; built without libsodium";
  const auto layout = [](bool large) {
    LayoutBuilder builder({Mesh{{"x", 1}}});
    const auto add = [&](const char* name, std::uint64_t rows) {
      builder.tensor({name, DType::kBF16, {rows, 640}});
      builder.add(name, {name}, Cut::replicate());
    };
    if (large) add("large", 6000);
    add("small", 1);
    return std::make_shared<const Layout>(builder.build());
  };
  const std::vector<std::shared_ptr<const Layout>> layouts{layout(true), layout(true), layout(false)};
  const HashedWeights weights{11, 0.9};
  FakeGroups fake;
  Meeting meeting(meeting_options(3, 60s));
  meeting.run([&](const std::shared_ptr<Rendezvous>& channel) {
    const int r = channel->rank();
    const std::shared_ptr<const Layout>& own = layouts[static_cast<std::size_t>(r)];
    LocalStorage host = weights.make(*own, 0, 0);
    ShardedOptions options;
    options.plan.max_groups_per_rank = 1;
    if (r == 0) {
      ShardedPublisher publisher(own, 0, refs_of(*own, 0, host), options);
      publisher.regroup(channel, fake.open(r), 60s);
      weights.train(*own, 0, 1, host);
      publisher.sync(60s);
    } else if (r == 1) {
      ShardedSubscriber subscriber("b", own, 0, refs_of(*own, 0, host), options);
      subscriber.regroup(channel, fake.open(r), 60s);
      subscriber.sync(60s);
      EXPECT_EQ(weights.count_wrong(*own, 0, 1, host), 0U);
    } else {
      DeviceStorage device(host);
      ShardedSubscriber subscriber("c", own, 0, refs_to(*own, 0, device.pointers(), 0), options, DeviceOptions{});
      subscriber.regroup(channel, fake.open(r), 60s);
      const ShardedReport report = subscriber.sync(60s);
      EXPECT_EQ(weights.count_wrong(*own, 0, 1, device.read()), 0U);
      EXPECT_GT(report.foreign_bytes, std::uint64_t{3} << 19) << "the test is to bring more than its limit";
    }
  });
  EXPECT_EQ(fake.misuses(), "");
}

/// Each call of NCCL and of the device, of a source and of a receiver, fails once: the version is everybody's or
/// nobody's, nobody hangs, and the next sync after a regroup brings what was lost.
TEST(FrameRoundFaults, ACallThatFailsOnceLeavesOneVersionAndTheNextSyncHeals) {
  if (!rendezvous_available()) GTEST_SKIP() << "the ranks meet over TCP; built without libsodium";
  constexpr std::uint32_t kSources = 2;
  constexpr int kRanks = 4;
  const Wide wide(kSources, kRanks - kSources);
  int failures = 0;
  for (const int bad : {0, kRanks - 1}) {
    bool reached = true;
    for (int call = 0; reached; ++call) {
      SCOPED_TRACE(testing::Message() << "call " << call << " of rank " << bad);
      FakeGroups fake;
      Meeting meeting(meeting_options(kRanks, 60s));
      Meeting again(meeting_options(kRanks, 60s));
      std::vector<std::uint64_t> versions(kRanks);
      meeting.run([&](const std::shared_ptr<Rendezvous>& channel) {
        const int r = channel->rank();
        WideRank rank(wide, kSources, r);
        rank.regroup(channel, fake.open(r));
        rank.train(1);
        channel->all_gather({}, in(20s));
        if (r == bad) fake.fail_call(bad, call);
        channel->all_gather({}, in(20s));
        const std::string words = words_of([&] { rank.sync(); });
        versions[static_cast<std::size_t>(r)] = rank.version();
        if (r == bad) {
          reached = fake.call_has_failed();
          fake.fail_call(-1, 0);  // What comes after the sync does not fail.
        }
        rank.regroup(again.meet(r), fake.open(r));
        const std::uint64_t settled = rank.version();
        EXPECT_EQ(settled == 1, words.empty());
        if (!rank.trains()) {
          EXPECT_EQ(rank.wrong(settled), 0U) << "rank " << r;
        }
        rank.train(2);
        const ShardedReport report = rank.sync();
        EXPECT_EQ(rank.version(), report.version);
        EXPECT_EQ(rank.wrong(2), 0U) << "rank " << r;
      });
      for (const std::uint64_t version : versions) EXPECT_EQ(version, versions.front());
      failures += reached ? 1 : 0;
      if (testing::Test::HasFailure()) return;
    }
  }
  EXPECT_GT(failures, 10);
  std::cout << failures << " calls failed once\n";
}

/// Frames are on their way when the round fails, and no abort comes back: what they lie in must stay.
TEST(FrameRoundFaults, AfterAnAbortThatDoesNotComeBackNoDeviceMemoryIsFreed) {
  if (!rendezvous_available()) GTEST_SKIP() << "the ranks meet over TCP; built without libsodium";
  const Wide wide(1, 1);
  FakeGroups fake;
  Meeting meeting(meeting_options(2, 60s));
  Meeting again(meeting_options(2, 60s));
  std::array<std::size_t, 2> held{};
  int staging = 0;
  meeting.run([&](const std::shared_ptr<Rendezvous>& channel) {
    const int r = channel->rank();
    const ExpectedLeak of_what_is_at_work;
    std::optional<WideRank> rank(std::in_place, wide, 1, r);
    rank->regroup(channel, fake.open(r));
    rank->train(1);
    channel->all_gather({}, in(20s));
    if (r == 0) fake.hang(1024);  // More than the head of the transfer.
    channel->all_gather({}, in(20s));
    EXPECT_NE(words_of([&] { rank->sync(1s); }), "");
    EXPECT_EQ(rank->version(), 0U);
    const std::shared_ptr<Rendezvous> next = again.meet(r);
    next->all_gather({}, in(20s));  // Both have given up.
    if (r == 0) {
      staging = fake.held_blocks();
      held[0] = emulation::runtime_counts().live_allocations;
    }
    next->all_gather({}, in(20s));
    // Frames of a new group would lie where the old ones still arrive.
    EXPECT_THAT(words_of([&] { rank->regroup(next, fake.open(r)); }), testing::HasSubstr("could not be stopped"));
    rank.reset();
  });
  held[1] = emulation::runtime_counts().live_allocations;
  EXPECT_GE(held[1], held[0]);
  EXPECT_GT(staging, 0);
  EXPECT_EQ(fake.held_blocks(), staging);
  EXPECT_EQ(fake.misuses(), "");
}

}  // namespace
}  // namespace sparsecast::test

#endif
