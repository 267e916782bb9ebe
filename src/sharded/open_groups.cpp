#include <algorithm>

#include "sharded/nccl_groups.hpp"
#include "sparsecast/sharded.hpp"
#include "sparsecast/tcp_transport.hpp"

namespace sparsecast {
namespace {

/// The channel of this round that the rank is a member of, or -1: its color in a split.
int own_channel(const FanoutPlan& plan, std::uint32_t round, int rank) {
  const std::vector<Channel>& channels = plan.channels();
  const auto found = std::ranges::find_if(channels, [&](const Channel& channel) {
    return channel.round == round && std::ranges::binary_search(channel.members, rank);
  });
  return found == channels.end() ? -1 : static_cast<int>(found - channels.begin());
}

/// Opens the channels round by round; split(color) makes the rank's one, or null.
template <class Split>
std::vector<std::unique_ptr<Transport>> split_by_round(const FanoutPlan& plan, int rank, const Split& split) {
  std::vector<std::unique_ptr<Transport>> open(plan.channels().size());
  for (std::uint32_t round = 0; round < plan.rounds(); ++round) {
    const int own = own_channel(plan, round, rank);
    std::unique_ptr<Transport> made = split(own);
    if (own >= 0) open[static_cast<std::size_t>(own)] = std::move(made);
  }
  return open;
}

}  // namespace

ChannelOpener open_control_channels() {
  return [](ControlChannel& world, const FanoutPlan& plan, Deadline deadline) {
    return split_by_round(plan, world.rank(), [&](int own) -> std::unique_ptr<Transport> {
      std::shared_ptr<ControlChannel> part = world.split(own, world.rank(), deadline);
      return part ? make_tcp_transport(std::move(part)) : nullptr;
    });
  };
}

ChannelOpener split_nccl_channels(NcclWorldOpener open_world) {
  return [open_world = std::move(open_world)](ControlChannel& world, const FanoutPlan& plan, Deadline deadline) {
    const auto all = open_world(world.split(0, world.rank(), deadline), deadline);
    return split_by_round(plan, world.rank(), [&](int own) -> std::unique_ptr<Transport> {
      return all->split(own, world.rank(), deadline);
    });
  };
}

ChannelOpener open_nccl_channels(const NcclOptions& options) {
  return split_nccl_channels([options](std::shared_ptr<ControlChannel> control, Deadline deadline) {
    return NcclTransport::open(std::move(control), options, deadline);
  });
}

}  // namespace sparsecast
