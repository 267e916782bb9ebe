#pragma once

// A fan-out plan with everything that `sparsecast plan` says of it, in whatever form.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sparsecast/fanout_plan.hpp"
#include "sparsecast/io.hpp"
#include "sparsecast/plan_cost.hpp"
#include "tools/plan/plan_names.hpp"

namespace sparsecast::tools {

/// What is asked, in the units of the command line.
struct PlanRequest {
  std::string trainer_file;
  std::string engine_file;
  std::size_t engines = 1;
  std::uint64_t scale_down = 1;
  PlanOptions options;
  double node_gigabytes_per_second = 400;
  double world_gigabytes_per_second = 50;
  double latency_microseconds = 50;
  double density_percent = 1;
  double bytes_per_change = 1.3;
};

struct GroupStudy {
  std::vector<std::uint32_t> routes;
  std::uint64_t dense_bytes = 0;     ///< Of its routes, each once.
  std::vector<NamePattern> tensors;  ///< Most bytes first.
  std::map<int, double> sent;        ///< By source: bytes of deltas.
  std::map<int, double> received;    ///< By receiver: bytes of deltas for it.
  double delta_bytes = 0;            ///< Of its routes, each once.
  double foreign_bytes = 0;          ///< What members get for nothing, all together.
};

struct PlanStudy {
  PlanRequest request;
  CostModel model;
  std::unique_ptr<FanoutPlan> plan;
  PlanCost cost;
  double anchor_seconds = 0;  ///< On the wire, when every engine is seeded with all bytes.
  double read_seconds = 0;
  double plan_seconds = 0;
  double delta_bytes = 0;              ///< Of all routes, each once.
  std::vector<GroupStudy> groups;  ///< Parallel to plan->groups().
  std::vector<std::size_t> participant_of;   ///< Parallel to cost.ranks: 0 the trainer, i + 1 engine i.
  std::vector<std::size_t> first_of;   ///< By participant: where its ranks begin in cost.ranks.

  const Participant& participant(std::size_t index) const;
  /// The machine of cost.ranks[i]; may be empty.
  const std::string& node_of(std::size_t i) const;
  std::size_t receivers() const;  ///< Ranks of all engines.
};

/// World ranks are the trainer's, then those of one engine after another. Replicas after the first are taken to be on
/// nodes of their own.
PlanStudy study_plan(FileSystem& fs, const PlanRequest& request);

/// A number a rank, as its least, its middle and its largest.
struct Spread {
  double least = 0;
  double median = 0;
  double most = 0;
};
/// Of the ranks of a participant (PlanStudy::participant_of); zeros when it has none.
Spread spread_of(const PlanStudy& study, std::size_t participant, double (*value)(const RankCost&));

/// A number of a rank that is shown, for people and for machines.
struct RankColumn {
  const char* key;
  const char* label;
  double (*value)(const RankCost&);
};
/// Bytes sent, received and foreign; weights, snapshot and staging.
const std::vector<RankColumn>& rank_columns();

}  // namespace sparsecast::tools
