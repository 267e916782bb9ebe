// SPDX-License-Identifier: Apache-2.0

// What a trainer holds more than once is the same everywhere, or no regroup succeeds.

#include "fanout/copies.hpp"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include "fanout/flat_box.hpp"
#include "sparsecast/layout.hpp"
#include "sparsecast/sharded.hpp"
#include "support/expect_error.hpp"
#include "support/hashed_weights.hpp"
#include "support/random.hpp"
#include "support/random_layouts.hpp"
#include "transport/tcp/meeting.hpp"

namespace sparsecast {
namespace {

using fanout::CopiedBox;
using fanout::Copy;
using test::HashedWeights;
using test::LocalStorage;
using test::Random;
using test::words_of;

constexpr std::chrono::milliseconds kTimeout = std::chrono::seconds(60);

/// A trainer and engines without a version, whose world ranks follow one another.
class World {
 public:
  explicit World(std::vector<Participant> groups) : groups_(std::move(groups)) {
    for (Participant& group : groups_) {
      for (int& rank : group.ranks) rank = ranks_++;
      for (std::size_t r = 0; r < group.ranks.size(); ++r) {
        tensors.push_back(group.name == "trainer" ? weights_.make(*group.layout, r, 0)
                                                  : weights_.make_empty(*group.layout, r));
      }
    }
  }

  /// Returns the exception of each rank's regroup.
  std::vector<std::string> regroup(const PlanOptions& plan) {
    std::vector<std::string> words(tensors.size());
    test::Meeting meeting(test::meeting_options(ranks_, kTimeout));
    meeting.run([&](const std::shared_ptr<Rendezvous>& channel) {
      const auto rank = static_cast<std::size_t>(channel->rank());
      words[rank] = words_of([&] { join(channel, rank, plan); });
    });
    return words;
  }

  const Participant& trainer() const { return groups_.front(); }
  std::vector<Participant> engines() const { return {groups_.begin() + 1, groups_.end()}; }

  std::vector<LocalStorage> tensors;  ///< By world rank.

 private:
  void join(const std::shared_ptr<Rendezvous>& channel, std::size_t rank, const PlanOptions& plan) {
    ShardedOptions options;
    options.plan = plan;
    std::size_t place = rank;
    std::size_t group = 0;
    for (; place >= groups_[group].ranks.size(); ++group) place -= groups_[group].ranks.size();
    const std::shared_ptr<const Layout>& layout = groups_[group].layout;
    std::vector<TensorRef> local = test::refs_of(*layout, place, tensors[rank]);
    if (group == 0) {
      return ShardedPublisher(layout, place, std::move(local), options)
          .regroup(channel, open_control_groups(), kTimeout);
    }
    options.needs_anchor = true;
    ShardedSubscriber(groups_[group].name, layout, place, std::move(local), options)
        .regroup(channel, open_control_groups(), kTimeout);
  }

