#pragma once

// The transfers of a sync, as one rank takes part in them. What it sends is encoded route by route ahead of the wire, and
// what it gets is verified behind the wire, each on a thread of its own:
//
//     producer         encode route 0 | encode route 1 | encode route 2 |
//     calling thread                 | wire of 0     | wire of 1     | wire of 2     |
//     stager                                         | stage 0       | stage 1       | stage 2       |
//
// The wire is the calling thread's alone (docs/nccl.md), and its order is the plan's. A rank for which nothing could
// overlap starts no thread: one whose first transfer takes all that it sends has no producer, one that takes part in
// one transfer no stager.

#include <cstdint>
#include <functional>
#include <vector>

#include "sharded/serial_executor.hpp"
#include "sparsecast/fanout_plan.hpp"

namespace sparsecast {

/// Functions of a rank, one per step of a transfer.
struct TransferSteps {
  /// Producer: an own route. Routes come in the order in which the transfers take them.
  std::function<void(std::uint32_t route)> publish;
  /// Calling thread: what to send for an own transfer, when all its routes have been published.
  std::function<std::vector<Bytes>(const Transfer& transfer)> records;
  /// Calling thread: as Wire::broadcast; the source's records are given, the others' come.
  std::function<void(const Transfer& transfer, std::vector<Bytes>& records)> broadcast;
  /// Stager: the records of each transfer, in order. Null for a rank that is no engine's.
  std::function<void(const Transfer& transfer, std::vector<Bytes> records)> stage;
};

class TransferPipeline {
 public:
  /// Transfers that wait to be staged, at most; with the one that is staged and the one that is on the wire, a rank has
  /// the records of three. One is enough to keep the stager at work while the next is on its way.
  static constexpr std::size_t kMostUnstaged = 1;

  /// `transfers`: those of this rank, in the plan's order, which outlive the pipeline; `routes`: its own.
  TransferPipeline(const std::vector<const Transfer*>& transfers, int rank, std::vector<std::uint32_t> routes,
                   TransferSteps steps);
  /// Its threads have ended then: the route or transfer at work comes to its end, the others are left.
  ~TransferPipeline() = default;

  /// All of it. A route that cannot be published, or bytes that cannot be staged, stop none of the transfers, so that no
  /// rank is missed in those that follow: transfers whose routes are not all there have no records, and why is in
  /// published() and staged(). Throws what broadcast() throws, and Error{kTimeout}.
  void run(Deadline deadline);
  const Outcome& published() const noexcept { return published_; }
  const Outcome& staged() const noexcept { return staged_; }

  /// Returns ShardedReport's encode_seconds. Valid after run().
  double encode_seconds() const noexcept { return producer_.seconds(); }
  double wire_seconds() const noexcept { return wire_seconds_; }
  double stage_seconds() const noexcept { return stager_.seconds(); }

 private:
  void pass(const Transfer& transfer, Deadline deadline);

  const std::vector<const Transfer*>& transfers_;
  const int rank_;
  std::vector<std::uint32_t> routes_;  ///< In the order of the transfers.
  TransferSteps steps_;
  std::size_t routes_due_ = 0;  ///< Routes that are due by the end of the current transfer.
  double wire_seconds_ = 0;
  Outcome published_;
  Outcome staged_;
  SerialExecutor producer_;
  SerialExecutor stager_;
};

}  // namespace sparsecast
