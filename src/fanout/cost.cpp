// SPDX-License-Identifier: Apache-2.0
#include "sparsecast/fanout_plan.hpp"

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
  if (!(model.latency_seconds >= 0) || !(model.density >= 0) || !(model.wire_bytes_per_byte >= 0)) {
    throw Error(ErrorCode::kUsage, "the latency or the density is negative", "cost model");
  }
  if (!(model.vote_seconds >= 0) || !(model.vote_seconds_per_rank >= 0)) {
    throw Error(ErrorCode::kUsage, "the time of a vote is negative", "cost model");
  }
  const EndCost& ends = model.ends;
  for (const double seconds :
       {ends.detect_seconds_per_byte, ends.encode_seconds_per_change, ends.pass_seconds, ends.verify_seconds_per_change,
        ends.verify_seconds, ends.apply_seconds_per_change, ends.apply_seconds}) {
    if (!(seconds >= 0)) throw Error(ErrorCode::kUsage, "the cost of a rank's work is negative", "cost model");
  }
}

/// Sets `path` to the one of both paths that ends last. A path lists the phases that lead up to a time; their sum is
/// that time.
void wait_for(PhaseTimes& path, const PhaseTimes& other) {
  if (other.total() > path.total()) path = other;
}

/// Progress of a rank in the sync.
struct Progress {
  /// Path to the end of encoding all that the rank sends; with overlap, up to the current transfer.
  PhaseTimes encoded;
  PhaseTimes free;      ///< Path to the end of the rank's transfers so far.
  PhaseTimes verified;  ///< Path to the end of the rank's verification so far.
  bool sends = false;
  bool unverified = false;          ///< True if the rank has received routes that are not verified yet.
  double unverified_changes = 0;    ///< Number of changes in the routes that are not verified yet.
  bool receives = false;            ///< True if the rank has verified any routes.
  double verified_changes = 0;      ///< Number of changes in the routes that are verified.
  std::uint64_t foreign_bytes = 0;  ///< Dense bytes that the rank has received but does not need.
};

class Predictor {
 public:
  Predictor(const FanoutPlan& plan, const CostModel& model) : plan_(plan), model_(model) {
    add_participant(plan.trainer());
    for (const Participant& engine : plan.engines()) add_participant(engine);
  }

  PlanCost predict() {
    for (const Route& route : plan_.routes()) send(route);
    if (!model_.ends.overlapped) begin_rounds();
    std::vector<bool> near;
    for (const RouteGroup& group : plan_.groups()) near.push_back(on_one_node(group));
    for (const Transfer& transfer : plan_.transfers()) run(transfer, near[transfer.group]);
    for (const auto& [world, unused] : index_) verify(world);
    for (std::size_t i = 0; i < cost_.ranks.size(); ++i) finish(cost_.ranks[i], progress_[i]);
    const double step = model_.vote_seconds + model_.vote_seconds_per_rank * static_cast<double>(index_.size());
    cost_.phases.agree_seconds = step;
    cost_.phases.vote_seconds = 2 * step;
    for (RankCost& cost : cost_.ranks) {
      cost.work.agree_seconds = step;
      cost.work.vote_seconds = 2 * step;
      cost_.phases.apply_seconds = std::max(cost_.phases.apply_seconds, cost.work.apply_seconds);
    }
    return std::move(cost_);
  }

 private:
  void add_participant(const Participant& participant) {
    for (std::size_t i = 0; i < participant.ranks.size(); ++i) {
      const RankLayout& layout = participant.layout->ranks()[i];
      index_.emplace(participant.ranks[i], cost_.ranks.size());
      nodes_.push_back(&layout.node);
      progress_.emplace_back();
      cost_.ranks.emplace_back();
      cost_.ranks.back().rank = participant.ranks[i];
      for (const LocalTensor& local : layout.tensors) {
        cost_.ranks.back().weight_bytes += local.elements * element_size(local.dtype);
      }
    }
  }

  RankCost& rank(int world) { return cost_.ranks[index_.at(world)]; }
  Progress& progress(int world) { return progress_[index_.at(world)]; }
  double wire(std::uint64_t bytes) const { return static_cast<double>(bytes) * model_.wire_bytes_per_byte; }
  double changes(const Route& route) const { return static_cast<double>(route.elements) * model_.density; }

  bool on_one_node(const RouteGroup& group) const {
    const std::string& first = *nodes_[index_.at(group.members.front())];
    return !first.empty() && std::all_of(group.members.begin(), group.members.end(),
                                         [&](int member) { return *nodes_[index_.at(member)] == first; });
  }

  /// Counts a route for its source. If ends do not overlap, the pass ends before any transfer begins.
  void send(const Route& route) {
    RankCost& source = rank(route.source);
    source.snapshot_bytes += route.bytes;
    source.sent_bytes += wire(route.bytes);
    source.staging_bytes += wire(route.bytes);
    if (!model_.ends.overlapped) encode(route);
  }

