// SPDX-License-Identifier: Apache-2.0
#pragma once

// A rank's own routes: each an ordinary delta stream, with one publisher for all that the rank sends, and a subscriber
// on each destination.

#include <algorithm>
#include <memory>
#include <vector>

#include "sharded/snapshot.hpp"
#include "sharded/sync_world.hpp"

namespace sparsecast {

/// Routes that a rank sends: the delta streams of one publisher, in the order in which its transfers take them.
struct SourceRoutes {
  std::vector<std::uint32_t> numbers;          ///< By stream: the route's number in the plan.
  std::unique_ptr<JoinedPublisher> publisher;  ///< Null on a rank that sends nothing.

  /// Returns the stream of a route, which must be one of these.
  std::size_t stream_of(std::uint32_t route) const;
  std::vector<StateDigest> base_digests() const;
};

struct DestinationRoute {
  std::uint32_t route = 0;
  bool counted = false;  ///< It adds the route's digest to its engine's.
  std::shared_ptr<const TensorTable> table;
  std::unique_ptr<Subscriber> subscriber;
};

/// Creates the routes that `rank` sends; the base of each is the snapshot.
SourceRoutes make_source_routes(const FanoutPlan& plan, int rank, ShardSnapshot& snapshot,
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
/// `of_streams` is parallel to the streams of `routes`.
std::vector<StateDigest> source_digests(const FanoutPlan& plan, const SourceRoutes& routes,
                                        const std::vector<StateDigest>& of_streams);
/// Returns the sum of the digests of the counted routes, for the vote.
StateDigest destination_digest(const std::vector<DestinationRoute>& routes);

/// Returns the destinations of this rank in a route.
std::vector<Destination> own_destinations(const Route& route, int rank);
/// Returns views of the route's regions in the rank's local tensors, for one destination, parallel to the route's
/// table.
std::vector<ShardView> destination_tensors(const FanoutPlan& plan, std::size_t route, const Destination& destination,
                                           const ShardMemory& memory);

}  // namespace sparsecast
