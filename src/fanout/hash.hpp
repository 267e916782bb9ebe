// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sparsecast/fanout_plan.hpp"

namespace sparsecast::fanout {

/// XXH3-128 of everything that ranks must agree on: participants, the hashes of their layouts, options, and the plan
/// itself.
Hash128 hash_plan(const FanoutPlan& plan, const PlanOptions& options);

}  // namespace sparsecast::fanout
