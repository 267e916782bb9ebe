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

/// Returns the elements of `a` that are not in `b`, as disjoint boxes, at most two per dimension.
std::vector<Box> subtract(const Box& a, const Box& b);

/// Copy of the elements that a trainer rank sends, with the bits that receivers hold. Each route finds its changes
/// against its own copy and updates the copy, one route after another. Where a rank sends an element in several routes
/// (engines with different cuts may have separate routes), the snapshot has several copies of the element, in layers.
class ShardSnapshot {
 public:
  /// Creates an empty snapshot of the tensors of `memory`. Its copies will be allocated by MemoryBackend::allocate().
  explicit ShardSnapshot(std::shared_ptr<ShardMemory> memory) : memory_(std::move(memory)) {}

  /// Prepares the snapshot for the routes that world rank `rank` sends under `plan`, the covered plan from here on.
  /// Copies of regions that the rank sends already are kept. For new regions, receivers are assumed to hold the current
  /// bytes. Local tensors without sent elements take no memory.
  void cover(const FanoutPlan& plan, int rank);
  /// Puts the plan of the last cover() in force. Until then the previous plan is in force, and its data is kept.
  void adopt();

  /// Returns a view of each region of a route, in the rank's current tensors. `plan` is the covered plan.
  std::vector<TensorRef> live(const FanoutPlan& plan, std::size_t route) const;
  /// Returns a view of each region of a route, in the snapshot. `plan` is the covered plan.
  std::vector<TensorRef> held(const FanoutPlan& plan, std::size_t route) const;
  /// Returns a view of each region of a route of `plan`, in the snapshot. `plan` is the plan of an anchor, which sends
  /// only elements that the covered plan sends. A region that no single layer holds is put together in new memory; this
  /// memory is appended to `scratch`, and the view is valid while it exists.
  std::vector<TensorRef> held_for_anchor(const FanoutPlan& plan, std::size_t route, std::vector<Allocation>& scratch);

  ShardMemory& memory() const noexcept { return *memory_; }
  /// Returns the size of all copies in bytes.
  std::uint64_t bytes() const noexcept;

 private:
  /// Boxes by the name of the canonical tensor and the index of the local tensor.
  using Boxes = std::map<std::pair<std::string, std::uint32_t>, std::vector<Box>>;

  struct SnapshotLayer {
    /// Copy of each local tensor, in which only the sent elements have defined values; null for a tensor without sent
    /// elements.
    std::vector<Allocation> copies;
    Boxes sent;     ///< Boxes sent under the plan in force.
    Boxes covered;  ///< Boxes sent under the covered plan, which adopt() puts in force.
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
