// SPDX-License-Identifier: Apache-2.0

// Syncs of small groups of threads over control channels: what goes wrong, and who says so.

#include "sparsecast/sharded.hpp"

#include <gtest/gtest.h>

#include "sparsecast/layout.hpp"
#include "support/expect_error.hpp"
#include "support/hashed_weights.hpp"
#include "transport/tcp/meeting.hpp"

namespace sparsecast {
namespace {

using namespace std::chrono_literals;
using test::HashedWeights;
using test::LocalStorage;
using test::words_of;

constexpr std::chrono::milliseconds kTimeout = 20s;

std::shared_ptr<const Layout> cut(const Axes& rows, std::uint32_t ranks, const Cut& rule) {
  LayoutBuilder builder({Mesh{{rows.front(), ranks}}});
  builder.tensor({"a.weight", DType::kBF16, {48, 40}});
  builder.tensor({"b.weight", DType::kF32, {48, 20}});
  for (const char* name : {"a.weight", "b.weight"}) builder.add(name, {name}, rule);
  return std::make_shared<const Layout>(builder.build());
}

/// Two trainer ranks that cut rows, two engines of two ranks that cut columns: world ranks 0, 1; 2, 3; 4, 5.
struct Scene {
  static constexpr int kRanks = 6;
  std::shared_ptr<const Layout> trainer = cut({"dp"}, 2, Cut::fsdp2({"dp"}));
  std::shared_ptr<const Layout> engine = cut({"tp"}, 2, Cut::row_parallel({"tp"}));
  HashedWeights weights{7, 0.05};
};

/// One rank of the scene.
class Rank {
 public:
  Rank(const Scene& scene, int rank, ShardedOptions options = {})
      : scene_(scene), place_(static_cast<std::size_t>(rank) % 2) {
    if (rank < 2) {
      storage_ = scene.weights.make(*scene.trainer, place_, 0);
      publisher_.emplace(scene.trainer, place_, test::refs_of(*scene.trainer, place_, storage_), options);
    } else {
      storage_ = scene.weights.make(*scene.engine, place_, 0);
      subscriber_.emplace(rank < 4 ? "a" : "b", scene.engine, place_, test::refs_of(*scene.engine, place_, storage_),
                          options);
    }
  }

  void regroup(std::shared_ptr<ControlChannel> control, std::chrono::milliseconds timeout = kTimeout) {
    if (publisher_) return publisher_->regroup(std::move(control), open_control_groups(), timeout);
    subscriber_->regroup(std::move(control), open_control_groups(), timeout);
  }
  ShardedReport sync(std::chrono::milliseconds timeout = kTimeout) {
    return publisher_ ? publisher_->sync(timeout) : subscriber_->sync(timeout);
  }
  void train(std::uint64_t step) {
    if (publisher_) scene_.weights.train(*scene_.trainer, place_, step, storage_);
  }
  std::uint64_t version() const { return publisher_ ? publisher_->version() : subscriber_->version(); }
  std::uint64_t wrong(std::uint64_t step) const {
    return scene_.weights.count_wrong(publisher_ ? *scene_.trainer : *scene_.engine, place_, step, storage_);
  }
  LocalStorage& storage() { return storage_; }
  std::optional<ShardedPublisher>& publisher() { return publisher_; }
  std::optional<ShardedSubscriber>& subscriber() { return subscriber_; }

