// SPDX-License-Identifier: Apache-2.0
#pragma once

// Predicts what a sync by a fan-out plan costs on given links, by a simple model:
//
// - A transfer takes `latency_seconds` and then its bytes at the bandwidth of the slowest link that it needs: that
//   between nodes, unless all members of its group are on one node whose name is known. The number of members does
//   not matter, as in a pipelined broadcast.
// - Ranks execute the transfers in the plan's order, each when all members are free; those without a common member do
//   not slow one another down, so every rank is taken to have links of its own.
// - All tensors change alike: `wire_bytes_per_byte` is the same everywhere.
// - Detecting, encoding, verifying and applying take no time: this is the wire alone.

#include <cstdint>
#include <vector>

#include "sparsecast/export.hpp"
#include "sparsecast/fanout_plan.hpp"

namespace sparsecast {

struct CostModel {
  double node_bytes_per_second = 400e9;      ///< Bandwidth of a rank to ranks on its node.
  double world_bytes_per_second = 50e9;      ///< Bandwidth of a rank to ranks on other nodes.
  double latency_seconds = 50e-6;            ///< Latency of a transfer.
  double wire_bytes_per_byte = 0.01 * 0.65;  ///< Delta per dense byte: 1 % of bf16 elements at 1.3 bytes each.
};

/// Times are from the start of the sync. Bytes are those of one sync on the wire, unless they say otherwise.
struct RankCost {
  int rank = 0;  ///< World rank.
  double sent_bytes = 0;
  double received_bytes = 0;         ///< Bytes of routes to this rank.
  double foreign_bytes = 0;          ///< Bytes for other members of its groups, received and dropped.
  double busy_seconds = 0;           ///< Time spent in transfers.
  double finish_seconds = 0;         ///< Time at which its last transfer ends.
  std::uint64_t weight_bytes = 0;    ///< Memory of its local tensors.
  std::uint64_t snapshot_bytes = 0;  ///< Memory of a trainer rank's copy of the elements that it sends.
  double staging_bytes = 0;          ///< Memory of one delta of the elements that it sends or receives for itself.
};

struct TransferTime {
  double start_seconds = 0;
  double end_seconds = 0;
};

struct PlanCost {
  double wire_seconds = 0;      ///< Time at which the last transfer ends.
  std::vector<RankCost> ranks;  ///< The trainer's ranks, then those of each engine, in the order of their layouts.
  std::vector<TransferTime> transfers;  ///< Parallel to FanoutPlan::transfers().
};

/// Predicts the cost of one sync. Throws Error{kUsage} for bandwidths that are not positive, and for negative latencies
/// or densities.
SPARSECAST_API PlanCost predict_cost(const FanoutPlan& plan, const CostModel& model = {});

}  // namespace sparsecast
