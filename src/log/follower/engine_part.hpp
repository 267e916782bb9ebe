// SPDX-License-Identifier: Apache-2.0
#pragma once

// The part of a log's tensors that one rank of an engine holds: what it stages of a delta, and writes.

#include <memory>
#include <vector>

#include "checkpoint/checkpoint_store.hpp"
#include "endpoint/cut.hpp"
#include "sharded/route_endpoints.hpp"
#include "sparsecast/delta.hpp"

namespace sparsecast {

/// Returns the plan by which the tensors of a log reach the ranks of an engine. The engine has world ranks 0, 1, ...;
/// the log takes the part of a trainer with a single rank, the next world rank. Throws Error{kUsage} if the engine does
/// not hold all of the log's tensors.
FanoutPlan plan_from_log(const TensorTable& table, std::shared_ptr<const Layout> engine);

/// The live tensors of one rank of an engine. Not thread-safe.
class EnginePart {
 public:
  /// Takes the tensors `local` of rank `rank`, and reads them to compute their digests. Throws Error{kUsage} if a
  /// tensor does not fit the layout, and kUnsupported if there is no device backend for tensors on a device.
  EnginePart(std::shared_ptr<const TensorTable> table, std::shared_ptr<const FanoutPlan> plan, const Layout& layout,
             std::size_t rank, std::vector<TensorRef> local, const SubscriberOptions& options,
             const DeviceOptions& device);

  /// Returns this rank's part of the digest of the version that it holds. The digest of the version is the sum over all
  /// ranks.
  StateDigest digest() const { return routes_.digest(); }
  bool dirty() const noexcept { return routes_.subscriber && routes_.subscriber->dirty(); }

  /// Stages this rank's part of a delta, and writes nothing to the tensors. The caller must check that the base digest
  /// of the delta is the digest of all ranks together.
  void stage(const DeltaFile& delta);
  void discard() noexcept;
  /// Writes the staged delta to the tensors. The caller must verify the new digest().
  void apply();
  void undo_last();
  void audit();
  void audit_next();
  /// Overwrites the tensors with this rank's part of a checkpoint of the log's tensors. They then are at version
  /// `version`. The caller must verify the new digest().
  void overwrite(const CheckpointStore& store, std::uint64_t version);

 private:
  void write_region(const CheckpointStore& store, const Region& region, std::size_t number, RegionWriter& writer) const;

  std::shared_ptr<const TensorTable> table_;
  std::shared_ptr<const FanoutPlan> plan_;
  std::shared_ptr<ShardMemory> memory_;
  int rank_;
  DestinationRoutes routes_;
};

}  // namespace sparsecast
