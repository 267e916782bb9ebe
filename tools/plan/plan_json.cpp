// SPDX-License-Identifier: Apache-2.0

// sparsecast plan --json: the JSON object.

#include "tools/plan/plan_forms.hpp"

namespace sparsecast::tools {
namespace {

using Json = nlohmann::ordered_json;

Json participant_json(const PlanStudy& study, std::size_t index) {
  const Participant& participant = study.participant(index);
  Json spreads = Json::object();
  for (const auto* columns : {&rank_columns(), &rank_times()}) {
    for (const RankColumn& column : *columns) {
      const Spread spread = spread_of(study, index, column.value);
      spreads[column.key] = {{"least", spread.least}, {"median", spread.median}, {"most", spread.most}};
    }
  }
  return {{"name", participant.name},
          {"file", index == 0 ? study.request.trainer_file : study.request.engine_file},
          {"ranks", participant.ranks},
          {"per_rank", std::move(spreads)}};
}

Json engines_json(const PlanStudy& study) {
  Json rows = Json::array();
  for (std::size_t g = 1; g < study.first_of.size(); ++g) rows.push_back(participant_json(study, g));
  return rows;
}

Json model_json(const PlanStudy& study) {
  return {{"node_bytes_per_second", study.model.node_bytes_per_second},
          {"world_bytes_per_second", study.model.world_bytes_per_second},
          {"latency_seconds", study.model.latency_seconds},
          {"density", study.request.density_percent / 100},
          {"bytes_per_change", study.request.bytes_per_change},
          {"wire_bytes_per_byte", study.model.wire_bytes_per_byte},
          {"ends", study.request.ends},
          {"detect_seconds_per_byte", study.model.ends.detect_seconds_per_byte},
          {"encode_seconds_per_change", study.model.ends.encode_seconds_per_change},
          {"pass_seconds", study.model.ends.pass_seconds},
          {"verify_seconds_per_change", study.model.ends.verify_seconds_per_change},
          {"verify_seconds", study.model.ends.verify_seconds},
          {"apply_seconds_per_change", study.model.ends.apply_seconds_per_change},
          {"apply_seconds", study.model.ends.apply_seconds},
          {"overlapped", study.model.ends.overlapped},
          {"vote_seconds", study.model.vote_seconds},
          {"vote_seconds_per_rank", study.model.vote_seconds_per_rank}};
}

Json tensors_json(const std::vector<TensorPattern>& patterns) {
  Json rows = Json::array();
  for (const TensorPattern& pattern : patterns) {
    rows.push_back({{"pattern", pattern.pattern}, {"tensors", pattern.tensors}, {"dense_bytes", pattern.bytes}});
  }
  return rows;
}

Json groups_json(const PlanStudy& study) {
  Json rows = Json::array();
  for (std::size_t c = 0; c < study.groups.size(); ++c) {
    const RouteGroup& group = study.plan->groups()[c];
    const GroupStudy& of = study.groups[c];
    rows.push_back({{"group", c},
                    {"round", group.round},
                    {"sources", group.sources},
                    {"receivers", group.receivers},
                    {"routes", of.routes},
                    {"dense_bytes", of.dense_bytes},
                    {"delta_bytes", of.delta_bytes},
                    {"foreign_bytes", of.foreign_bytes},
                    {"tensors", tensors_json(of.tensors)}});
  }
  return rows;
}

Json routes_json(const PlanStudy& study) {
  Json rows = Json::array();
  for (std::size_t l = 0; l < study.plan->routes().size(); ++l) {
    const Route& route = study.plan->routes()[l];
    Json destinations = Json::array();
    for (const Destination& destination : route.destinations)
      destinations.push_back({destination.rank, destination.copy});
    rows.push_back({{"route", l},
                    {"source", route.source},
                    {"group", route.group},
                    {"destinations", std::move(destinations)},
                    {"regions", route.regions.size()},
                    {"elements", route.elements},
                    {"dense_bytes", route.bytes},
                    {"counted_by", route.counted_by},
                    {"counted", route.counted_in_state}});
  }
  return rows;
}

Json transfers_json(const PlanStudy& study) {
  Json rows = Json::array();
  for (std::size_t t = 0; t < study.cost.transfers.size(); ++t) {
    const Transfer& transfer = study.plan->transfers()[t];
    rows.push_back({{"group", transfer.group},
                    {"source", transfer.source},
                    {"routes", transfer.routes},
                    {"start_seconds", study.cost.transfers[t].start_seconds},
                    {"end_seconds", study.cost.transfers[t].end_seconds}});
  }
  return rows;
}

Json ranks_json(const PlanStudy& study) {
  Json rows = Json::array();
  for (std::size_t i = 0; i < study.cost.ranks.size(); ++i) {
    const RankCost& rank = study.cost.ranks[i];
    Json row = {{"rank", rank.rank},
                {"participant", study.participant(study.participant_of[i]).name},
                {"node", study.node_of(i)}};
    for (const RankColumn& column : rank_columns()) row[column.key] = column.value(rank);
    for (const RankColumn& column : rank_times()) row[column.key] = column.value(rank);
    row["finish_seconds"] = rank.finish_seconds;
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

nlohmann::ordered_json phases_json(const PhaseTimes& phases) {
  Json object = Json::object();
  for (const PhaseColumn& column : phase_columns()) object[column.key] = phases.*column.seconds;
  return object;
}

nlohmann::ordered_json plan_json(const PlanStudy& study) {
  const FanoutPlan& plan = *study.plan;
  const std::uint64_t dense = plan.table().bytes();
  return {{"trainer", participant_json(study, 0)},
          {"engines", engines_json(study)},
          {"scale_down", study.request.scale_down},
          {"max_groups", study.request.options.max_groups_per_rank},
          {"unsent", study.request.options.unsent},
          {"tensors", plan.table().size()},
          {"elements", plan.table().elements()},
          {"dense_bytes", dense},
          {"delta_bytes", study.delta_bytes},
          {"rounds", plan.rounds()},
          {"plan_hash", to_hex(plan.hash())},
          {"read_seconds", study.read_seconds},
          {"plan_seconds", study.plan_seconds},
          {"sync_seconds", study.cost.phases.total()},
          {"pause_seconds", study.cost.phases.pause()},
          {"phases", phases_json(study.cost.phases)},
          {"anchor_seconds", study.anchor_seconds},
          {"model", model_json(study)},
          {"dense_way",
           {{"gathered_bytes", dense},
            {"received_bytes_per_rank", dense},
            {"seconds", static_cast<double>(dense) / study.model.world_bytes_per_second}}},
          {"groups", groups_json(study)},
          {"routes", routes_json(study)},
          {"transfers", transfers_json(study)},
          {"ranks", ranks_json(study)}};
}

}  // namespace sparsecast::tools
