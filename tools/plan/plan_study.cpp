// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/plan_study.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "sparsecast/error.hpp"
#include "sparsecast/layout.hpp"
#include "tools/common/report.hpp"

namespace sparsecast::tools {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point began) { return std::chrono::duration<double>(Clock::now() - began).count(); }

/// Returns the layout of another replica, which is on other machines.
std::shared_ptr<const Layout> on_own_nodes(const std::shared_ptr<const Layout>& layout, const std::string& name) {
  std::vector<RankLayout> ranks = layout->ranks();
  bool named = false;
  for (RankLayout& rank : ranks) {
    named = named || !rank.node.empty();
    if (!rank.node.empty()) rank.node = name + "/" + rank.node;
  }
  return named ? std::make_shared<Layout>(layout->table(), std::move(ranks), layout->ties()) : layout;
}

Participant make_participant(std::string name, std::shared_ptr<const Layout> layout, int& next_rank) {
  Participant participant{std::move(name), std::move(layout), {}};
  for (std::size_t i = 0; i < participant.layout->ranks().size(); ++i) participant.ranks.push_back(next_rank++);
  return participant;
}

/// Adds the bytes of a route to its group.
void add_route(GroupStudy& group, const Route& route, double wire_bytes_per_byte) {
  const double bytes = static_cast<double>(route.bytes) * wire_bytes_per_byte;
  group.dense_bytes += route.bytes;
  group.delta_bytes += bytes;
  group.sent[route.source] += bytes;
  for (std::size_t s = 0; s < route.destinations.size(); ++s) {
    if (s == 0 || route.destinations[s - 1].rank != route.destinations[s].rank)
      group.received[route.destinations[s].rank] += bytes;
  }
}

void study_groups(PlanStudy& study) {
  const FanoutPlan& plan = *study.plan;
  const TensorTable& table = plan.table();
  const NamePatterns patterns(table);
  study.groups.resize(plan.groups().size());
  for (std::uint32_t l = 0; l < plan.routes().size(); ++l) {
    GroupStudy& group = study.groups[plan.routes()[l].group];
    group.routes.push_back(l);
    add_route(group, plan.routes()[l], study.model.wire_bytes_per_byte);
  }
  std::vector<std::uint64_t> bytes(table.size());
  for (std::size_t c = 0; c < study.groups.size(); ++c) {
    GroupStudy& group = study.groups[c];
    std::fill(bytes.begin(), bytes.end(), 0);
    for (const std::uint32_t l : group.routes) {
      for (const Region& region : plan.routes()[l].regions) {
        bytes[region.tensor] += region.box.elements() * element_size(table[region.tensor].dtype);
      }
    }
    group.tensors = patterns.of(bytes);
    // Every member of a group except the source receives a broadcast.
    double wanted = 0;
    for (const auto& [unused, received] : group.received) wanted += received;
    const auto others = static_cast<double>(plan.groups()[c].members.size() - 1);
    group.foreign_bytes = std::max(0.0, group.delta_bytes * others - wanted);
    study.delta_bytes += group.delta_bytes;
  }
}

}  // namespace

const Participant& PlanStudy::participant(std::size_t index) const {
  return index == 0 ? plan->trainer() : plan->engines()[index - 1];
}

const std::string& PlanStudy::node_of(std::size_t i) const {
  const std::size_t g = participant_of[i];
  return participant(g).layout->ranks()[i - first_of[g]].node;
}

std::size_t PlanStudy::receivers() const { return cost.ranks.size() - plan->trainer().ranks.size(); }

CostModel model_of(const PlanRequest& request, const TensorTable& table) {
  CostModel model;
  model.node_bytes_per_second = request.node_gigabytes_per_second * 1e9;
  model.world_bytes_per_second = request.world_gigabytes_per_second * 1e9;
  model.latency_seconds = request.latency_microseconds * 1e-6;
  model.vote_seconds = model.latency_seconds;
  model.density = request.density_percent / 100;
  model.wire_bytes_per_byte = model.density * request.bytes_per_change *
                              ratio(static_cast<double>(table.elements()), static_cast<double>(table.bytes()));
  model.ends = request.ends == "host" ? kHostEnds : kDeviceEnds;
  return model;
}

CostModel dense_wire(const CostModel& model) {
  CostModel dense = model;
  dense.wire_bytes_per_byte = 1;
  dense.ends = {};
  return dense;
}

