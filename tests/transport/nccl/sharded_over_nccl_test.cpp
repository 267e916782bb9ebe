// SPDX-License-Identifier: Apache-2.0

// Sharded syncs over NCCL channels, on the fake NCCL.

#ifdef SPARSECAST_HAVE_NCCL

#include <optional>

#include "sharded/sync_world.hpp"
#include "sparsecast/layout.hpp"
#include "tests/support/fake_nccl.hpp"
#include "tests/support/hashed_weights.hpp"
#include "transport/nccl/nccl_group.hpp"
#include "transport/tcp/meeting.hpp"

namespace sparsecast::test {
namespace {

using namespace std::chrono_literals;

std::shared_ptr<const Layout> cut(const char* axis, const Cut& rule) {
  LayoutBuilder builder({Mesh{{axis, 2}}});
  builder.tensor({"weight", DType::kBF16, {96, 64}});
  builder.tensor({"norm", DType::kF32, {64}});
  builder.add("weight", {"weight"}, rule);
  builder.add("norm", {"norm"}, axis == std::string_view("dp") ? rule : Cut::replicate());
  return std::make_shared<const Layout>(builder.build());
}

TEST(ShardedOverNccl, BringsEveryVersionThroughChannelsSplitFromOneCommunicator) {
  if (!rendezvous_available()) GTEST_SKIP() << "the ranks meet over TCP; built without libsodium";
  const auto trainer = cut("dp", Cut::fsdp2({"dp"}));
  const auto engine = cut("tp", Cut::row_parallel({"tp"}));
  const HashedWeights weights(11, 0.05);
  FakeNccl fake;
  Meeting meeting(meeting_options(4));
  meeting.run([&](const std::shared_ptr<Rendezvous>& control) {
    const int rank = control->rank();
    const auto place = static_cast<std::size_t>(rank % 2);
    const std::shared_ptr<const Layout>& layout = rank < 2 ? trainer : engine;
    NcclOptions options;
    options.device = rank;
    options.staging_bytes = 4096;
    const GroupOpener open = split_nccl_groups([&](std::shared_ptr<ControlChannel> world, Deadline deadline) {
      return std::make_unique<NcclTransport>(
          NcclGroup::form(fake.runtime(), std::move(world), options, nullptr, deadline));
    });
    LocalStorage storage = weights.make(*layout, place, 0);
    std::optional<ShardedPublisher> publisher;
    std::optional<ShardedSubscriber> subscriber;
    if (rank < 2) {
      publisher.emplace(layout, place, refs_of(*layout, place, storage), ShardedOptions{});
      publisher->regroup(control, open, 20s);
    } else {
      subscriber.emplace("engine", layout, place, refs_of(*layout, place, storage), ShardedOptions{});
      subscriber->regroup(control, open, 20s);
    }
    for (std::uint64_t v = 1; v <= 4; ++v) {
      if (rank < 2) weights.train(*layout, place, v, storage);
      const ShardedReport report = rank < 2 ? publisher->sync(20s) : subscriber->sync(20s);
      EXPECT_EQ(report.version, v);
      EXPECT_EQ(weights.count_wrong(*layout, place, v, storage), 0U) << "rank " << rank << ", version " << v;
    }
  });
  EXPECT_EQ(fake.misuses(), "");
}

}  // namespace
}  // namespace sparsecast::test

#endif
