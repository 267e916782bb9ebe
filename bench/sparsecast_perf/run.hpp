#pragma once

#include "sparsecast_perf/group.hpp"
#include "sparsecast_perf/options.hpp"
#include "sparsecast_perf/plan.hpp"

namespace sparsecast::perf {

/// One rank's part of a run; rank 0 prints the table. True on every rank when nothing was wrong. Throws Error.
bool run(const Options& options, const Plan& plan, Group& group);

}  // namespace sparsecast::perf