 private:
  const Scene& scene_;
  std::size_t place_;
  LocalStorage storage_;
  std::optional<ShardedPublisher> publisher_;
  std::optional<ShardedSubscriber> subscriber_;
};

/// Runs body(channel) as each rank of the scene.
template <class Body>
void run_scene(const Body& body) {
  test::Meeting meeting(test::meeting_options(Scene::kRanks));
  meeting.run([&](const std::shared_ptr<Rendezvous>& channel) { body(channel); });
}

TEST(ShardedSync, BringsEveryVersionToEnginesOfAnotherCut) {
  const Scene scene;
  run_scene([&](const std::shared_ptr<Rendezvous>& channel) {
    Rank rank(scene, channel->rank());
    rank.regroup(channel);
    for (std::uint64_t v = 1; v <= 5; ++v) {
      rank.train(v);
      const ShardedReport report = rank.sync();
      EXPECT_EQ(report.version, v);
      EXPECT_EQ(rank.version(), v);
      EXPECT_EQ(rank.wrong(v), 0U);
      EXPECT_GT(report.changed + report.applied, 0U);
    }
    if (rank.subscriber()) rank.subscriber()->audit();
  });
}

TEST(ShardedSync, TheDigestIsThatOfTheCanonicalTensors) {
  const Scene scene;
  // The whole tensors, as a checkpoint has them.
  const auto whole = cut({"dp"}, 1, Cut::replicate());
  LocalStorage tensors = scene.weights.make(*whole, 0, 1);
  std::vector<ConstBytes> views(tensors.begin(), tensors.end());
  const StateDigest expected = sum(digest_tensors(whole->table(), refs_to(whole->table(), views)));
  run_scene([&](const std::shared_ptr<Rendezvous>& channel) {
    Rank rank(scene, channel->rank());
    rank.regroup(channel);
    rank.train(1);
    rank.sync();
    if (rank.publisher()) {
      EXPECT_EQ(rank.publisher()->digest(), expected);
    }
  });
}

TEST(ShardedSync, RegroupNamesAnEngineWhoseBytesDiffer) {
  const Scene scene;
  run_scene([&](const std::shared_ptr<Rendezvous>& channel) {
    Rank rank(scene, channel->rank());
    if (channel->rank() == 5) rank.storage()[0][3] ^= std::byte{1};
    const std::string words = words_of([&] { rank.regroup(channel); });
    if (channel->rank() == 5) {
      EXPECT_NE(words.find("wrong_base: "), std::string::npos) << words;
      EXPECT_NE(words.find("'a.weight["), std::string::npos) << words;
    } else {
      EXPECT_NE(words.find("peer_failed: "), std::string::npos) << words;
      EXPECT_NE(words.find("engine 'b' rank 1 failed"), std::string::npos) << words;
    }
  });
}

TEST(ShardedSync, ABitThatFlipsOnAReceiverStopsTheSyncEverywhereAndAnAnchorHealsIt) {
  const Scene scene;
  test::Meeting again(test::meeting_options(Scene::kRanks));
  run_scene([&](const std::shared_ptr<Rendezvous>& channel) {
    const int r = channel->rank();
    Rank rank(scene, r);
    rank.regroup(channel);
    rank.train(1);
    rank.sync();
    // Every element of rank 3 goes wrong, so the delta cannot miss it.
    if (r == 3) {
      for (auto& tensor : rank.storage()) {
        for (std::byte& byte : tensor) byte ^= std::byte{0x10};
      }
    }
    rank.train(2);
    const std::string words = words_of([&] { rank.sync(); });
    EXPECT_NE(words.find(r == 3 ? "digest_mismatch: " : "engine 'a' rank 1 failed"), std::string::npos) << words;
    EXPECT_EQ(rank.version(), 1U);
    if (r != 3 && r >= 2) {
      EXPECT_EQ(rank.wrong(1), 0U) << "rank " << r << " took its apply back";
    }
    EXPECT_NE(words_of([&] { rank.sync(); }).find("call regroup()"), std::string::npos);
    // Rank 3 knows better than to trust its memory.
    if (r == 3) {
      ShardedOptions options;
      options.needs_anchor = true;
      rank.subscriber().emplace("a", scene.engine, 1U, test::refs_of(*scene.engine, 1U, rank.storage()), options);
    }
    rank.regroup(again.meet(r));
    EXPECT_EQ(rank.version(), 1U);
    rank.train(3);
    EXPECT_EQ(rank.sync().version, 3U) << "the attempt that failed had number 2";
    EXPECT_EQ(rank.wrong(3), 0U);
  });
}

TEST(ShardedSync, ATrainerWithoutEnginesGoesOnAlone) {
  const Scene scene;
  auto options = test::meeting_options(2);
  test::Meeting meeting(options);
  meeting.run([&](const std::shared_ptr<Rendezvous>& channel) {
    Rank rank(scene, channel->rank());
    rank.regroup(channel);
    for (std::uint64_t v = 1; v <= 3; ++v) {
      rank.train(v);
      EXPECT_EQ(rank.sync().version, v);
    }
  });
}

TEST(ShardedSync, WithoutARegroupThereIsNothingToSync) {
  const Scene scene;
  Rank rank(scene, 0);
  test::expect_error(ErrorCode::kUsage, [&] { rank.sync(); }, {"call regroup() first"});
  LocalStorage few(1);
  test::expect_error(ErrorCode::kUsage,
                     [&] { ShardedPublisher(scene.trainer, 0, test::refs_of(*scene.trainer, 0, few), {}); },
                     {"1 local tensors for a layout of 2"});
  few = scene.weights.make(*scene.trainer, 0, 0);
  few[1].pop_back();
  test::expect_error(ErrorCode::kUsage,
                     [&] { ShardedPublisher(scene.trainer, 0, test::refs_of(*scene.trainer, 0, few), {}); },
                     {"local tensor 'b.weight'"});
  test::expect_error(ErrorCode::kUsage, [&] { ShardedPublisher(scene.trainer, 2, {}, {}); },
                     {"rank 2 of a layout of 2"});
}

TEST(ShardedSync, DeviceMemoryNeedsADeviceBackend) {
  const Scene scene;
  LocalStorage storage = scene.weights.make(*scene.trainer, 0, 0);
  std::vector<void*> d_local;
  for (std::vector<std::byte>& tensor : storage) d_local.push_back(tensor.data());
  const auto trained = refs_to(*scene.trainer, 0, d_local, 0);
  test::expect_error(ErrorCode::kUnsupported, [&] { ShardedPublisher(scene.trainer, 0, trained, {}); },
                     {"no device backend"});
  const auto served = refs_to(*scene.engine, 0, d_local, 0);
  test::expect_error(ErrorCode::kUnsupported, [&] { ShardedSubscriber("a", scene.engine, 0, served, {}); },
                     {"no device backend"});
}

TEST(ShardedSync, AnEngineReceivesWhileItsWeightsAreReadAndAppliesLater) {
  const Scene scene;
  run_scene([&](const std::shared_ptr<Rendezvous>& channel) {
    Rank rank(scene, channel->rank());
    rank.regroup(channel);
    for (std::uint64_t v = 1; v <= 3; ++v) {
      rank.train(v);
      if (rank.publisher()) {
        rank.sync();
        continue;
      }
      ShardedSubscriber& engine = *rank.subscriber();
      engine.receive(kTimeout);
      EXPECT_EQ(engine.version(), v - 1);
      EXPECT_EQ(rank.wrong(v - 1), 0U) << "receive() wrote into live memory";
      const ShardedReport report = engine.apply(kTimeout);
      EXPECT_EQ(report.version, v);
      EXPECT_GT(report.received_bytes, 0U);
      EXPECT_GT(report.applied, 0U);
      EXPECT_EQ(rank.wrong(v), 0U);
    }
  });
}

TEST(ShardedSync, HalvesOfASyncInAnotherOrderAreRefused) {
  const Scene scene;
  run_scene([&](const std::shared_ptr<Rendezvous>& channel) {
    Rank rank(scene, channel->rank());
    rank.regroup(channel);
    rank.train(1);
    if (rank.publisher()) {
      rank.sync();
      return;
    }
    ShardedSubscriber& engine = *rank.subscriber();
    test::expect_error(ErrorCode::kUsage, [&] { engine.apply(kTimeout); }, {"no version is staged"});
    engine.receive(kTimeout);
    test::expect_error(ErrorCode::kUsage, [&] { engine.receive(kTimeout); }, {"version 1 waits for apply()"});
    test::expect_error(ErrorCode::kUsage, [&] { engine.sync(kTimeout); }, {"version 1 waits for apply()"});
    EXPECT_EQ(engine.apply(kTimeout).version, 1U);
    EXPECT_EQ(rank.wrong(1), 0U);
  });
}

TEST(ShardedSync, AnEngineThatNeverAppliesStopsTheSyncAndARegroupHealsIt) {
  const Scene scene;
  test::Meeting again(test::meeting_options(Scene::kRanks));
  run_scene([&](const std::shared_ptr<Rendezvous>& channel) {
    const int r = channel->rank();
    Rank rank(scene, r);
    rank.regroup(channel);
    rank.train(1);
    if (r == 4) {
      rank.subscriber()->receive(kTimeout);
      channel->abort("the engine was killed in its pause");
    } else {
      EXPECT_NE(words_of([&] { rank.sync(); }), "");
      EXPECT_EQ(rank.version(), 0U);
    }
    if (!rank.publisher()) {
      EXPECT_EQ(rank.wrong(0), 0U);
    }
    rank.regroup(again.meet(r));
    rank.sync();
    EXPECT_EQ(rank.wrong(1), 0U);
  });
}

TEST(ShardedSync, ReportsWhatWasSentOfEachTensorWhenAsked) {
  const Scene scene;
  run_scene([&](const std::shared_ptr<Rendezvous>& channel) {
    ShardedOptions options;
    options.report_tensors = true;
    Rank rank(scene, channel->rank(), options);
    rank.regroup(channel);
    rank.train(1);
    const ShardedReport report = rank.sync();
    if (!rank.publisher()) {
      EXPECT_TRUE(report.tensors.empty());
      return;
    }
    ASSERT_EQ(report.tensors.size(), 2U);
    EXPECT_EQ(report.tensors[0].name, "a.weight");
    EXPECT_EQ(report.tensors[1].name, "b.weight");
    std::uint64_t changed = 0;
    std::uint64_t blocks = 0;
    for (const SentTensor& tensor : report.tensors) {
      EXPECT_EQ(tensor.elements % 24, 0U);
      changed += tensor.changed;
      blocks += tensor.blocks;
    }
    EXPECT_EQ(changed, report.changed);
    std::uint64_t by_codec = 0;
    for (const std::uint64_t count : report.blocks_by_codec) by_codec += count;
    EXPECT_EQ(by_codec, blocks);
    EXPECT_GT(blocks, 0U);
  });
}

}  // namespace
}  // namespace sparsecast
