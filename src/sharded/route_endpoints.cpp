// SPDX-License-Identifier: Apache-2.0
#include "sharded/route_endpoints.hpp"

#include <algorithm>
#include <optional>

namespace sparsecast {
namespace {

/// Returns the index, in the plan, of the engine that world rank `rank` belongs to; nullopt when there is none.
std::optional<std::size_t> own_engine(const FanoutPlan& plan, int rank) {
  for (std::size_t e = 0; e < plan.engines().size(); ++e) {
    if (std::ranges::find(plan.engines()[e].ranks, rank) != plan.engines()[e].ranks.end()) return e;
  }
  return std::nullopt;
}

/// Returns true when the route's digest is added to the engine's for this destination: it is the first of the engine's
/// destinations in a route that the engine counts.
bool counts(const FanoutPlan& plan, const Route& route, std::size_t engine, const Destination& destination) {
  if (std::ranges::find(route.counted_by, engine) == route.counted_by.end()) return false;
  const std::vector<int>& ranks = plan.engines()[engine].ranks;
  const auto first = std::ranges::find_if(route.destinations, [&](const Destination& other) {
    return std::ranges::find(ranks, other.rank) != ranks.end();
  });
  return first != route.destinations.end() && *first == destination;
}

}  // namespace

std::vector<Destination> own_destinations(const Route& route, int rank) {
  std::vector<Destination> own;
  std::ranges::copy_if(route.destinations, std::back_inserter(own),
                       [&](const Destination& destination) { return destination.rank == rank; });
  return own;
}

std::size_t SourceRoutes::stream_of(std::uint32_t route) const {
  return static_cast<std::size_t>(std::ranges::find(numbers, route) - numbers.begin());
}

std::vector<StateDigest> SourceRoutes::base_digests() const {
  return publisher ? publisher->digests() : std::vector<StateDigest>{};
}

SourceRoutes make_source_routes(const FanoutPlan& plan, int rank, ShardSnapshot& snapshot,
                                const PublisherOptions& options) {
  snapshot.cover(plan, rank);
  SourceRoutes own;
  for (const Transfer& transfer : plan.transfers()) {
    if (transfer.source == rank) own.numbers.insert(own.numbers.end(), transfer.routes.begin(), transfer.routes.end());
  }
  if (own.numbers.empty()) return own;
  std::vector<std::shared_ptr<const TensorTable>> tables;
  std::vector<TensorRef> live;
  std::vector<TensorRef> held;
  for (const std::uint32_t route : own.numbers) {
    tables.push_back(std::make_shared<const TensorTable>(plan.route_table(route)));
    std::ranges::move(snapshot.live(plan, route), std::back_inserter(live));
    std::ranges::move(snapshot.held(plan, route), std::back_inserter(held));
  }
  own.publisher =
      snapshot.memory().make_publisher(JoinedTables(std::move(tables)), std::move(live), std::move(held), options);
  return own;
}

std::vector<TensorRef> destination_tensors(const FanoutPlan& plan, std::size_t route, const Destination& destination,
                                           const ShardMemory& memory) {
  return refs_in(plan, route, plan.destination_views(route, destination),
                 [&](std::size_t, std::uint32_t local) { return memory.local()[local]; });
}

DestinationRoutes::Streams DestinationRoutes::streams_of(std::uint32_t route) const {
  // Not equal_range: its subrange is more than clang 14 can read of GCC 12's library.
  const auto first = std::ranges::lower_bound(places, route, {}, &OwnDestination::route);
  const auto last = std::ranges::upper_bound(first, places.end(), route, {}, &OwnDestination::route);
  return {static_cast<std::size_t>(first - places.begin()), static_cast<std::size_t>(last - places.begin())};
}

StateDigest DestinationRoutes::digest() const {
  StateDigest total;
  for (std::size_t s = 0; s < places.size(); ++s) {
    if (places[s].counted) total += subscriber->digest(s);
  }
  return total;
}

DestinationRoutes make_destination_routes(const FanoutPlan& plan, int rank, ShardMemory& memory,
                                          const SubscriberOptions& options) {
  const std::optional<std::size_t> engine = own_engine(plan, rank);
  DestinationRoutes own;
  std::vector<std::shared_ptr<const TensorTable>> tables;
  std::vector<TensorRef> live;
  for (std::uint32_t l = 0; l < plan.routes().size(); ++l) {
    const std::vector<Destination> destinations = own_destinations(plan.routes()[l], rank);
    if (destinations.empty()) continue;
    const auto table = std::make_shared<const TensorTable>(plan.route_table(l));
    for (const Destination& destination : destinations) {
      own.places.push_back({l, engine && counts(plan, plan.routes()[l], *engine, destination)});
      tables.push_back(table);
      std::ranges::move(destination_tensors(plan, l, destination, memory), std::back_inserter(live));
    }
  }
  if (!own.places.empty())
    own.subscriber = memory.make_subscriber(JoinedTables(std::move(tables)), std::move(live), options);
  return own;
}

std::vector<StateDigest> source_digests(const FanoutPlan& plan, const SourceRoutes& routes,
                                        const std::vector<StateDigest>& of_streams) {
  std::vector<StateDigest> digests(plan.engines().size() + 1);
  for (std::size_t s = 0; s < routes.numbers.size(); ++s) {
    const Route& route = plan.routes()[routes.numbers[s]];
    for (const std::uint32_t engine : route.counted_by) digests[engine] += of_streams[s];
    if (route.counted_in_state) digests.back() += of_streams[s];
  }
  return digests;
}

}  // namespace sparsecast