  std::vector<Participant> groups_;
  int ranks_ = 0;
  HashedWeights weights_{17, 0.05};
};

/// Flips a bit of an element of a copy.
void flip(Random& random, const World& world, const CopiedBox& copied, const Copy& copy, LocalStorage& tensors) {
  std::vector<std::uint64_t> index = copied.box.offset;
  for (std::size_t d = 0; d < index.size(); ++d) index[d] += random.below(copied.box.extent[d]);
  const Shard& shard = *copy.shard;
  const std::size_t size = element_size(world.trainer().layout->table()[shard.tensor].dtype);
  const std::uint64_t byte = fanout::address_of(shard, index) * size + random.below(size);
  tensors[shard.local][byte] ^= std::byte(1U << random.below(8));
}

TEST(ShardedCopies, ABitThatDiffersInRandomLayoutsIsNamedBeforeEnginesAreWritten) {
  SCOPED_TRACE(test::seed_note());
  int flipped = 0;
  for (std::uint64_t i = 0; i < 40; ++i) {
    Random random(test::case_seed(test::run_seed(), i));
    test::RandomFanout made = test::random_fanout(random);
    std::vector<Participant> groups{made.trainer};
    groups.insert(groups.end(), made.engines.begin(), made.engines.end());
    World world(std::move(groups));
    const FanoutPlan plan(world.trainer(), world.engines(), made.options);
    const std::vector<CopiedBox> copies = fanout::find_copies(plan);
    if (!copies.empty()) {
      ++flipped;
      const CopiedBox& copied = copies[random.below(copies.size())];
      const Copy& copy = copied.copies[random.below(copied.copies.size())];
      const std::vector<LocalStorage> equal = world.tensors;
      flip(random, world, copied, copy, world.tensors[static_cast<std::size_t>(copy.world_rank)]);
      const std::vector<LocalStorage> before = world.tensors;
      for (const std::string& words : world.regroup(made.options)) {
        EXPECT_TRUE(words.starts_with("digest_mismatch: ")) << words;
        const std::string tensor =
            fmt::format("tensor '{}'{}: ", plan.table()[copied.tensor].name, to_string(copied.box));
        EXPECT_NE(words.find(tensor), std::string::npos) << words << "; not " << tensor;
        const bool named = words.find(fmt::format("trainer ranks {} and ", copy.rank)) != std::string::npos ||
                           words.find(fmt::format(" and {} hold different values", copy.rank)) != std::string::npos ||
                           words.find(fmt::format("trainer rank {} holds ", copy.rank)) != std::string::npos;
        EXPECT_TRUE(named) << words << "; not rank " << copy.rank;
      }
      EXPECT_EQ(world.tensors, before);
      world.tensors = equal;
    }
    for (const std::string& words : world.regroup(made.options)) EXPECT_EQ(words, "");
  }
  EXPECT_GT(flipped, 10);
}

/// Two trainer ranks with the same tensors, an engine of one.
struct Pair {
  static constexpr int kRanks = 3;
  static std::shared_ptr<const Layout> whole(std::uint32_t ranks) {
    LayoutBuilder builder({Mesh{{"dp", ranks}}});
    builder.tensor({"a.weight", DType::kBF16, {6, 4}});
    builder.tensor({"b.mean", DType::kF32, {4}});
    for (const char* name : {"a.weight", "b.mean"}) builder.add(name, {name}, Cut::replicate());
    return std::make_shared<const Layout>(builder.build());
  }
  std::shared_ptr<const Layout> trainer = whole(2);
  std::shared_ptr<const Layout> engine = whole(1);
};

TEST(ShardedCopies, ThatDriftApartAreNamedByTheNextRegroup) {
  const Pair pair;
  const HashedWeights weights(5, 0.3);
  test::Meeting second(test::meeting_options(Pair::kRanks, kTimeout));
  test::Meeting third(test::meeting_options(Pair::kRanks, kTimeout));
  test::Meeting first(test::meeting_options(Pair::kRanks, kTimeout));
  first.run([&](const std::shared_ptr<Rendezvous>& channel) {
    const int r = channel->rank();
    const auto place = static_cast<std::size_t>(r % 2);
    const std::shared_ptr<const Layout>& layout = r < 2 ? pair.trainer : pair.engine;
    LocalStorage tensors = weights.make(*layout, place, 0);
    std::optional<ShardedPublisher> publisher;
    std::optional<ShardedSubscriber> subscriber;
    if (r < 2) publisher.emplace(layout, place, test::refs_of(*layout, place, tensors), ShardedOptions{});
    if (r == 2) subscriber.emplace("e", layout, place, test::refs_of(*layout, place, tensors), ShardedOptions{});
    const auto regroup = [&](std::shared_ptr<ControlChannel> with) {
      publisher ? publisher->regroup(std::move(with), open_control_groups(), kTimeout)
                : subscriber->regroup(std::move(with), open_control_groups(), kTimeout);
    };
    const auto sync = [&] { publisher ? publisher->sync(kTimeout) : subscriber->sync(kTimeout); };
    regroup(channel);
    if (publisher) weights.train(*layout, place, 1, tensors);
    sync();
    EXPECT_EQ(weights.count_wrong(*layout, place, 1, tensors), 0U);
    if (publisher) weights.train(*layout, place, 2, tensors);
    if (r == 1) tensors[1][5] ^= std::byte{4};
    EXPECT_EQ(words_of([&] { regroup(second.meet(r)); }),
              "digest_mismatch: tensor 'b.mean'[0:4]: trainer ranks 0 and 1 hold different values of what is described "
              "as copies: name them apart, make them equal, or leave it out");
    if (r == 1) tensors[1][5] ^= std::byte{4};
    EXPECT_EQ(weights.count_wrong(*layout, place, publisher ? 2 : 1, tensors), 0U);
    regroup(third.meet(r));
    sync();
    EXPECT_EQ(weights.count_wrong(*layout, place, 2, tensors), 0U);
  });
}

TEST(ShardedCopies, OfMastersAreComparedAsTheyTravel) {
  const Pair pair;
  for (const bool differs : {false, true}) {
    test::Meeting meeting(test::meeting_options(Pair::kRanks, kTimeout));
    meeting.run([&](const std::shared_ptr<Rendezvous>& channel) {
      const int r = channel->rank();
      std::vector<float> masters(24, 1.0F);
      // A rounding error of bf16 at 1 is up to 2^-8.
      if (r == 1) masters[7] += differs ? 0x1p-7F : 0x1p-10F;
      LocalStorage tensors{LocalStorage::value_type(r < 2 ? 96 : 48), LocalStorage::value_type(16)};
      if (r == 2) {
        ShardedOptions options;
        options.needs_anchor = true;
        ShardedSubscriber subscriber("e", pair.engine, 0, test::refs_of(*pair.engine, 0, tensors), options);
        const std::string words = words_of([&] { subscriber.regroup(channel, open_control_groups(), kTimeout); });
        EXPECT_EQ(words.empty(), !differs) << words;
        EXPECT_EQ(tensors[0] == LocalStorage::value_type(48), differs);
        return;
      }
      std::memcpy(tensors[0].data(), masters.data(), 96);
      std::vector<TensorRef> local =
          refs_to(*pair.trainer, 0, std::vector<void*>{tensors[0].data(), tensors[1].data()}, kHostMemory);
      local[0].dtype = DType::kF32;
      ShardedPublisher publisher(pair.trainer, static_cast<std::size_t>(r), local, {});
      const std::string words = words_of([&] { publisher.regroup(channel, open_control_groups(), kTimeout); });
      EXPECT_EQ(words.find("tensor 'a.weight'[0:6,0:4]: trainer ranks 0 and 1 hold") != std::string::npos, differs)
          << words;
    });
  }
}

}  // namespace
}  // namespace sparsecast
