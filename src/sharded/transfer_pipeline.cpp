// SPDX-License-Identifier: Apache-2.0
#include "sharded/transfer_pipeline.hpp"

#include <algorithm>

namespace sparsecast {
namespace {

/// Returns `routes` in the order of the rank's own transfers; routes that no transfer takes come last.
std::vector<std::uint32_t> by_transfer(const std::vector<const Transfer*>& transfers, int rank,
                                       std::vector<std::uint32_t> routes) {
  auto rest = routes.begin();
  for (const Transfer* const transfer : transfers) {
    if (transfer->source != rank) continue;
    for (const std::uint32_t route : transfer->routes) {
      const auto found = std::find(rest, routes.end(), route);
      if (found != routes.end()) std::rotate(rest++, found, found + 1);
    }
  }
  return routes;
}

/// Returns how many routes may be encoded ahead of the wire.
std::size_t most_ahead(const std::vector<const Transfer*>& transfers, int rank, std::size_t routes) {
  if (transfers.empty()) return SerialExecutor::kInline;
  const Transfer& first = *transfers.front();
  return first.source == rank && first.routes.size() == routes ? SerialExecutor::kInline : routes;
}

}  // namespace

TransferPipeline::TransferPipeline(const std::vector<const Transfer*>& transfers, int rank,
                                   std::vector<std::uint32_t> routes, TransferSteps steps)
    : transfers_(transfers),
      rank_(rank),
      routes_(by_transfer(transfers, rank, std::move(routes))),
      steps_(std::move(steps)),
      producer_("encoding of routes", most_ahead(transfers, rank, routes_.size())),
      stager_("staging of transfers", transfers.size() > 1 ? kMostUnstaged : SerialExecutor::kInline) {}

void TransferPipeline::run(Deadline deadline) {
  for (const std::uint32_t route : routes_) producer_.submit([this, route] { steps_.publish(route); }, deadline);
  for (const Transfer* const transfer : transfers_) pass(*transfer, deadline);
  published_ = producer_.wait_all(deadline);
  staged_ = stager_.wait_all(deadline);
}

void TransferPipeline::pass(const Transfer& transfer, Deadline deadline) {
  const bool own = transfer.source == rank_;
  bool ready = false;
  if (own) ready = producer_.wait_for(routes_due_ += transfer.routes.size(), deadline);
  Stopwatch watch;
  std::vector<Bytes> records;
  if (ready) records = steps_.records(transfer);
  std::vector<Bytes> kept;  // The transport takes what it sends.
  if (own && steps_.stage) kept = records;
  steps_.broadcast(transfer, records);
  wire_seconds_ += watch.lap();
  if (!steps_.stage) return;
  if (own) records = std::move(kept);
  stager_.submit(
      [this, &transfer, records = std::move(records)]() mutable { steps_.stage(transfer, std::move(records)); },
      deadline);
}

}  // namespace sparsecast
