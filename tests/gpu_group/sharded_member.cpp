// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <optional>
#include <stdexcept>

#include "gpu_group/meeting_place.hpp"
#include "sparsecast/layout.hpp"
#include "sparsecast/sharded.hpp"
#include "tests/support/hashed_weights.hpp"

namespace sparsecast::test {
namespace {

/// Two matrices, cut by rows or by columns.
std::shared_ptr<const Layout> cut(const char* axis, std::uint32_t ranks, const Cut& rule) {
  LayoutBuilder builder({Mesh{{axis, ranks}}});
  builder.tensor({"a.weight", DType::kBF16, {512, 384}});
  builder.tensor({"b.weight", DType::kF32, {256, 384}});
  for (const char* name : {"a.weight", "b.weight"}) builder.add(name, {name}, rule);
  return std::make_shared<const Layout>(builder.build());
}

GroupOpener open_channels(const GroupPlan& plan) {
  if (!plan.over_nccl) return open_control_groups();
  NcclOptions options;
  options.device = 0;
  options.staging_bytes = std::uint64_t{1} << 20;
  return open_nccl_groups(options);
}

}  // namespace

void run_sharded_member(const GroupPlan& plan, int rank) {
  const int trainers = plan.ranks / 2;
  const bool trains = rank < trainers;
  const auto layout = trains ? cut("dp", static_cast<std::uint32_t>(trainers), Cut::fsdp2({"dp"}))
                             : cut("tp", static_cast<std::uint32_t>(plan.ranks - trainers), Cut::row_parallel({"tp"}));
  const auto place = static_cast<std::size_t>(trains ? rank : rank - trainers);
  const HashedWeights weights(plan.seed);
  LocalStorage storage = trains ? weights.make(*layout, place, 0) : weights.make_empty(*layout, place);
  std::optional<ShardedPublisher> publisher;
  std::optional<ShardedSubscriber> subscriber;
  ShardedOptions options;
  options.needs_anchor = !trains;
  if (trains) {
    publisher.emplace(layout, place, refs_of(*layout, place, storage), options);
  } else {
    subscriber.emplace("engine", layout, place, refs_of(*layout, place, storage), options);
  }
  MeetingPlace meeting(plan, rank);
  const std::shared_ptr<ControlChannel> world = meeting.meet(plan.ranks, 0);
  trains ? publisher->regroup(world, open_channels(plan), plan.timeout)
         : subscriber->regroup(world, open_channels(plan), plan.timeout);
  for (int v = 1; v <= plan.versions; ++v) {
    const auto step = static_cast<std::uint64_t>(v);
    if (trains) weights.train(*layout, place, step, storage);
    const ShardedReport report = trains ? publisher->sync(plan.timeout) : subscriber->sync(plan.timeout);
    const std::uint64_t wrong = weights.count_wrong(*layout, place, step, storage);
    if (report.version != step || report.changed + report.applied == 0 || wrong != 0) {
      throw std::runtime_error(fmt::format("version {} of {}: {} changes sent, {} applied, {} wrong elements",
                                           report.version, step, report.changed, report.applied, wrong));
    }
    if (rank + 1 != plan.ranks) continue;
    fmt::print(stderr, "version {}, {} changes, {} bytes\n", report.version, report.applied, report.received_bytes);
  }
}

}  // namespace sparsecast::test
