// SPDX-License-Identifier: Apache-2.0
#include "sparsecast/plan_cost.hpp"

#include <algorithm>
#include <string>
#include <unordered_map>

#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

void check_model(const CostModel& model) {
  // Written so that NaN is refused as well.
  if (!(model.node_bytes_per_second > 0) || !(model.world_bytes_per_second > 0)) {
    throw Error(ErrorCode::kUsage, "a bandwidth is not positive", "cost model");
  }
  if (!(model.latency_seconds >= 0) || !(model.wire_bytes_per_byte >= 0)) {
    throw Error(ErrorCode::kUsage, "the latency or the density is negative", "cost model");
  }
}

class Predictor {
 public:
  Predictor(const FanoutPlan& plan, const CostModel& model) : plan_(plan), model_(model) {
    add_participant(plan.trainer());
    for (const Participant& engine : plan.engines()) add_participant(engine);
  }

  PlanCost predict() {
    for (const Route& route : plan_.routes()) {
      RankCost& source = rank(route.source);
      source.snapshot_bytes += route.bytes;
      source.sent_bytes += wire(route.bytes);
      source.staging_bytes += wire(route.bytes);
    }
    std::vector<bool> near;
    for (const RouteGroup& group : plan_.groups()) near.push_back(on_one_node(group));
    for (const Transfer& transfer : plan_.transfers()) run(transfer, near[transfer.group]);
    for (std::size_t i = 0; i < cost_.ranks.size(); ++i) cost_.ranks[i].foreign_bytes = wire(foreign_[i]);
    for (const RankCost& cost : cost_.ranks) cost_.wire_seconds = std::max(cost_.wire_seconds, cost.finish_seconds);
    return std::move(cost_);
  }

 private:
  void add_participant(const Participant& participant) {
    for (std::size_t i = 0; i < participant.ranks.size(); ++i) {
      const RankLayout& layout = participant.layout->ranks()[i];
      index_.emplace(participant.ranks[i], cost_.ranks.size());
      nodes_.push_back(&layout.node);
      foreign_.push_back(0);
      cost_.ranks.emplace_back();
      cost_.ranks.back().rank = participant.ranks[i];
      for (const LocalTensor& local : layout.tensors) {
        cost_.ranks.back().weight_bytes += local.elements * element_size(local.dtype);
      }
    }
  }

  RankCost& rank(int world) { return cost_.ranks[index_.at(world)]; }
  double wire(std::uint64_t bytes) const { return static_cast<double>(bytes) * model_.wire_bytes_per_byte; }

  bool on_one_node(const RouteGroup& group) const {
    const std::string& first = *nodes_[index_.at(group.members.front())];
    return !first.empty() && std::all_of(group.members.begin(), group.members.end(),
                                         [&](int member) { return *nodes_[index_.at(member)] == first; });
  }

  void run(const Transfer& transfer, bool near) {
    std::uint64_t bytes = 0;
    for (const std::uint32_t route : transfer.routes) bytes += plan_.routes()[route].bytes;
    const std::vector<int>& members = plan_.groups()[transfer.group].members;
    TransferTime time;
    for (const int member : members) time.start_seconds = std::max(time.start_seconds, rank(member).finish_seconds);
    const double seconds =
        model_.latency_seconds + wire(bytes) / (near ? model_.node_bytes_per_second : model_.world_bytes_per_second);
    time.end_seconds = time.start_seconds + seconds;
    for (const int member : members) {
      RankCost& cost = rank(member);
      cost.finish_seconds = time.end_seconds;
      cost.busy_seconds += seconds;
      if (member != transfer.source) foreign_[index_.at(member)] += bytes;
    }
    for (const std::uint32_t route : transfer.routes) receive(plan_.routes()[route]);
    cost_.transfers.push_back(time);
  }

  /// Takes a route out of what its receivers got for nothing.
  void receive(const Route& route) {
    for (std::size_t i = 0; i < route.destinations.size(); ++i) {
      if (i > 0 && route.destinations[i - 1].rank == route.destinations[i].rank) continue;
      RankCost& cost = rank(route.destinations[i].rank);
      foreign_[index_.at(cost.rank)] -= route.bytes;
      cost.received_bytes += wire(route.bytes);
      cost.staging_bytes += wire(route.bytes);
    }
  }

  const FanoutPlan& plan_;
  const CostModel& model_;
  PlanCost cost_;
  std::unordered_map<int, std::size_t> index_;  ///< Indices, keyed by world rank.
  std::vector<const std::string*> nodes_;       ///< Parallel to cost_.ranks.
  std::vector<std::uint64_t> foreign_;          ///< Dense bytes, parallel to cost_.ranks.
};

}  // namespace

PlanCost predict_cost(const FanoutPlan& plan, const CostModel& model) {
  check_model(model);
  return Predictor(plan, model).predict();
}

}  // namespace sparsecast
