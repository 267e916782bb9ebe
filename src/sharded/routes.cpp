#include "sharded/routes.hpp"

#include <algorithm>
#include <optional>

namespace sparsecast {
namespace {

/// The engine's index in the plan that this rank belongs to, if any.
std::optional<std::size_t> own_engine(const FanoutPlan& plan, int rank) {
  for (std::size_t e = 0; e < plan.engines().size(); ++e) {
    if (std::ranges::find(plan.engines()[e].ranks, rank) != plan.engines()[e].ranks.end()) return e;
  }
  return std::nullopt;
}

/// True when this slot adds the lane's digest to its engine's: the first of the engine's slots, in a lane that the
/// engine counts.
bool counts(const FanoutPlan& plan, const Lane& lane, std::size_t engine, const Slot& slot) {
  if (std::ranges::find(lane.counted_by, engine) == lane.counted_by.end()) return false;
  const std::vector<int>& ranks = plan.engines()[engine].ranks;
  const auto first = std::ranges::find_if(
      lane.slots, [&](const Slot& other) { return std::ranges::find(ranks, other.rank) != ranks.end(); });
  return first != lane.slots.end() && *first == slot;
}

}  // namespace

std::vector<Slot> own_slots(const Lane& lane, int rank) {
  std::vector<Slot> own;
  std::ranges::copy_if(lane.slots, std::back_inserter(own), [&](const Slot& slot) { return slot.rank == rank; });
  return own;
}

std::vector<SourceLane> make_source_lanes(const FanoutPlan& plan, int rank, ShardSnapshot& snapshot,
                                          const PublisherOptions& options) {
  snapshot.cover(plan, rank);
  std::vector<SourceLane> lanes;
  for (std::uint32_t l = 0; l < plan.lanes().size(); ++l) {
    if (plan.lanes()[l].source != rank) continue;
    SourceLane lane;
    lane.lane = l;
    lane.table = std::make_shared<const TensorTable>(plan.lane_table(l));
    lane.publisher =
        snapshot.memory().make_publisher(lane.table, snapshot.live(plan, l), snapshot.held(plan, l), options);
    lanes.push_back(std::move(lane));
  }
  return lanes;
}

std::vector<ShardView> slot_tensors(const FanoutPlan& plan, std::size_t lane, const Slot& slot,
                                    const ShardMemory& memory) {
  return views_in(plan, lane, plan.slot_views(lane, slot),
                  [&](std::size_t, std::uint32_t local) { return memory.local()[local].data(); });
}

std::vector<SlotLane> make_slot_lanes(const FanoutPlan& plan, int rank, ShardMemory& memory,
                                      const SubscriberOptions& options) {
  const std::optional<std::size_t> engine = own_engine(plan, rank);
  std::vector<SlotLane> lanes;
  for (std::uint32_t l = 0; l < plan.lanes().size(); ++l) {
    for (const Slot& slot : own_slots(plan.lanes()[l], rank)) {
      SlotLane lane;
      lane.lane = l;
      lane.counted = engine && counts(plan, plan.lanes()[l], *engine, slot);
      lane.table = std::make_shared<const TensorTable>(plan.lane_table(l));
      lane.subscriber = memory.make_subscriber(lane.table, slot_tensors(plan, l, slot, memory), options);
      lanes.push_back(std::move(lane));
    }
  }
  return lanes;
}

std::vector<StateDigest> source_digests(const FanoutPlan& plan, const std::vector<SourceLane>& lanes,
                                        const std::vector<StateDigest>& of_lanes) {
  std::vector<StateDigest> digests(plan.engines().size() + 1);
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    const Lane& lane = plan.lanes()[lanes[i].lane];
    for (const std::uint32_t engine : lane.counted_by) digests[engine] += of_lanes[i];
    if (lane.counted_in_state) digests.back() += of_lanes[i];
  }
  return digests;
}

StateDigest slot_digest(const std::vector<SlotLane>& lanes) {
  StateDigest total;
  for (const SlotLane& lane : lanes) {
    if (lane.counted) total += lane.subscriber->digest();
  }
  return total;
}

}  // namespace sparsecast
