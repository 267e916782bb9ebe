// SPDX-License-Identifier: Apache-2.0
#pragma once

// A rank's end of the syncs: a trainer on rank 0, a receiver elsewhere.

#include <memory>

#include "gpu_group/transport.hpp"
#include "sparsecast/sync.hpp"
#include "tests/support/training_model.hpp"

namespace sparsecast::test {

/// Header of an anchor beside the weights.
struct AnchorHead {
  std::uint64_t version = 0;
  StateDigest digest;
};

class Replica {
 public:
  virtual ~Replica() = default;
  /// Rank 0: one step of training.
  virtual void train() = 0;
  /// One sync as sender (rank 0) or receiver.
  virtual SyncReport sync(GroupChannel& channel, std::chrono::milliseconds timeout) = 0;
  /// Rank 0: of the weights as they are.
  virtual AnchorHead head() const = 0;
  /// A receiver: overwrites the live weights with an anchor.
  virtual void bring_up(const Storage& weights, const AnchorHead& head) = 0;
  /// The live weights as they are now, on the host.
  virtual Storage weights() const = 0;
  virtual const TensorTable& table() const = 0;
};

/// Weights in host memory; every rank makes the same model from `seed`.
std::unique_ptr<Replica> make_host_replica(int rank, std::uint64_t seed, std::uint64_t width);
/// Makes a replica in memory of the current device; over NCCL the frames stay there.
std::unique_ptr<Replica> make_device_replica(int rank, std::uint64_t seed, std::uint64_t width);

}  // namespace sparsecast::test
