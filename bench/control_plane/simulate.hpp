// SPDX-License-Identifier: Apache-2.0
#pragma once

// Discrete-event simulation of the collectives of a control channel: messages that wait for processors and networks.

#include <cstdint>
#include <vector>

#include "control_plane/world.hpp"

namespace sparsecast::bench {

/// Costs of the machines. The defaults of `message_seconds` and `byte_seconds` were measured with `control_plane --run`
/// (bench/results/2026-11-23-control-plane.md); the network's are those of a 10 Gb/s Ethernet within a cluster.
struct Costs {
  double message_seconds = 6e-6;     ///< Processor time of one message, at its sender and again at its receiver.
  double byte_seconds = 0.75e-9;     ///< Processor time of one byte at either end: encryption, copies.
  double latency_seconds = 30e-6;    ///< From a network card to another.
  double bytes_per_second = 1.25e9;  ///< Of a network card, each way.
};

/// How ranks are connected, and what travels.
struct Channel {
  int fan_in = 0;        ///< Most children of a rank of the tree; 0: a star, in which all are children of rank 0.
  bool reduces = false;  ///< Whether rank 0 combines the parts; otherwise all parts go to all ranks.
};

/// What a number of collectives cost.
struct Total {
  double seconds = 0;               ///< Until the last rank has the last result.
  std::uint64_t hub_in = 0;         ///< Bytes that rank 0 receives.
  std::uint64_t hub_out = 0;        ///< Bytes that it sends.
  std::uint64_t busiest = 0;        ///< Bytes in and out of the rank that has most.
  std::uint64_t path_messages = 0;  ///< Messages that are sent or received one after another before the end.
};

/// Runs the collectives one after another. Each rank begins one when it has the result of the one before.
Total simulate(const std::vector<Step>& steps, const Channel& channel, const Costs& costs);

}  // namespace sparsecast::bench
