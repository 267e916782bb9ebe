// SPDX-License-Identifier: Apache-2.0
#pragma once

// A rank's own routes. Each is an ordinary delta stream; one publisher has all routes that the rank sends, and one
// subscriber all routes that it receives.

#include <memory>
#include <vector>

#include "sharded/snapshot.hpp"
#include "sharded/sync_world.hpp"

namespace sparsecast {

/// Routes that a rank sends: the delta streams of one publisher, in the order in which its transfers take them.
struct SourceRoutes {
  std::vector<std::uint32_t> numbers;         ///< By stream: the route's number in the plan.
  std::unique_ptr<PublisherState> publisher;  ///< Null on a rank that sends nothing.

  /// Returns the stream of a route, which must be one that this rank sends.
  std::size_t stream_of(std::uint32_t route) const;
  std::vector<StateDigest> base_digests() const;
};

/// A place of a route in this rank's memory.
struct OwnDestination {
  std::uint32_t route = 0;
  bool counted = false;  ///< The place adds the route's digest to its engine's.
};

/// Routes that a rank receives: the delta streams of one subscriber, one for each place, in ascending order of routes.
struct DestinationRoutes {
  std::vector<OwnDestination> places;           ///< By stream.
  std::unique_ptr<SubscriberState> subscriber;  ///< Null on a rank that receives nothing.

  /// Streams [begin, end) of a route; none where the rank does not receive it.
  struct Streams {
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  Streams streams_of(std::uint32_t route) const;
  /// Returns the sum of the digests of the counted places, for the vote.
  StateDigest digest() const;
};

/// Creates the routes that `rank` sends; the base of each is the snapshot.
SourceRoutes make_source_routes(const FanoutPlan& plan, int rank, ShardSnapshot& snapshot,
                                const PublisherOptions& options);
/// Creates the routes that `rank` receives. Reads all of the regions, for their digests.
DestinationRoutes make_destination_routes(const FanoutPlan& plan, int rank, ShardMemory& memory,
                                          const SubscriberOptions& options);

/// Returns the digests that a source contributes to the vote: one per engine of the plan, then the digest of all
/// tensors. `of_streams` is parallel to the streams of `routes`.
std::vector<StateDigest> source_digests(const FanoutPlan& plan, const SourceRoutes& routes,
                                        const std::vector<StateDigest>& of_streams);

/// Returns the destinations of this rank in a route.
std::vector<Destination> own_destinations(const Route& route, int rank);
/// Returns views of the route's regions in the rank's local tensors, for one destination, parallel to the route's
/// table.
std::vector<TensorRef> destination_tensors(const FanoutPlan& plan, std::size_t route, const Destination& destination,
                                           const ShardMemory& memory);

}  // namespace sparsecast
