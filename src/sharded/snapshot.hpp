// SPDX-License-Identifier: Apache-2.0
#pragma once

// Copy of the bits that receivers hold of a trainer rank's shards: of its local tensors, or of their casts where they
// are masters. The copy is kept from plan to plan.

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sharded/shard_memory.hpp"
#include "sparsecast/fanout_plan.hpp"

namespace sparsecast {

/// Returns a without b: at most two boxes per dimension, disjoint.
std::vector<Box> subtract(const Box& a, const Box& b);

/// Routes detect and refresh one after another, so each route needs its own old bits. Where a rank sends an element in
/// several routes (engines with different cuts may have separate routes), the snapshot has several copies of the
/// element, in layers.
class ShardSnapshot {
 public:
  /// Copies are made in memory of memory->allocate().
  explicit ShardSnapshot(std::shared_ptr<ShardMemory> memory) : memory_(std::move(memory)) {}

  /// Prepares the snapshot for the routes that `rank` (of the world) sends under `plan`. Regions that the rank sends
  /// already stay as they are. For new regions, receivers are assumed to hold the current bytes. Local tensors without
  /// sent elements take no memory.
  void cover(const FanoutPlan& plan, int rank);
  /// Puts the plan of the last cover() in force. Until then the previous plan is in force, and its data is kept.
  void adopt();

  /// Returns views of the regions of a route of the covered plan: in the rank's tensors (live) and in the snapshot
  /// (held).
  std::vector<TensorRef> live(const FanoutPlan& plan, std::size_t route) const;
  std::vector<TensorRef> held(const FanoutPlan& plan, std::size_t route) const;
  /// Returns views of the held regions of a route of an anchor's plan, which sends only elements that the covered plan
  /// sends. Regions that no single layer holds are assembled in `scratch`.
  std::vector<TensorRef> held_for_anchor(const FanoutPlan& plan, std::size_t route, std::vector<Allocation>& scratch);

  ShardMemory& memory() const noexcept { return *memory_; }
  std::uint64_t bytes() const noexcept;

 private:
  /// Key: name of the canonical tensor and index of the local tensor.
  using Boxes = std::map<std::pair<std::string, std::uint32_t>, std::vector<Box>>;

  struct SnapshotLayer {
    std::vector<Allocation> copies;  ///< Parallel to the local tensors; null where nothing is sent.
    Boxes sent;                      ///< Boxes sent under the plan in force.
    Boxes covered;                   ///< Boxes sent under the proposed plan.
  };

  struct CoveredRoute {
    std::size_t layer = 0;
    std::vector<RegionView> views;
  };

  std::size_t layer_for(const FanoutPlan& plan, const Route& route, const std::vector<RegionView>& views);
  Allocation allocate_copy(std::uint32_t local) const;
  void take(std::size_t layer, const FanoutPlan& plan, const Region& region, const RegionView& view);
  std::byte* find_whole(const std::string& tensor, const Box& box, std::uint32_t local);
  TensorRef copy_at(std::uint32_t local, std::byte* data) const;
  Allocation put_together(const FanoutPlan& plan, const Region& region, const RegionView& view);

  std::shared_ptr<ShardMemory> memory_;
  std::vector<SnapshotLayer> layers_;
  std::map<std::size_t, CoveredRoute> routes_;  ///< Routes of the covered plan, by route number.
};

}  // namespace sparsecast
