// SPDX-License-Identifier: Apache-2.0

// The transfers of a sync as one rank takes part in them: what overlaps, in which order, and what a failure leaves.

#include "sync/transfer_pipeline.hpp"

#include <gtest/gtest.h>

#include <mutex>
#include <optional>
#include <set>

#include "support/expect_error.hpp"
#include "support/gate.hpp"

namespace sparsecast {
namespace {

using namespace std::chrono_literals;
using test::Gate;
using test::soon;
using test::Tryst;

/// Transfers of a rank that is a trainer's and an engine's; what happened is written down.
class Scene {
 public:
  using Routes = std::vector<std::uint32_t>;

  void own(const Routes& routes) { add(true, routes); }
  void foreign(const Routes& routes) { add(false, routes); }

  // Hooks of a test at each step, by route or by number of the transfer.
  std::function<void(std::uint32_t route)> at_publish = [](std::uint32_t) {};
  std::function<void(std::size_t number)> at_wire = [](std::size_t) {};
  std::function<void(std::size_t number)> at_stage = [](std::size_t) {};

  /// A pipeline over the transfers.
  TransferPipeline& make() {
    TransferSteps steps;
    steps.publish = [this](const std::function<void()>& done) {
      for (const std::uint32_t route : own_) {
        at_publish(route);
        {
          const std::lock_guard<std::mutex> lock(mutex_);
          threads.insert(std::this_thread::get_id());
          published.push_back(route);
        }
        done();
      }
    };
    steps.records = [](const SyncTransfer& transfer) {
      return std::vector<Bytes>(transfer.routes.size(), Bytes(1, std::byte(transfer.routes.front().number)));
    };
    steps.broadcast = [this](const SyncTransfer& transfer, std::vector<Bytes>& records) {
      at_wire(number_of(transfer));
      if (!transfer.own) records.assign(transfer.routes.size(), Bytes(2));
      const std::lock_guard<std::mutex> lock(mutex_);
      sent.emplace_back(number_of(transfer), records.size());
      if (transfer.own) records.clear();  // As a transport does that owns what it sends.
    };
    steps.stage = [this](const SyncTransfer& transfer, const std::vector<Bytes>& records) {
      at_stage(number_of(transfer));
      const std::lock_guard<std::mutex> lock(mutex_);
      threads.insert(std::this_thread::get_id());
      staged.emplace_back(number_of(transfer), records.size());
    };
    return pipeline_.emplace(transfers_, std::move(steps));
  }
  void forget() { pipeline_.reset(); }

  Routes published;
  std::vector<std::pair<std::size_t, std::size_t>> sent;    ///< Number of the transfer, records.
  std::vector<std::pair<std::size_t, std::size_t>> staged;  ///< Staged transfers, likewise.
  std::set<std::thread::id> threads;                        ///< Threads that published or staged.

 private:
  void add(bool own, const Routes& routes) {
    SyncTransfer& transfer = transfers_.emplace_back();
    transfer.own = own;
    for (const std::uint32_t route : routes) transfer.routes.push_back({route});
    if (own) own_.insert(own_.end(), routes.begin(), routes.end());
  }
  std::size_t number_of(const SyncTransfer& transfer) const {
    return static_cast<std::size_t>(&transfer - transfers_.data());
  }

