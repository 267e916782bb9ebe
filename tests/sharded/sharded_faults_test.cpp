// SPDX-License-Identifier: Apache-2.0

// A regroup and a sync in which one rank dies at one of its control messages and transfers, or loses the answer to it:
// each rank, each message. The version is everybody's or nobody's once the next regroup has settled it, and the sync
// after that succeeds. Channels are real ones, over loopback.

#include <gtest/gtest.h>

#include <cstdio>

#include "sparsecast/layout.hpp"
#include "sparsecast/sharded.hpp"
#include "support/expect_error.hpp"
#include "support/forwarding_control.hpp"
#include "support/hashed_weights.hpp"
#include "transport/tcp/meeting.hpp"

namespace sparsecast {
namespace {

using namespace std::chrono_literals;
using test::HashedWeights;
using test::LocalStorage;

constexpr std::chrono::milliseconds kTimeout = 20s;
constexpr int kRanks = 5;  // Two of the trainer, engine "a" of two, engine "b" of one.

enum class Fault { kDies, kLosesAnswer };

/// Counts the messages of one rank, and says which of them fails.
struct Script {
  int fails_at = -1;  ///< -1: none.
  Fault fault = Fault::kDies;
  bool coordinates = false;
  int messages = 0;
  bool failed = false;
};

/// A channel of a rank, or one split from it, that follows a script. A rank that fails aborts the channel of the world.
class FaultyControl final : public test::ForwardingControl {
 public:
  FaultyControl(std::shared_ptr<ControlChannel> inner, std::shared_ptr<ControlChannel> world, Script& script)
      : ForwardingControl(inner), inner_(std::move(inner)), world_(std::move(world)), script_(script) {}

 private:
  template <class Body>
  auto message(bool decides, const Body& body) {
    if (script_.messages++ != script_.fails_at) return body();
    // A decision of the coordinator stands once it has returned, so its answer cannot be lost on the way to itself.
    if (script_.fault == Fault::kLosesAnswer && !(decides && script_.coordinates)) body();
    script_.failed = true;
    inner_->abort("injected");
    world_->abort("injected");
    throw Error(ErrorCode::kPeerFailed, "injected");
  }

 public:
  std::vector<Bytes> all_gather(std::span<const std::byte> own, Deadline deadline) override {
    return message(false, [&] { return inner_->all_gather(own, deadline); });
  }
  Bytes reduce(std::span<const std::byte> own, const Combine& combine, Deadline deadline) override {
    return message(false, [&] { return inner_->reduce(own, combine, deadline); });
  }
  Bytes broadcast(std::span<const std::byte> own, Deadline deadline) override {
    return message(false, [&] { return inner_->broadcast(own, deadline); });
  }
  int agree(int status, int coordinator, Deadline deadline) override {
    return message(true, [&] { return inner_->agree(status, coordinator, deadline); });
  }
  std::shared_ptr<ControlChannel> split(int color, int key, Deadline deadline) override {
    auto part = message(false, [&] { return inner_->split(color, key, deadline); });
    if (!part) return nullptr;
    return std::make_shared<FaultyControl>(std::move(part), world_, script_);
  }

 private:
  std::shared_ptr<ControlChannel> inner_;
  std::shared_ptr<ControlChannel> world_;
  Script& script_;
};

std::shared_ptr<const Layout> cut(const char* axis, std::uint32_t ranks, const Cut& rule) {
  LayoutBuilder builder({Mesh{{axis, ranks}}});
  builder.tensor({"a.weight", DType::kBF16, {24, 20}});
  builder.tensor({"b.weight", DType::kF32, {12, 10}});
  for (const char* name : {"a.weight", "b.weight"}) builder.add(name, {name}, rule);
  return std::make_shared<const Layout>(builder.build());
}

struct Scene {
  std::shared_ptr<const Layout> trainer = cut("dp", 2, Cut::fsdp2({"dp"}));
  std::shared_ptr<const Layout> engine_a = cut("tp", 2, Cut::row_parallel({"tp"}));
  std::shared_ptr<const Layout> engine_b = cut("tp", 1, Cut::replicate());
  HashedWeights weights{7, 0.05};

