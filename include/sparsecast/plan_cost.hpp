// SPDX-License-Identifier: Apache-2.0
#pragma once

// Predicts the cost of a sync by a fan-out plan from end to end, by a simple model. The phases, in the order in which a
// rank goes through them:
//
//     trainer rank   detect | encode | wire           | agree |       | votes
//     engine rank                      wire | verify  | agree | apply | votes
//                                                             |<--- pause -->|
//
// - Detecting and encoding is one pass over all that a rank sends, whatever the number of its routes.
// - A transfer takes `latency_seconds` and then its bytes at the bandwidth of the slowest link that it needs: the
//   link between nodes, unless all members of its group are on one node whose name is known. The number of members does
//   not matter, as in a pipelined broadcast.
// - Ranks execute the transfers in the plan's order, each when all members are free. Transfers without a common member
//   do not slow one another down, so every rank is taken to have links of its own.
// - Host ends overlap: a transfer begins when its routes are encoded, and is verified while the next one is on the
//   wire. Between devices the transfers of a rank are one round: it begins when all members of the transfers' groups
//   have encoded everything that they send and have exchanged the transfers' heads. Everything is verified at its end.
// - All ranks agree that they have staged, engines apply, and two more steps (votes, then the decision) follow. Each of
//   these three costs the time that the coordinator needs for a message from and to each rank.
// - All tensors change alike: `density` and `wire_bytes_per_byte` are the same everywhere.

#include <cstdint>
#include <vector>

#include "sparsecast/export.hpp"
#include "sparsecast/fanout_plan.hpp"

namespace sparsecast {

/// Costs of a rank's own work, on the host or the device that holds its weights. By default the work takes no time.
struct EndCost {
  double detect_seconds_per_byte = 0;    ///< For each dense byte that the rank sends.
  double encode_seconds_per_change = 0;  ///< Includes the digest of the changed elements.
  double pass_seconds = 0;               ///< Fixed cost of a pass: launches, copies and waits. Part of encoding.
  double verify_seconds_per_change = 0;
  double verify_seconds = 0;            ///< Fixed cost of verifying, once a sync.
  double apply_seconds_per_change = 0;  ///< Includes the digest of the changed elements.
  double apply_seconds = 0;             ///< Fixed cost of applying, once a sync.
  bool overlapped = true;               ///< Whether encoding, wire and verifying overlap, as on hosts.
};

/// Costs of bf16 weights that lie in one piece in host memory, on one thread of an AMD EPYC (Zen 4) at 1 % of changes,
/// measured (bench/results/2026-11-23-plan.md): the scan at 38.9 GB/s of current and old bytes, and nanoseconds a
/// change.
inline constexpr EndCost kHostEnds{.detect_seconds_per_byte = 51.4e-12,
                                   .encode_seconds_per_change = 8.55e-9,
                                   .verify_seconds_per_change = 4.9e-9,
                                   .apply_seconds_per_change = 14.4e-9};

/// Costs of bf16 weights on an H100 at 1 % of changes, **estimated: no device has run this**. Detecting reads the
/// current and the old bytes at 3.0 TB/s, the rate of a copy on such a device. A change costs the encoder 52 ps of
/// instructions, and 43 bytes at the same rate for the refresh of the snapshot, slots and payloads (docs/gpu.md,
/// "Floors"); verifying costs 51 ps of instructions, applying 68 ps. Instructions are those of the compiled sm_90 code
/// on 132 multiprocessors at 1.98 GHz, with an error of a quarter at least. In addition, 5 us for each operation on a
/// stream: 14 in a pass, 16 on receivers, 4 of them in the apply (bench/results/2026-11-23-one-pass.md).
inline constexpr EndCost kDeviceEnds{.detect_seconds_per_byte = 2 / 3.0e12,
                                     .encode_seconds_per_change = 52e-12 + 43 / 3.0e12,
                                     .pass_seconds = 14 * 5e-6,
                                     .verify_seconds_per_change = 51e-12,
                                     .verify_seconds = 12 * 5e-6,
                                     .apply_seconds_per_change = 68e-12,
                                     .apply_seconds = 4 * 5e-6,
                                     .overlapped = false};

struct CostModel {
  double node_bytes_per_second = 400e9;      ///< Bandwidth of a rank to ranks on its node.
  double world_bytes_per_second = 50e9;      ///< Bandwidth of a rank to ranks on other nodes.
  double latency_seconds = 50e-6;            ///< Latency of a transfer, and of the exchange before a round.
  double density = 0.01;                     ///< Changed elements, as a share of all elements.
  double wire_bytes_per_byte = 0.01 * 0.65;  ///< Bytes of delta per dense byte: 1 % of bf16 elements at 1.3 bytes each.
  EndCost ends = kDeviceEnds;                ///< Work of every rank.
  /// Latency of a step of the votes, assumed to be that of a transfer.
  double vote_seconds = 50e-6;
  /// Time that the coordinator of a star over TCP needs for a message from and to one rank, measured with 4 to 64 ranks
  /// on the two cores of one machine, so that ranks with cores of their own cost less
  /// (bench/results/2026-11-23-plan.md).
  double vote_seconds_per_rank = 28e-6;
};

/// Seconds in each phase of a sync.
struct PhaseTimes {
  double detect_seconds = 0;
  double encode_seconds = 0;
  double wire_seconds = 0;
  double verify_seconds = 0;
  double agree_seconds = 0;  ///< The agreement that all ranks have staged.
  double apply_seconds = 0;
  double vote_seconds = 0;  ///< Votes and decision.

  double total() const noexcept {
    return detect_seconds + encode_seconds + wire_seconds + verify_seconds + agree_seconds + pause();
  }
  /// Returns the time for which engines are stopped: from the agreement to the decision.
  double pause() const noexcept { return apply_seconds + vote_seconds; }
};

/// Cost of one rank. Times are from the start of the sync. Bytes are those of one sync on the wire, except where a
/// field says that it is memory.
struct RankCost {
  int rank = 0;  ///< World rank.
  double sent_bytes = 0;
  double received_bytes = 0;  ///< Bytes of routes to this rank.
  double foreign_bytes = 0;   ///< Bytes for other members of its groups, received and dropped.
  /// Time for which the rank is at work in each phase. Phases that overlap add up to more than the time of the sync.
  PhaseTimes work;
  double finish_seconds = 0;         ///< Time at which its last transfer ends.
  double staged_seconds = 0;         ///< Time at which it has sent and verified everything.
  std::uint64_t weight_bytes = 0;    ///< Memory of its local tensors.
  std::uint64_t snapshot_bytes = 0;  ///< Memory of a trainer rank's copy of the elements that it sends.
  double staging_bytes = 0;          ///< Memory of one delta of the elements that it sends or receives for itself.
};

struct TransferTime {
  double start_seconds = 0;
  double end_seconds = 0;
};

struct PlanCost {
  /// Phases along the critical path: the phases that the last rank to finish staging waited for, then the common steps
  /// of all ranks. total() is the time of the sync.
  PhaseTimes phases;
  std::vector<RankCost> ranks;  ///< The trainer's ranks, then those of each engine, in the order of their layouts.
  std::vector<TransferTime> transfers;  ///< Parallel to FanoutPlan::transfers().
};

/// Predicts the cost of one sync. Throws Error{kUsage} for bandwidths that are not positive, and for negative times,
/// costs or densities.
SPARSECAST_API PlanCost predict_cost(const FanoutPlan& plan, const CostModel& model = {});

}  // namespace sparsecast
