// SPDX-License-Identifier: Apache-2.0
#include "fanout/schedule.hpp"

#include <algorithm>
#include <map>
#include <queue>
#include <tuple>

namespace sparsecast::fanout {
namespace {

struct Pending {
  Transfer transfer;
  std::uint64_t bytes = 0;
};

struct Queue {
  std::vector<Pending> transfers;      ///< Pending transfers, ordered by source.
  std::vector<std::uint32_t> members;  ///< Dense.
  std::size_t next = 0;
  std::uint64_t bytes_left = 0;
};

std::vector<Queue> make_queues(const WorldRanks& world, const std::vector<Route>& routes,
                               const std::vector<RouteGroup>& groups) {
  std::vector<Queue> queues(groups.size());
  for (std::uint32_t l = 0; l < routes.size(); ++l) {
    Queue& queue = queues[routes[l].group];
    // Routes are ordered by source.
    if (queue.transfers.empty() || queue.transfers.back().transfer.source != routes[l].source) {
      queue.transfers.push_back({{routes[l].group, routes[l].source, {}}, 0});
    }
    queue.transfers.back().transfer.routes.push_back(l);
    queue.transfers.back().bytes += routes[l].bytes;
    queue.bytes_left += routes[l].bytes;
  }
  for (std::size_t c = 0; c < groups.size(); ++c) {
    for (const int rank : groups[c].members) queues[c].members.push_back(world.place_of(rank));
  }
  return queues;
}

struct TransferStart {
  std::uint64_t time = 0;
  std::uint64_t bytes_left = 0;
  std::uint32_t group = 0;
  bool operator<(const TransferStart& other) const {  // The last in order is the next to start.
    return std::tie(other.time, bytes_left, other.group) < std::tie(time, other.bytes_left, group);
  }
};

}  // namespace

Schedule schedule_transfers(const WorldRanks& world, const std::vector<Route>& routes,
                            const std::vector<RouteGroup>& groups) {
  std::vector<Queue> queues = make_queues(world, routes, groups);
  std::vector<std::uint64_t> free_at(world.size());
  std::priority_queue<TransferStart> starts;
  for (std::uint32_t c = 0; c < queues.size(); ++c) starts.push({0, queues[c].bytes_left, c});
  Schedule schedule;
  while (!starts.empty()) {
    const TransferStart start = starts.top();
    starts.pop();
    Queue& queue = queues[start.group];
    std::uint64_t time = 0;
    for (const std::uint32_t member : queue.members) time = std::max(time, free_at[member]);
    if (time > start.time) {  // Members have become busy since this was queued.
      starts.push({time, start.bytes_left, start.group});
      continue;
    }
    Pending& pending = queue.transfers[queue.next++];
    for (const std::uint32_t member : queue.members) free_at[member] = time + pending.bytes;
    queue.bytes_left -= pending.bytes;
    schedule.length = std::max(schedule.length, time + pending.bytes);
    schedule.transfers.push_back(std::move(pending.transfer));
    if (queue.next < queue.transfers.size()) starts.push({time + pending.bytes, queue.bytes_left, start.group});
  }
  return schedule;
}

}  // namespace sparsecast::fanout