  void encode(const Route& route) {
    Progress& source = progress(route.source);
    PhaseTimes& encoded = source.encoded;
    if (!source.sends) encoded.encode_seconds += model_.ends.pass_seconds;
    source.sends = true;
    encoded.detect_seconds += static_cast<double>(route.bytes) * model_.ends.detect_seconds_per_byte;
    encoded.encode_seconds += changes(route) * model_.ends.encode_seconds_per_change;
  }

  /// Begins the rounds if ends do not overlap: a rank waits for the passes of all members of its transfers, and for the
  /// exchange of the heads.
  void begin_rounds() {
    for (const Transfer& transfer : plan_.transfers()) {
      const std::vector<int>& members = plan_.groups()[transfer.group].members;
      PhaseTimes last;
      for (const int member : members) wait_for(last, progress(member).encoded);
      last.wire_seconds += model_.latency_seconds;
      for (const int member : members) wait_for(progress(member).free, last);
    }
  }

  void run(const Transfer& transfer, bool near) {
    const std::vector<int>& members = plan_.groups()[transfer.group].members;
    std::uint64_t bytes = 0;
    for (const std::uint32_t route : transfer.routes) {
      bytes += plan_.routes()[route].bytes;
      if (model_.ends.overlapped) encode(plan_.routes()[route]);
    }
    PhaseTimes path = progress(transfer.source).encoded;
    for (const int member : members) wait_for(path, progress(member).free);
    TransferTime time{.start_seconds = path.total()};
    const double seconds =
        model_.latency_seconds + wire(bytes) / (near ? model_.node_bytes_per_second : model_.world_bytes_per_second);
    path.wire_seconds += seconds;
    time.end_seconds = path.total();
    for (const int member : members) {
      progress(member).free = path;
      rank(member).work.wire_seconds += seconds;
      rank(member).finish_seconds = time.end_seconds;
      if (member != transfer.source) progress(member).foreign_bytes += bytes;
    }
    for (const std::uint32_t route : transfer.routes) receive(plan_.routes()[route]);
    if (model_.ends.overlapped) {
      for (const int member : members) verify(member);
    }
    cost_.transfers.push_back(time);
  }

  /// Counts a route for its receivers, and subtracts it from the bytes that they receive for others. Every copy of the
  /// elements on a rank is decoded and written.
  void receive(const Route& route) {
    for (std::size_t i = 0; i < route.destinations.size(); ++i) {
      const int world = route.destinations[i].rank;
      progress(world).unverified = true;
      progress(world).unverified_changes += changes(route);
      if (i > 0 && route.destinations[i - 1].rank == world) continue;
      if (world != route.source) progress(world).foreign_bytes -= route.bytes;
      rank(world).received_bytes += wire(route.bytes);
      rank(world).staging_bytes += wire(route.bytes);
    }
  }

  /// Verifies the routes that a rank has received since the last call.
  void verify(int world) {
    Progress& at = progress(world);
    if (!at.unverified) return;
    double seconds = at.unverified_changes * model_.ends.verify_seconds_per_change;
    if (!at.receives) seconds += model_.ends.verify_seconds;
    wait_for(at.verified, at.free);
    at.verified.verify_seconds += seconds;
    rank(world).work.verify_seconds += seconds;
    at.receives = true;
    at.verified_changes += at.unverified_changes;
    at.unverified = false;
    at.unverified_changes = 0;
  }

  void finish(RankCost& cost, const Progress& at) {
    cost.foreign_bytes = wire(at.foreign_bytes);
    cost.work.detect_seconds = at.encoded.detect_seconds;
    cost.work.encode_seconds = at.encoded.encode_seconds;
    if (at.receives) {
      cost.work.apply_seconds = at.verified_changes * model_.ends.apply_seconds_per_change + model_.ends.apply_seconds;
    }
    PhaseTimes staged = at.encoded;
    wait_for(staged, at.free);
    wait_for(staged, at.verified);
    cost.staged_seconds = staged.total();
    wait_for(cost_.phases, staged);
  }

  const FanoutPlan& plan_;
  const CostModel& model_;
  PlanCost cost_;
  std::unordered_map<int, std::size_t> index_;  ///< Index in cost_.ranks of each rank, keyed by world rank.
  std::vector<const std::string*> nodes_;       ///< Name of the node of each rank, in the order of cost_.ranks.
  std::vector<Progress> progress_;              ///< Progress of each rank, in the order of cost_.ranks.
};

}  // namespace

PlanCost predict_cost(const FanoutPlan& plan, const CostModel& model) {
  check_model(model);
  return Predictor(plan, model).predict();
}

}  // namespace sparsecast
