// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "sparsecast/fanout_plan.hpp"
#include "support/random.hpp"

namespace sparsecast::test {

struct RandomFanout {
  Participant trainer;
  std::vector<Participant> engines;
  Participant spare;  ///< Another engine, which may join and leave.
  PlanOptions options;
};

/// A trainer and one to three engines that hold the same few small tensors of 0 to 4 dimensions: cut unevenly and
/// differently, replicated, in several places of a rank, permuted, with pitches and padding, several in one local
/// tensor, interleaved, tied, on several nodes. A plan of them succeeds. Some replicas of the trainer have no base.
RandomFanout random_fanout(Random& random);

}  // namespace sparsecast::test
