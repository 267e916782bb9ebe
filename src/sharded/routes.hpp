#pragma once

// A rank's own lanes: each an ordinary delta stream, with a publisher on its source and a subscriber on each slot.

#include <algorithm>
#include <memory>
#include <vector>

#include "sharded/snapshot.hpp"
#include "sharded/sync_world.hpp"

namespace sparsecast {

struct SourceLane {
  std::uint32_t lane = 0;
  std::shared_ptr<const TensorTable> table;
  std::unique_ptr<Publisher> publisher;
};

struct SlotLane {
  std::uint32_t lane = 0;
  bool counted = false;  ///< It adds the lane's digest to its engine's.
  std::shared_ptr<const TensorTable> table;
  std::unique_ptr<Subscriber> subscriber;
};

/// Those that `rank` sends, ascending; the publishers' base is the snapshot.
std::vector<SourceLane> make_source_lanes(const FanoutPlan& plan, int rank, ShardSnapshot& snapshot,
                                          const PublisherOptions& options);
/// Those that it receives, ascending. Reads all of the parts, for their digests.
std::vector<SlotLane> make_slot_lanes(const FanoutPlan& plan, int rank, ShardMemory& memory,
                                      const SubscriberOptions& options);

/// The one of this number, which must be there.
template <class OwnLane>
OwnLane& find_lane(std::vector<OwnLane>& lanes, std::uint32_t lane) {
  return *std::ranges::lower_bound(lanes, lane, {}, &OwnLane::lane);
}

/// For the ballot: of each engine, then of all tensors.
std::vector<StateDigest> source_digests(const FanoutPlan& plan, const std::vector<SourceLane>& lanes,
                                        const std::vector<StateDigest>& of_lanes);
/// For the ballot: of the counted lanes.
StateDigest slot_digest(const std::vector<SlotLane>& lanes);

/// Slots of this rank in a lane.
std::vector<Slot> own_slots(const Lane& lane, int rank);
/// Where the parts of a lane lie for a slot, in the rank's local tensors.
std::vector<ShardView> slot_tensors(const FanoutPlan& plan, std::size_t lane, const Slot& slot,
                                    const ShardMemory& memory);

}  // namespace sparsecast
