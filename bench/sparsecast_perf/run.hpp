// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sparsecast_perf/group.hpp"
#include "sparsecast_perf/options.hpp"
#include "sparsecast_perf/plan.hpp"
#include "sparsecast_perf/report.hpp"
#include "sparsecast_perf/roster.hpp"

namespace sparsecast::perf {

/// What makes a run's rows. Every call is collective.
class Benchmark {
 public:
  virtual ~Benchmark() = default;
  /// On rank 0.
  virtual Header header() const = 0;
  virtual void warm_up() = 0;
  /// One step; false when the run is over.
  virtual bool step(Row& row) = 0;
};

/// A source's weights, from rank 0 to all others.
std::unique_ptr<Benchmark> make_broadcast(const Options& options, const Plan& plan, Group& group);
/// A trainer and its engines, by layouts.
std::unique_ptr<Benchmark> make_fanout(const Options& options, const Plan& plan, const LayoutPair& layouts,
                                       const Roster& roster, Group& group);

/// One rank's part of a run; rank 0 prints the table. True on every rank when nothing was wrong. Throws Error.
bool run(Benchmark& benchmark, const Options& options, Group& group);

}  // namespace sparsecast::perf
