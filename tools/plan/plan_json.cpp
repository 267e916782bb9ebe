// sparsecast plan --json

#include "tools/plan/plan_forms.hpp"

namespace sparsecast::tools {
namespace {

using Json = nlohmann::ordered_json;

Json group_json(const PlanStudy& study, std::size_t index) {
  const FanoutGroup& group = study.group(index);
  Json spreads = Json::object();
  for (const RankColumn& column : rank_columns()) {
    const Spread spread = spread_of(study, index, column.value);
    spreads[column.key] = {{"least", spread.least}, {"median", spread.median}, {"most", spread.most}};
  }
  return {{"name", group.name},
          {"file", index == 0 ? study.request.trainer_file : study.request.engine_file},
          {"ranks", group.ranks},
          {"per_rank", std::move(spreads)}};
}

Json engines_json(const PlanStudy& study) {
  Json rows = Json::array();
  for (std::size_t g = 1; g < study.first_of.size(); ++g) rows.push_back(group_json(study, g));
  return rows;
}

Json model_json(const PlanStudy& study) {
  return {{"node_bytes_per_second", study.model.node_bytes_per_second},
          {"world_bytes_per_second", study.model.world_bytes_per_second},
          {"latency_seconds", study.model.latency_seconds},
          {"density", study.request.density_percent / 100},
          {"bytes_per_change", study.request.bytes_per_change},
          {"wire_bytes_per_byte", study.model.wire_bytes_per_byte}};
}

Json tensors_json(const std::vector<NamePattern>& patterns) {
  Json rows = Json::array();
  for (const NamePattern& pattern : patterns) {
    rows.push_back({{"pattern", pattern.pattern}, {"tensors", pattern.tensors}, {"dense_bytes", pattern.bytes}});
  }
  return rows;
}

Json channels_json(const PlanStudy& study) {
  Json rows = Json::array();
  for (std::size_t c = 0; c < study.channels.size(); ++c) {
    const Channel& channel = study.plan->channels()[c];
    const ChannelStudy& of = study.channels[c];
    rows.push_back({{"channel", c},
                    {"round", channel.round},
                    {"sources", channel.sources},
                    {"receivers", channel.receivers},
                    {"lanes", of.lanes},
                    {"dense_bytes", of.dense_bytes},
                    {"delta_bytes", of.delta_bytes},
                    {"foreign_bytes", of.foreign_bytes},
                    {"tensors", tensors_json(of.tensors)}});
  }
  return rows;
}

Json lanes_json(const PlanStudy& study) {
  Json rows = Json::array();
  for (std::size_t l = 0; l < study.plan->lanes().size(); ++l) {
    const Lane& lane = study.plan->lanes()[l];
    Json slots = Json::array();
    for (const Slot& slot : lane.slots) slots.push_back({slot.rank, slot.copy});
    rows.push_back({{"lane", l},
                    {"source", lane.source},
                    {"channel", lane.channel},
                    {"slots", std::move(slots)},
                    {"parts", lane.parts.size()},
                    {"elements", lane.elements},
                    {"dense_bytes", lane.bytes},
                    {"counted_by", lane.counted_by},
                    {"counted", lane.counted_in_state}});
  }
  return rows;
}

Json transfers_json(const PlanStudy& study) {
  Json rows = Json::array();
  for (std::size_t t = 0; t < study.cost.transfers.size(); ++t) {
    const Transfer& transfer = study.plan->transfers()[t];
    rows.push_back({{"channel", transfer.channel},
                    {"source", transfer.source},
                    {"lanes", transfer.lanes},
                    {"start_seconds", study.cost.transfers[t].start_seconds},
                    {"end_seconds", study.cost.transfers[t].end_seconds}});
  }
  return rows;
}

Json ranks_json(const PlanStudy& study) {
  Json rows = Json::array();
  for (std::size_t i = 0; i < study.cost.ranks.size(); ++i) {
    const RankCost& rank = study.cost.ranks[i];
    Json row = {{"rank", rank.rank}, {"group", study.group(study.group_of[i]).name}, {"node", study.node_of(i)}};
    for (const RankColumn& column : rank_columns()) row[column.key] = column.value(rank);
    row["busy_seconds"] = rank.busy_seconds;
    row["finish_seconds"] = rank.finish_seconds;
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

nlohmann::ordered_json plan_json(const PlanStudy& study) {
  const FanoutPlan& plan = *study.plan;
  const std::uint64_t dense = plan.table().bytes();
  return {{"trainer", group_json(study, 0)},
          {"engines", engines_json(study)},
          {"scale_down", study.request.scale_down},
          {"max_channels", study.request.options.max_channels_per_rank},
          {"unsent", study.request.options.unsent},
          {"tensors", plan.table().size()},
          {"elements", plan.table().elements()},
          {"dense_bytes", dense},
          {"delta_bytes", study.delta_bytes},
          {"rounds", plan.rounds()},
          {"plan_hash", to_hex(plan.hash())},
          {"read_seconds", study.read_seconds},
          {"plan_seconds", study.plan_seconds},
          {"wire_seconds", study.cost.wire_seconds},
          {"anchor_seconds", study.anchor_seconds},
          {"model", model_json(study)},
          {"dense_way",
           {{"gathered_bytes", dense},
            {"received_bytes_per_rank", dense},
            {"seconds", static_cast<double>(dense) / study.model.world_bytes_per_second}}},
          {"channels", channels_json(study)},
          {"lanes", lanes_json(study)},
          {"transfers", transfers_json(study)},
          {"ranks", ranks_json(study)}};
}

}  // namespace sparsecast::tools
