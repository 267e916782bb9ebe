#include <algorithm>

#include "sharded/nccl_groups.hpp"
#include "sparsecast/sharded.hpp"
#include "sparsecast/tcp_transport.hpp"

namespace sparsecast {
namespace {

/// The group of this round that the rank is a member of, or -1: its color in a split.
int own_group(const FanoutPlan& plan, std::uint32_t round, int rank) {
  const std::vector<RouteGroup>& groups = plan.groups();
  const auto found = std::ranges::find_if(groups, [&](const RouteGroup& group) {
    return group.round == round && std::ranges::binary_search(group.members, rank);
  });
  return found == groups.end() ? -1 : static_cast<int>(found - groups.begin());
}

/// Opens the groups round by round; split(color) makes the rank's one, or null.
template <class Split>
std::vector<std::unique_ptr<Transport>> split_by_round(const FanoutPlan& plan, int rank, const Split& split) {
  std::vector<std::unique_ptr<Transport>> open(plan.groups().size());
  for (std::uint32_t round = 0; round < plan.rounds(); ++round) {
    const int own = own_group(plan, round, rank);
    std::unique_ptr<Transport> made = split(own);
    if (own >= 0) open[static_cast<std::size_t>(own)] = std::move(made);
  }
  return open;
}

}  // namespace

GroupOpener open_control_groups() {
  return [](ControlChannel& world, const FanoutPlan& plan, Deadline deadline) {
    return split_by_round(plan, world.rank(), [&](int own) -> std::unique_ptr<Transport> {
      std::shared_ptr<ControlChannel> region = world.split(own, world.rank(), deadline);
      return region ? make_tcp_transport(std::move(region)) : nullptr;
    });
  };
}

GroupOpener split_nccl_groups(NcclWorldOpener open_world) {
  return [open_world = std::move(open_world)](ControlChannel& world, const FanoutPlan& plan, Deadline deadline) {
    const auto all = open_world(world.split(0, world.rank(), deadline), deadline);
    return split_by_round(plan, world.rank(), [&](int own) -> std::unique_ptr<Transport> {
      return all->split(own, world.rank(), deadline);
    });
  };
}

GroupOpener open_nccl_groups(const NcclOptions& options) {
  return split_nccl_groups([options](std::shared_ptr<ControlChannel> control, Deadline deadline) {
    return NcclTransport::open(std::move(control), options, deadline);
  });
}

}  // namespace sparsecast
