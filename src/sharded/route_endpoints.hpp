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
  std::vector<std::uint32_t> numbers;         ///< Number, in the plan, of the route of each stream.
  std::unique_ptr<PublisherState> publisher;  ///< Null on a rank that sends nothing.

  /// Returns the index of the stream of route number `route`, which this rank must send.
  std::size_t stream_of(std::uint32_t route) const;
  /// Returns the digest of each stream at the committed version.
  std::vector<StateDigest> base_digests() const;
};

/// A destination of a route on this rank.
struct OwnDestination {
  std::uint32_t route = 0;
  bool counted = false;  ///< Whether the digest of this destination is added to the engine's digest.
};

/// Routes that a rank receives: the delta streams of one subscriber. There is one stream for each destination on this
/// rank, in ascending order of routes.
struct DestinationRoutes {
  std::vector<OwnDestination> places;           ///< The destination that each stream writes to.
  std::unique_ptr<SubscriberState> subscriber;  ///< Null on a rank that receives nothing.

  /// Range [begin, end) of streams that belong to one route; empty when the rank does not receive the route.
  struct Streams {
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  Streams streams_of(std::uint32_t route) const;
  /// Returns the sum of the digests of the streams whose destination is counted, for the vote.
  StateDigest digest() const;
};

/// Creates the publisher of the routes that world rank `rank` sends. First prepares `snapshot` for them
/// (ShardSnapshot::cover); it has the base of each route.
SourceRoutes make_source_routes(const FanoutPlan& plan, int rank, ShardSnapshot& snapshot,
                                const PublisherOptions& options);
/// Creates the subscriber of the routes that world rank `rank` receives into `memory`. Reads all elements of these
/// routes, for their digests.
DestinationRoutes make_destination_routes(const FanoutPlan& plan, int rank, ShardMemory& memory,
                                          const SubscriberOptions& options);

/// Returns the part of one source in the digests that are voted on: a sum for each engine of the plan, then the sum for
/// all tensors. `of_streams` has the digest of each stream of `routes`. Each digest is added to the sums for which its
/// route counts.
std::vector<StateDigest> source_digests(const FanoutPlan& plan, const SourceRoutes& routes,
                                        const std::vector<StateDigest>& of_streams);

/// Returns the destinations of a route on world rank `rank`.
std::vector<Destination> own_destinations(const Route& route, int rank);
/// Returns a view of each region of the route at one destination, in the local tensors of `memory`. The views are
/// parallel to the route's table.
std::vector<TensorRef> destination_tensors(const FanoutPlan& plan, std::size_t route, const Destination& destination,
                                           const ShardMemory& memory);

}  // namespace sparsecast