PlanStudy study_plan(FileSystem& fs, const PlanRequest& request) {
  PlanStudy study;
  study.request = request;
  const LayoutFileOptions file_options{.scale_down = request.scale_down};
  Clock::time_point began = Clock::now();
  const auto trainer = std::make_shared<const Layout>(read_layout_file(fs, request.trainer_file, file_options));
  const auto engine = std::make_shared<const Layout>(read_layout_file(fs, request.engine_file, file_options));
  int next_rank = 0;
  Participant senders = make_participant("trainer", trainer, next_rank);
  std::vector<Participant> engines;
  for (std::size_t e = 0; e < request.engines; ++e) {
    std::string name = fmt::format("engine-{}", e);
    std::shared_ptr<const Layout> layout = e == 0 ? engine : on_own_nodes(engine, name);
    engines.push_back(make_participant(std::move(name), std::move(layout), next_rank));
  }
  study.read_seconds = seconds_since(began);
  began = Clock::now();
  try {
    study.plan = std::make_unique<FanoutPlan>(std::move(senders), std::move(engines), request.options);
  } catch (const Error& error) {
    throw error.within(fmt::format("{} -> {}", request.trainer_file, request.engine_file));
  }
  study.plan_seconds = seconds_since(began);

  study.model = model_of(request, study.plan->table());
  study.cost = predict_cost(*study.plan, study.model);
  study.anchor_seconds = predict_cost(*study.plan, dense_wire(study.model)).phases.wire_seconds;
  for (std::size_t g = 0; g <= study.plan->engines().size(); ++g) {
    study.first_of.push_back(study.participant_of.size());
    study.participant_of.insert(study.participant_of.end(), study.participant(g).ranks.size(), g);
  }
  study_groups(study);
  return study;
}

Spread spread_of(const PlanStudy& study, std::size_t participant, double (*value)(const RankCost&)) {
  std::vector<double> values;
  for (std::size_t i = 0; i < study.participant_of.size(); ++i) {
    if (study.participant_of[i] == participant) values.push_back(value(study.cost.ranks[i]));
  }
  std::sort(values.begin(), values.end());
  if (values.empty()) return {};
  return {values.front(), values[values.size() / 2], values.back()};
}

const std::vector<PhaseColumn>& phase_columns() {
  static const std::vector<PhaseColumn> columns = {{"detect_seconds", "detect", &PhaseTimes::detect_seconds},
                                                   {"encode_seconds", "encode", &PhaseTimes::encode_seconds},
                                                   {"wire_seconds", "wire", &PhaseTimes::wire_seconds},
                                                   {"verify_seconds", "verify", &PhaseTimes::verify_seconds},
                                                   {"agree_seconds", "agree", &PhaseTimes::agree_seconds},
                                                   {"apply_seconds", "apply", &PhaseTimes::apply_seconds},
                                                   {"vote_seconds", "votes", &PhaseTimes::vote_seconds}};
  return columns;
}

const std::vector<RankColumn>& rank_columns() {
  static const std::vector<RankColumn> columns = {
      {"sent_bytes", "sent", [](const RankCost& rank) { return rank.sent_bytes; }},
      {"received_bytes", "received", [](const RankCost& rank) { return rank.received_bytes; }},
      {"foreign_bytes", "foreign", [](const RankCost& rank) { return rank.foreign_bytes; }},
      {"weight_bytes", "weights", [](const RankCost& rank) { return static_cast<double>(rank.weight_bytes); }},
      {"snapshot_bytes", "snapshot", [](const RankCost& rank) { return static_cast<double>(rank.snapshot_bytes); }},
      {"staging_bytes", "staging", [](const RankCost& rank) { return rank.staging_bytes; }}};
  return columns;
}

const std::vector<RankColumn>& rank_times() {
  static const std::vector<RankColumn> columns = {
      {"detect_seconds", "detect", [](const RankCost& rank) { return rank.work.detect_seconds; }},
      {"encode_seconds", "encode", [](const RankCost& rank) { return rank.work.encode_seconds; }},
      {"wire_seconds", "wire", [](const RankCost& rank) { return rank.work.wire_seconds; }},
      {"verify_seconds", "verify", [](const RankCost& rank) { return rank.work.verify_seconds; }},
      {"staged_seconds", "staged at", [](const RankCost& rank) { return rank.staged_seconds; }},
      {"apply_seconds", "apply", [](const RankCost& rank) { return rank.work.apply_seconds; }}};
  return columns;
}

}  // namespace sparsecast::tools
