#pragma once

// Snapshot of a trainer rank's shards as receivers hold them: copies of its local tensors, or the bf16 casts of those
// that are masters, kept from plan to plan.

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sharded/shard_memory.hpp"
#include "sparsecast/fanout_plan.hpp"

namespace sparsecast {

/// a without b: at most two boxes a dimension, disjoint.
std::vector<Box> subtract(const Box& a, const Box& b);

/// Routes detect and refresh one after another, so each needs old bits of its own: where a rank sends an element in
/// several routes (engines of different cuts may have their own), there are several copies of it, in layers.
class ShardSnapshot {
 public:
  /// Copies lie in the same memory as the rank's tensors.
  explicit ShardSnapshot(std::shared_ptr<ShardMemory> memory) : memory_(std::move(memory)) {}

  /// Gets ready for what `rank` (of the world) sends under `plan`. What it sends already stays as it is; of the rest,
  /// the bytes as they are now are taken for what receivers hold. Local tensors of which nothing is sent take no
  /// memory.
  void cover(const FanoutPlan& plan, int rank);
  /// The plan of the last cover() is in force. Until then the one before is, and nothing of it is lost.
  void adopt();

  /// Returns the places of a route's regions, for a route of the plan that was covered: in the rank's tensors, and in
  /// the snapshot.
  std::vector<ShardView> live(const FanoutPlan& plan, std::size_t route) const;
  std::vector<ShardView> held(const FanoutPlan& plan, std::size_t route) const;
  /// Returns the places in the snapshot for a route of another plan, that of an anchor, which sends nothing that the
  /// covered plan does not. Regions that no layer holds alone are put together in `scratch`.
  std::vector<ShardView> held_for_anchor(const FanoutPlan& plan, std::size_t route, std::vector<ShardBuffer>& scratch);

  ShardMemory& memory() const noexcept { return *memory_; }
  std::uint64_t bytes() const noexcept;

 private:
  /// Boxes, keyed by the name of the canonical tensor and the index of the local tensor.
  using Boxes = std::map<std::pair<std::string, std::uint32_t>, std::vector<Box>>;

  struct Layer {
    std::vector<ShardBuffer> copies;  ///< Parallel to the local tensors; null where nothing is sent.
    Boxes sent;                       ///< Under the plan in force.
    Boxes covered;                    ///< Under the one that may come to be.
  };

  struct CoveredRoute {
    std::size_t layer = 0;
    std::vector<RegionView> views;
  };

  std::size_t layer_for(const FanoutPlan& plan, const Route& route, const std::vector<RegionView>& views);
  void take(std::size_t layer, const FanoutPlan& plan, const Region& region, const RegionView& view);
  std::byte* find_whole(const std::string& tensor, const Box& box, std::uint32_t local);
  ShardBuffer put_together(const FanoutPlan& plan, const Region& region, const RegionView& view);

  std::shared_ptr<ShardMemory> memory_;
  std::vector<Layer> layers_;
  std::map<std::size_t, CoveredRoute> routes_;  ///< Routes of the plan that was covered, keyed by their index in it.
};

}  // namespace sparsecast
