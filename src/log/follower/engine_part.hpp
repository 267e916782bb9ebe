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

/// Returns the plan by which the tensors of a log reach the ranks of an engine, world ranks 0, 1, ...: the log is the
/// trainer, and one more rank. Throws Error{kUsage} when the engine does not hold all of the log's tensors.
FanoutPlan plan_from_log(const TensorTable& table, std::shared_ptr<const Layout> engine);

/// The live tensors of one rank. Not thread-safe.
class EnginePart {
 public:
  /// Reads the tensors for their digests. Throws as ShardedSubscriber does.
  EnginePart(std::shared_ptr<const TensorTable> table, std::shared_ptr<const FanoutPlan> plan, const Layout& layout,
             std::size_t rank, std::vector<TensorRef> local, const SubscriberOptions& options,
             const DeviceOptions& device);

  /// Returns what this rank adds to the digest of the version that it holds.
  StateDigest digest() const { return routes_.digest(); }
  bool dirty() const noexcept { return routes_.subscriber && routes_.subscriber->dirty(); }

  /// Stages this rank's part of a delta, and writes nothing. The digest of the whole base is for the caller to compare.
  void stage(const DeltaFile& delta);
  void discard() noexcept;
  /// Writes what is staged. The new digest() is for the caller to verify.
  void apply();
  void undo_last();
  void audit();
  void audit_next();
  /// Writes this rank's part of a checkpoint of the log's tensors, which then is `version`. The new digest() is for the
  /// caller to verify.
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
