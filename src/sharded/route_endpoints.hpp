// SPDX-License-Identifier: Apache-2.0
#pragma once

// A rank's own routes: each an ordinary delta stream, with a publisher on its source and a subscriber on each
// destination.

#include <algorithm>
#include <memory>
#include <vector>

#include "sharded/snapshot.hpp"
#include "sharded/sync_world.hpp"

namespace sparsecast {

struct SourceRoute {
  std::uint32_t route = 0;
  std::shared_ptr<const TensorTable> table;
  std::unique_ptr<Publisher> publisher;
};

struct DestinationRoute {
  std::uint32_t route = 0;
  bool counted = false;  ///< It adds the route's digest to its engine's.
  std::shared_ptr<const TensorTable> table;
  std::unique_ptr<Subscriber> subscriber;
};

/// Creates the routes that `rank` sends, in ascending order; the base of each publisher is the snapshot.
std::vector<SourceRoute> make_source_routes(const FanoutPlan& plan, int rank, ShardSnapshot& snapshot,
                                            const PublisherOptions& options);
/// Creates the routes that `rank` receives, in ascending order. Reads all of the regions, for their digests.
std::vector<DestinationRoute> make_destination_routes(const FanoutPlan& plan, int rank, ShardMemory& memory,
                                                      const SubscriberOptions& options);

/// Returns the entry of this route number, which must exist.
template <class OwnRoute>
OwnRoute& find_route(std::vector<OwnRoute>& routes, std::uint32_t route) {
  return *std::ranges::lower_bound(routes, route, {}, &OwnRoute::route);
}

/// Returns the digests that a source contributes to the vote: one per engine of the plan, then that of all tensors.
/// `of_routes` is parallel to `routes`.
std::vector<StateDigest> source_digests(const FanoutPlan& plan, const std::vector<SourceRoute>& routes,
                                        const std::vector<StateDigest>& of_routes);
/// Returns the sum of the digests of the counted routes, for the vote.
StateDigest destination_digest(const std::vector<DestinationRoute>& routes);

/// Returns the destinations of this rank in a route.
std::vector<Destination> own_destinations(const Route& route, int rank);
/// Returns views of the route's regions in the rank's local tensors, for one destination, parallel to the route's
/// table.
std::vector<ShardView> destination_tensors(const FanoutPlan& plan, std::size_t route, const Destination& destination,
                                           const ShardMemory& memory);

}  // namespace sparsecast
