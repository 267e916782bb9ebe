#include "sparsecast_perf/dense_routes.hpp"

#include <algorithm>

namespace sparsecast::perf {

DenseLanes::DenseLanes(const FanoutPlan& plan, ControlChannel& world, const ChannelOpener& open, Deadline deadline)
    : channels_(open(world, plan, deadline)) {
  for (const Transfer& transfer : plan.transfers()) {
    const std::vector<int>& members = plan.channels()[transfer.channel].members;
    if (!std::ranges::binary_search(members, world.rank())) continue;
    Turn turn;
    turn.channel = channels_[transfer.channel].get();
    turn.source = static_cast<int>(std::ranges::lower_bound(members, transfer.source) - members.begin());
    for (const std::uint32_t lane : transfer.lanes) turn.bytes += plan.lanes()[lane].bytes;
    turns_.push_back(turn);
  }
}

void DenseLanes::broadcast(Deadline deadline) {
  for (const Turn& turn : turns_) {
    for (std::uint64_t left = turn.bytes; left != 0;) {
      const std::uint64_t piece = std::min(left, kPieceBytes);
      const bool own = turn.channel->rank() == turn.source;
      if (own) own_[0].resize(piece);
      turn.channel->broadcast(own ? own_ : received_, turn.source, deadline);
      left -= piece;
    }
  }
}

}  // namespace sparsecast::perf
