// SPDX-License-Identifier: Apache-2.0
#include "sparsecast_perf/dense_routes.hpp"

#include <algorithm>

namespace sparsecast::perf {

DenseRoutes::DenseRoutes(const FanoutPlan& plan, ControlChannel& world, const GroupOpener& open, Deadline deadline)
    : groups_(open(world, plan, deadline)) {
  for (const Transfer& transfer : plan.transfers()) {
    const std::vector<int>& members = plan.groups()[transfer.group].members;
    if (!std::ranges::binary_search(members, world.rank())) continue;
    Turn turn;
    turn.group = groups_[transfer.group].get();
    turn.source = static_cast<int>(std::ranges::lower_bound(members, transfer.source) - members.begin());
    for (const std::uint32_t route : transfer.routes) turn.bytes += plan.routes()[route].bytes;
    turns_.push_back(turn);
  }
}

void DenseRoutes::broadcast(Deadline deadline) {
  for (const Turn& turn : turns_) {
    for (std::uint64_t left = turn.bytes; left != 0;) {
      const std::uint64_t piece = std::min(left, kPieceBytes);
      const bool own = turn.group->rank() == turn.source;
      if (own) own_[0].resize(piece);
      turn.group->broadcast(own ? own_ : received_, turn.source, deadline);
      left -= piece;
    }
  }
}

}  // namespace sparsecast::perf
