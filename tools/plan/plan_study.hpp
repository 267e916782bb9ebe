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

/// Options of the command, in its units.
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
  std::uint64_t dense_bytes = 0;       ///< Dense bytes of its routes, each counted once.
  std::vector<TensorPattern> tensors;  ///< Patterns of its tensors, most bytes first.
  std::map<int, double> sent;          ///< Bytes of deltas that each source sends.
  std::map<int, double> received;      ///< Bytes of deltas that each receiver needs.
  double delta_bytes = 0;              ///< Bytes of deltas of its routes, each counted once.
  double foreign_bytes = 0;            ///< Bytes that members receive without needing them, all together.
};

struct PlanStudy {
  PlanRequest request;
  CostModel model;
  std::unique_ptr<FanoutPlan> plan;
  PlanCost cost;
  double anchor_seconds = 0;  ///< Wire time to seed every engine with all bytes.
  double read_seconds = 0;
  double plan_seconds = 0;
  double delta_bytes = 0;                   ///< Bytes of deltas of all routes, each counted once.
  std::vector<GroupStudy> groups;           ///< Parallel to plan->groups().
  std::vector<std::size_t> participant_of;  ///< Parallel to cost.ranks: 0 the trainer, i + 1 engine i.
  std::vector<std::size_t> first_of;        ///< Index in cost.ranks of the first rank of each participant.

  const Participant& participant(std::size_t index) const;
  /// Returns the node of cost.ranks[i]; may be empty.
  const std::string& node_of(std::size_t i) const;
  std::size_t receivers() const;  ///< Returns the number of ranks of all engines.
};

/// Returns the model that a request asks for, for tensors of this table.
CostModel model_of(const PlanRequest& request, const TensorTable& table);
/// Returns the model of a transfer of all bytes that is nothing but wire.
CostModel dense_wire(const CostModel& model);

/// Plans and predicts. World ranks are those of the trainer, then those of one engine after another. Replicas after the
/// first are assumed to be on nodes of their own.
PlanStudy study_plan(FileSystem& fs, const PlanRequest& request);

/// Minimum, median and maximum of a number over ranks.
struct Spread {
  double least = 0;
  double median = 0;
  double most = 0;
};
/// Returns the spread of `value` over the ranks of a participant (PlanStudy::participant_of); zeros if it has none.
Spread spread_of(const PlanStudy& study, std::size_t participant, double (*value)(const RankCost&));

/// A phase of the sync with its names for people and machines.
struct PhaseColumn {
  const char* key;
  const char* label;
  double PhaseTimes::*seconds;
};
/// Returns the phases in their order.
const std::vector<PhaseColumn>& phase_columns();

/// A number of each rank that is printed, with its names for people and machines.
struct RankColumn {
  const char* key;
  const char* label;
  double (*value)(const RankCost&);
};
/// Returns the printed numbers of bytes: sent, received and foreign; weights, snapshot and staging.
const std::vector<RankColumn>& rank_columns();
/// Returns the printed times in seconds: at work in each phase, and until everything is staged.
const std::vector<RankColumn>& rank_times();

}  // namespace sparsecast::tools