  std::mutex mutex_;
  std::vector<SyncTransfer> transfers_;
  Routes own_;  ///< In the order of the transfers.
  std::optional<TransferPipeline> pipeline_;
};

using Passed = std::vector<std::pair<std::size_t, std::size_t>>;

TEST(TransferPipeline, KeepsTheOrderOfTheTransfersAndPublishesInIt) {
  Scene scene;
  scene.own({4});
  scene.foreign({0, 3});
  scene.own({2, 7});
  scene.foreign({5});
  scene.own({1});
  TransferPipeline& pipeline = scene.make();
  pipeline.run(soon());
  EXPECT_TRUE(pipeline.published().ok());
  EXPECT_TRUE(pipeline.staged().ok());
  EXPECT_EQ(scene.published, (Scene::Routes{4, 2, 7, 1}));
  const Passed all{{0, 1}, {1, 2}, {2, 2}, {3, 1}, {4, 1}};
  EXPECT_EQ(scene.sent, all);
  EXPECT_EQ(scene.staged, all);
}

TEST(TransferPipeline, ARouteIsPublishedWhileTheOneBeforeIsOnTheWire) {
  Scene scene;
  for (std::uint32_t route = 0; route < 3; ++route) scene.own({route});
  Tryst tryst;
  scene.at_publish = [&](std::uint32_t route) {
    if (route == 1) tryst.first();
  };
  scene.at_wire = [&](std::size_t number) {
    if (number == 0) tryst.second();
  };
  scene.make().run(soon());
  EXPECT_EQ(scene.sent, (Passed{{0, 1}, {1, 1}, {2, 1}}));
}

TEST(TransferPipeline, ATransferIsStagedWhileTheNextIsOnTheWire) {
  Scene scene;
  for (std::uint32_t route = 0; route < 3; ++route) scene.foreign({route});
  Tryst tryst;
  scene.at_stage = [&](std::size_t number) {
    if (number == 0) tryst.first();
  };
  scene.at_wire = [&](std::size_t number) {
    if (number == 1) tryst.second();
  };
  scene.make().run(soon());
  EXPECT_EQ(scene.staged, (Passed{{0, 1}, {1, 1}, {2, 1}}));
}

TEST(TransferPipeline, EncodingTheWireAndStagingAreAllAtWorkAtOnce) {
  Scene scene;
  for (std::uint32_t route = 0; route < 4; ++route) scene.own({route});
  Gate encoding;
  Gate on_the_wire;
  Gate staging;
  const auto meet = [&](Gate& own) {
    own.open();
    encoding.pass();
    on_the_wire.pass();
    staging.pass();
  };
  scene.at_publish = [&](std::uint32_t route) {
    if (route == 2) meet(encoding);
  };
  scene.at_wire = [&](std::size_t number) {
    if (number == 1) meet(on_the_wire);
  };
  scene.at_stage = [&](std::size_t number) {
    if (number == 0) meet(staging);
  };
  scene.make().run(soon());
  EXPECT_EQ(scene.staged.size(), 4U);
}

TEST(TransferPipeline, StartsNoThreadWhereNothingCouldOverlap) {
  const std::set<std::thread::id> own{std::this_thread::get_id()};
  Scene one;
  one.own({0, 1, 2});
  one.make().run(soon());
  EXPECT_EQ(one.threads, own);
  Scene without_transfers;
  without_transfers.make().run(soon());
  Scene first_takes_all;
  first_takes_all.own({0, 1});
  first_takes_all.foreign({2});
  bool published_here = false;
  first_takes_all.at_publish = [&](std::uint32_t) { published_here = own.contains(std::this_thread::get_id()); };
  first_takes_all.make().run(soon());
  EXPECT_TRUE(published_here);
}

TEST(TransferPipeline, ARouteThatCannotBePublishedStopsNoTransfer) {
  for (std::uint32_t bad = 0; bad < 6; ++bad) {
    Scene scene;
    scene.own({0});
    scene.foreign({10});
    scene.own({1, 2});
    scene.own({3});
    scene.own({4, 5});
    scene.at_publish = [&](std::uint32_t route) {
      if (route == bad) throw Error(ErrorCode::kDirty, "this route cannot be published");
    };
    TransferPipeline& pipeline = scene.make();
    pipeline.run(soon());
    EXPECT_EQ(pipeline.published().status(), static_cast<int>(ErrorCode::kDirty));
    EXPECT_EQ(scene.published.size(), bad) << "routes after it are left";
    // A transfer has all its records, or none.
    const Passed all{{0, bad > 0 ? 1U : 0U}, {1, 1}, {2, bad > 2 ? 2U : 0U}, {3, bad > 3 ? 1U : 0U}, {4, 0}};
    EXPECT_EQ(scene.sent, all) << "route " << bad;
  }
}

TEST(TransferPipeline, BytesThatCannotBeStagedStopNoTransfer) {
  for (std::size_t bad = 0; bad < 4; ++bad) {
    Scene scene;
    for (std::uint32_t route = 0; route < 4; ++route) scene.foreign({route});
    scene.at_stage = [&](std::size_t number) {
      if (number == bad) throw Error(ErrorCode::kCorrupt, "this transfer cannot be staged");
    };
    TransferPipeline& pipeline = scene.make();
    pipeline.run(soon());
    EXPECT_TRUE(pipeline.published().ok());
    test::expect_error(ErrorCode::kCorrupt, [&] { pipeline.staged().rethrow(); }, {"this transfer cannot be staged"});
    EXPECT_EQ(scene.sent.size(), 4U);
    EXPECT_EQ(scene.staged.size(), bad) << "transfers after it are left";
  }
}

TEST(TransferPipeline, AFailureOfTheWireEndsItAndItsThreads) {
  Scene scene;
  for (std::uint32_t route = 0; route < 5; ++route) scene.own({route});
  Gate at_work;
  Gate failed;
  scene.at_publish = [&](std::uint32_t route) {
    if (route != 2) return;
    at_work.open();
    failed.pass();
  };
  scene.at_wire = [&](std::size_t number) {
    if (number != 1) return;
    at_work.pass();
    throw Error(ErrorCode::kPeerFailed, "the cable was cut");
  };
  TransferPipeline& pipeline = scene.make();
  test::expect_error(ErrorCode::kPeerFailed, [&] { pipeline.run(soon()); }, {"the cable was cut"});
  failed.open();
  scene.forget();  // Hangs, or is found by the sanitizers, were a thread left.
  EXPECT_EQ(scene.sent.size(), 1U);
  EXPECT_GE(scene.published.size(), 3U) << "the pass came to its end";
}

TEST(TransferPipeline, ARouteThatIsNotPublishedByTheDeadlineIsNotWaitedFor) {
  Scene scene;
  for (std::uint32_t route = 0; route < 3; ++route) scene.own({route});
  Gate passed;
  scene.at_publish = [&](std::uint32_t route) {
    if (route == 1) passed.pass();
  };
  TransferPipeline& pipeline = scene.make();
  const auto run = [&] { pipeline.run(std::chrono::steady_clock::now() + 100ms); };
  test::expect_error(ErrorCode::kTimeout, run, {"encoding of routes was at", "of 3 when the deadline passed"});
  EXPECT_LE(scene.sent.size(), 1U);
  passed.open();
  scene.forget();
}

TEST(TransferPipeline, ARankThatCannotStageSoFastTakesNoMoreThanThreeTransfers) {
  Scene scene;
  for (std::uint32_t route = 0; route < 8; ++route) scene.foreign({route});
  Gate passed;
  scene.at_stage = [&](std::size_t number) {
    if (number == 0) passed.pass();
  };
  TransferPipeline& pipeline = scene.make();
  const auto run = [&] { pipeline.run(std::chrono::steady_clock::now() + 300ms); };
  test::expect_error(ErrorCode::kTimeout, run, {"staging of transfers was at 0 of"});
  EXPECT_LE(scene.sent.size(), 3U);
  passed.open();
  scene.forget();
}

}  // namespace
}  // namespace sparsecast