  const std::shared_ptr<const Layout>& layout_of(int rank) const {
    return rank < 2 ? trainer : (rank < 4 ? engine_a : engine_b);
  }
};

class Rank {
 public:
  Rank(const Scene& scene, int rank)
      : scene_(scene), layout_(scene.layout_of(rank)), place_(static_cast<std::size_t>(rank) % 2) {
    storage_ = scene.weights.make(*layout_, place_, 0);
    const auto refs = test::refs_of(*layout_, place_, storage_);
    if (rank < 2) {
      publisher_.emplace(layout_, place_, refs, ShardedOptions{});
    } else {
      subscriber_.emplace(rank < 4 ? "a" : "b", layout_, place_, refs, ShardedOptions{});
    }
  }
  void regroup(std::shared_ptr<ControlChannel> control) {
    if (publisher_) return publisher_->regroup(std::move(control), open_control_groups(), kTimeout);
    subscriber_->regroup(std::move(control), open_control_groups(), kTimeout);
  }
  void sync() { publisher_ ? publisher_->sync(kTimeout) : subscriber_->sync(kTimeout); }
  void train(std::uint64_t step) {
    if (publisher_) scene_.weights.train(*layout_, place_, step, storage_);
  }
  std::uint64_t version() const { return publisher_ ? publisher_->version() : subscriber_->version(); }
  std::uint64_t wrong(std::uint64_t step) const { return scene_.weights.count_wrong(*layout_, place_, step, storage_); }
  bool trains() const { return publisher_.has_value(); }

 private:
  const Scene& scene_;
  std::shared_ptr<const Layout> layout_;
  std::size_t place_;
  LocalStorage storage_;
  std::optional<ShardedPublisher> publisher_;
  std::optional<ShardedSubscriber> subscriber_;
};

struct Outcomes {
  std::vector<std::uint64_t> settled = std::vector<std::uint64_t>(kRanks);  ///< Versions after the second regroup.
  std::vector<std::uint64_t> last = std::vector<std::uint64_t>(kRanks);     ///< And after the sync that follows it.
  bool failed = false;
  int messages = 0;  ///< Of the rank with the script, until it failed.
};

Outcomes run_case(const Scene& scene, int faulty, int fails_at, Fault fault) {
  Outcomes out;
  test::Meeting second(test::meeting_options(kRanks));
  test::Meeting first(test::meeting_options(kRanks));
  first.run([&](const std::shared_ptr<Rendezvous>& channel) {
    const int r = channel->rank();
    const auto place = static_cast<std::size_t>(r);
    Script script{r == faulty ? fails_at : -1, fault, r == 0};
    Rank rank(scene, r);
    try {
      rank.regroup(std::make_shared<FaultyControl>(channel, channel, script));
      rank.train(1);
      rank.sync();
    } catch (const Error&) {
      channel->abort("left");
    }
    if (r == faulty) {
      out.failed = script.failed;
      out.messages = script.messages;
    }
    rank.regroup(second.meet(r));
    out.settled[place] = rank.version();
    if (!rank.trains()) {
      EXPECT_EQ(rank.wrong(rank.version()), 0U) << "rank " << r;
    }
    rank.train(1);
    rank.train(2);
    rank.sync();
    out.last[place] = rank.version();
    EXPECT_EQ(rank.wrong(2), 0U) << "rank " << r;
  });
  return out;
}

TEST(ShardedFaults, EveryMessageOfEveryRankMayFail) {
  const Scene scene;
  int cases = 0;
  int kept = 0;
  int committed = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    const int messages = run_case(scene, rank, -1, Fault::kDies).messages;
    ASSERT_GT(messages, 8);
    for (int at = 0; at < messages; ++at) {
      for (const Fault fault : {Fault::kDies, Fault::kLosesAnswer}) {
        SCOPED_TRACE(testing::Message() << "rank " << rank << ", message " << at << " of " << messages << ", fault "
                                        << static_cast<int>(fault));
        const Outcomes out = run_case(scene, rank, at, fault);
        EXPECT_TRUE(out.failed);
        EXPECT_LE(out.settled[0], 1U);
        EXPECT_EQ(out.settled, std::vector<std::uint64_t>(kRanks, out.settled[0]));
        EXPECT_EQ(out.last, std::vector<std::uint64_t>(kRanks, out.last[0]));
        EXPECT_GT(out.last[0], out.settled[0]);
        ++cases;
        ++(out.settled[0] == 0 ? kept : committed);
        if (HasFailure()) return;
      }
    }
  }
  // A decision whose delivery failed stands.
  EXPECT_GT(committed, 0);
  EXPECT_GT(kept, committed);
  RecordProperty("cases", cases);
  std::printf("%d cases: %d at the version before, %d at the new one\n", cases, kept, committed);
}

}  // namespace
}  // namespace sparsecast
