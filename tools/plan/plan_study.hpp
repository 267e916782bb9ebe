// SPDX-License-Identifier: Apache-2.0
#pragma once

// A fan-out plan with all numbers that `sparsecast plan` prints in any format.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sparsecast/fanout_plan.hpp"
#include "sparsecast/io.hpp"
#include "tools/plan/plan_names.hpp"

namespace sparsecast::tools {

/// Options of `sparsecast plan`, in the units of the command line.
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
  std::string ends = "device";  ///< Where the weights lie: "device" or "host".
};

struct GroupStudy {
  std::vector<std::uint32_t> routes;
  std::uint64_t dense_bytes = 0;       ///< Bytes of the weights of the group's routes, each route counted once.
  std::vector<TensorPattern> tensors;  ///< Patterns of the names of the group's tensors, most bytes first.
  std::map<int, double> sent;          ///< Bytes of deltas that each source sends, by world rank.
  std::map<int, double> received;      ///< Bytes of deltas that each receiver needs, by world rank.
  double delta_bytes = 0;              ///< Bytes of deltas of its routes, each counted once.
  double foreign_bytes = 0;            ///< Bytes that members receive without needing them, summed over the members.
};

struct PlanStudy {
  PlanRequest request;
  CostModel model;
  std::unique_ptr<FanoutPlan> plan;
  PlanCost cost;
  double anchor_seconds = 0;  ///< Seconds on the wire to seed every engine with all bytes.
  double read_seconds = 0;
  double plan_seconds = 0;
  double delta_bytes = 0;          ///< Bytes of deltas of all routes, each counted once.
  std::vector<GroupStudy> groups;  ///< What is predicted for each group of plan->groups().
  /// For each entry of cost.ranks, the number of its participant: 0 for the trainer, i + 1 for engine i.
  std::vector<std::size_t> participant_of;
  std::vector<std::size_t> first_of;  ///< For each participant, the index in cost.ranks of its first rank.

  const Participant& participant(std::size_t index) const;
  /// Returns the name of the node of cost.ranks[i]; empty if it is not known.
  const std::string& node_of(std::size_t i) const;
  std::size_t receivers() const;  ///< Returns the number of the ranks of all engines together.
};

/// Returns the cost model that the options of `request` describe, for tensors of this table.
CostModel model_of(const PlanRequest& request, const TensorTable& table);
/// Returns a model of the same links for a transfer of all bytes, in which only the wire takes time.
CostModel dense_wire(const CostModel& model);

/// Makes the plan that `request` asks for, and predicts its costs. World ranks are those of the trainer, then those of
/// one engine after another. Replicas after the first are assumed to be on nodes of their own.
PlanStudy study_plan(FileSystem& fs, const PlanRequest& request);

/// Minimum, median and maximum, over ranks, of a number that each rank has.
struct Spread {
  double least = 0;
  double median = 0;
  double most = 0;
};
/// Returns the spread of value(rank) over the ranks of participant number `participant` (PlanStudy::participant_of);
/// zeros if it has none.
Spread spread_of(const PlanStudy& study, std::size_t participant, double (*value)(const RankCost&));

/// A phase of the sync: its name in JSON, its name for people, and its time.
struct PhaseColumn {
  const char* key;
  const char* label;
  double PhaseTimes::*seconds;
};
/// Returns the phases in the order in which they take place.
const std::vector<PhaseColumn>& phase_columns();

/// A number that is printed for each rank: its name in JSON, its name for people, and the function that returns it.
struct RankColumn {
  const char* key;
  const char* label;
  double (*value)(const RankCost&);
};
/// Returns the numbers of bytes that are printed for each rank: sent, received and foreign; weights, snapshot and
/// staging.
const std::vector<RankColumn>& rank_columns();
/// Returns the times in seconds that are printed for each rank: at work in each phase, and until everything is staged.
const std::vector<RankColumn>& rank_times();

}  // namespace sparsecast::tools
