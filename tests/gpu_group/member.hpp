// SPDX-License-Identifier: Apache-2.0
#pragma once

// One rank of the group, a process of its own.

#include <chrono>
#include <cstdint>
#include <string>

namespace sparsecast::test {

struct GroupPlan {
  int ranks = 4;
  int versions = 10;
  bool kill = true;   ///< The last rank kills itself during a sync; the others go on without it, and then with a new
                      ///< process in its place.
  bool late = false;  ///< This process is that new one.
  bool over_nccl = true;   ///< Else over the control channel, without a device.
  bool on_device = false;  ///< Weights in device memory.
  bool sharded = false;    ///< The first half of the ranks are a trainer, the others an engine of another cut.
  std::uint64_t seed = 1;
  std::uint64_t width = 512;  ///< Width of the model, which has about 6 * width^2 weights.
  std::string directory;      ///< Directory where rank 0 writes its port.
  std::string secret;
  std::chrono::milliseconds timeout{20'000};  ///< Timeout of a meeting and of a sync.
};

/// The exit code of rank `rank`: 0 when every version was bit for bit the sender's, and a killed rank was noticed by
/// the deadline. What went wrong goes to the standard error.
int run_member(const GroupPlan& plan, int rank);

/// Runs a member of a sharded group on host memory; throws on failure.
void run_sharded_member(const GroupPlan& plan, int rank);

}  // namespace sparsecast::test
