// SPDX-License-Identifier: Apache-2.0
#pragma once

// The control plane's own code over TCP on loopback, with every rank on a thread of this process.

#include <chrono>
#include <string>
#include <vector>

#include "control_plane/world.hpp"

namespace sparsecast::bench {

/// A step of rank 0, the hub.
struct HubStep {
  std::string name;
  double seconds = 0;            ///< Wall time, in which this machine also did the work of all other ranks.
  double processor_seconds = 0;  ///< Of the hub's thread alone.
};

/// Meets and votes with all ranks; votes and agreements are means of `repeats`. `reduces`: one rank combines, as
/// channels do; otherwise all parts go to all ranks. Throws what the ranks throw, rank 0's error first.
std::vector<HubStep> run_world(const World& world, bool reduces, int repeats, std::chrono::milliseconds timeout);

}  // namespace sparsecast::bench
