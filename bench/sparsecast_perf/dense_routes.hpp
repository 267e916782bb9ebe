// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "sparsecast/sharded.hpp"

namespace sparsecast::perf {

/// What a dense resharding by the same plan costs on the wire, at the least: every route's bytes over groups of its
/// own kind, in the plan's order, out of one contiguous buffer. Nothing is gathered on the sender or scattered on the
/// receiver, as a real one would have to.
class DenseRoutes {
 public:
  /// Collective over `world`, whose rank this is. `plan` outlives it.
  DenseRoutes(const FanoutPlan& plan, ControlChannel& world, const GroupOpener& open, Deadline deadline);

  /// Collective: once all routes.
  void broadcast(Deadline deadline);

 private:
  /// The most that lies in memory at once.
  static constexpr std::uint64_t kPieceBytes = std::uint64_t{64} << 20;

  struct Turn {
    Transport* group = nullptr;
    int source = 0;  ///< Rank in the group.
    std::uint64_t bytes = 0;
  };

  std::vector<std::unique_ptr<Transport>> groups_;
  std::vector<Turn> turns_;
  std::vector<Bytes> own_{1};
  std::vector<Bytes> received_;
};

}  // namespace sparsecast::perf
