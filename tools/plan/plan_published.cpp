// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/plan_published.hpp"

#include <fmt/format.h>

#include "tools/common/report.hpp"
#include "tools/plan/plan_forms.hpp"

namespace sparsecast::tools {
namespace {

/// The first one says how both sides cut the model; it is the one that the share of the links is calibrated on.
const std::vector<PublishedTransfer>& published_transfers() {
  static const std::vector<PublishedTransfer> transfers = {
      {"DeepSeek-V3", "deepseek-v3.megatron-pp16-ep16", "deepseek-v3.vllm-tp32", 8, 1, 2.39, 2.83,
       "https://github.com/NVIDIA-NeMo/RL/blob/main/docs/design-docs/nccl-reshard-refit.md",
       "Both cuts are published (PP16 x EP16 to TP32 x DP8, H100, bf16), the links are not. 2.4 % of the bytes were "
       "broadcast in full to every rank, which the model does not know."},
      {"Qwen3-30B-A3B", "qwen3-30b-a3b.megatron-pp2-ep8", "qwen3-30b-a3b.sglang-tp8-ep8", 2, 1, 0.74, 1.00,
       "https://github.com/NVIDIA-NeMo/RL/blob/main/docs/design-docs/nccl-reshard-refit.md",
       "As above (EP8 x PP2 to TP8 x DP2), with 5 % of the bytes broadcast in full to every rank."},
      {"Kimi-K2", "kimi-k2.megatron-tp8-pp8-dp4-ep32", "kimi-k2.sglang-ep64", 2, 0.5, 1.3, 1.3,
       "https://research.perplexity.ai/articles/weight-transfer-for-rl-post-training-in-under-2-seconds",
       "256 GPUs in bf16 to 128 in fp8 are published, their cuts are not: the trainer was FSDP, and gathers and "
       "quantises within the published time; here it is Megatron, and both are left out."},
      {"Qwen3-235B-A22B", "qwen3-235b-a22b.megatron-tp4-pp4-dp8-ep16", "qwen3-235b-a22b.sglang-dp4-ep32", 1, 0.5, 2, 2,
       "https://le.qun.ch/en/blog/2025/09/07/rl-weight-transfer",
       "128 GPUs in bf16 to 32 in fp8 are published, their cuts are not: as for Kimi-K2, by an earlier version of the "
       "same program. Its tensors are gathered and quantised before they travel, which is left out."}};
  return transfers;
}

/// For densities in percent: the bytes per change of bf16 weights by AdamW (bench/results/2026-11-21-cpu.md).
constexpr std::pair<double, double> kDensities[] = {{0.1, 1.743}, {1, 1.287}, {3, 1.110}};

CostModel slower(CostModel model, double share) {
  model.node_bytes_per_second *= share;
  model.world_bytes_per_second *= share;
  return model;
}

std::string published_seconds(const PublishedTransfer& published) {
  if (published.least_seconds == published.most_seconds) return fmt::format("{:g} s", published.least_seconds);
  return fmt::format("{:g} to {:g} s", published.least_seconds, published.most_seconds);
}

PublishedRow make_row(const PublishedTransfer& published, const PlanStudy& plan, double share, double line_seconds) {
  PublishedRow row{&published, plan.plan->trainer().ranks.size(), plan.receivers(), 0, line_seconds, 0, {}};
  const double dense = static_cast<double>(plan.plan->table().bytes());
  row.wire_bytes = dense * published.bytes_per_byte;
  CostModel all = slower(dense_wire(plan.model), share);
  all.wire_bytes_per_byte = published.bytes_per_byte;
  row.seconds = predict_cost(*plan.plan, all).phases.wire_seconds;
  for (const auto& [density_percent, bytes_per_change] : kDensities) {
    PlanRequest request = plan.request;
    request.density_percent = density_percent;
    request.bytes_per_change = bytes_per_change;
    const CostModel model = slower(model_of(request, plan.plan->table()), share);
    row.syncs.push_back(
        {density_percent, bytes_per_change, dense * model.wire_bytes_per_byte, predict_cost(*plan.plan, model).phases});
  }
  return row;
}

}  // namespace

PublishedStudy study_published(FileSystem& fs, const std::string& layouts, const PlanRequest& request) {
  PublishedStudy study{request, 0, {}};
  for (const PublishedTransfer& published : published_transfers()) {
    PlanRequest of = request;
    of.trainer_file = fmt::format("{}/{}.json", layouts, published.trainer);
    of.engine_file = fmt::format("{}/{}.json", layouts, published.engine);
    of.engines = published.engines;
    const PlanStudy plan = study_plan(fs, of);
    CostModel line = dense_wire(plan.model);
    line.wire_bytes_per_byte = published.bytes_per_byte;
    const double seconds = predict_cost(*plan.plan, line).phases.wire_seconds;
    if (study.rows.empty()) study.share = seconds / published.middle();
    study.rows.push_back(make_row(published, plan, study.share, seconds));
  }
  return study;
}

void print_published(const PublishedStudy& study, std::ostream& out) {
  out << "Transfers of all weights: published, and predicted for plans of the same models and numbers of ranks.\n";
  Columns dense({"model", "ranks", "bytes", "published", "at line rate", "ratio", "calibrated", "ratio"}, 1);
  for (const PublishedRow& row : study.rows) {
    const PublishedTransfer& published = *row.published;
    dense.add({published.model, fmt::format("{} to {}", row.senders, row.receivers), human_size(row.wire_bytes),
               published_seconds(published), human_time(row.line_seconds),
               fmt::format("{:.2f}", published.middle() / row.line_seconds), human_time(row.seconds),
               fmt::format("{:.2f}", published.middle() / row.seconds)});
  }
  dense.print(out);
  out << fmt::format(
      "Links: {}. Ratio: published time to predicted time, which is the wire alone.\n"
      "Calibrated: links at {:.0f} % of that rate, so that the first row takes the middle of what was published; no "
      "other number is fitted.\n",
      link_words(study.request), 100 * study.share);
  out << "\nA sync by the same plans in bf16, predicted, on the calibrated links; " << ends_words(study.request)
      << ":\n";
  std::vector<std::string> heading = {"model", "changed", "B/change", "delta", "sync", "pause"};
  for (const PhaseColumn& column : phase_columns()) heading.emplace_back(column.label);
  heading.emplace_back("published / sync");
  Columns sparse(std::move(heading), 1);
  for (const PublishedRow& row : study.rows) {
    for (const SparseSync& sync : row.syncs) {
      std::vector<std::string> cells = {row.published->model,
                                        fmt::format("{:g} %", sync.density_percent),
                                        fmt::format("{:g}", sync.bytes_per_change),
                                        human_size(sync.delta_bytes),
                                        human_time(sync.phases.total()),
                                        human_time(sync.phases.pause())};
      for (const PhaseColumn& column : phase_columns()) cells.push_back(human_time(sync.phases.*column.seconds));
      const double times = row.published->middle() / sync.phases.total();
      cells.push_back(fmt::format("{:.{}f}", times, times < 10 ? 1 : 0));
      sparse.add(std::move(cells));
    }
  }
  sparse.print(out);
  out << "\nSources, and what they do not say:\n";
  for (const PublishedRow& row : study.rows) {
    out << fmt::format("{}: {}\n  {}\n", row.published->model, row.published->source, row.published->assumed);
  }
}

nlohmann::ordered_json published_json(const PublishedStudy& study) {
  using Json = nlohmann::ordered_json;
  Json rows = Json::array();
  for (const PublishedRow& row : study.rows) {
    Json syncs = Json::array();
    for (const SparseSync& sync : row.syncs) {
      syncs.push_back({{"density", sync.density_percent / 100},
                       {"bytes_per_change", sync.bytes_per_change},
                       {"delta_bytes", sync.delta_bytes},
                       {"sync_seconds", sync.phases.total()},
                       {"pause_seconds", sync.phases.pause()},
                       {"phases", phases_json(sync.phases)}});
    }
    rows.push_back({{"model", row.published->model},
                    {"trainer", row.published->trainer},
                    {"engine", row.published->engine},
                    {"engines", row.published->engines},
                    {"senders", row.senders},
                    {"receivers", row.receivers},
                    {"wire_bytes", row.wire_bytes},
                    {"published_seconds", {row.published->least_seconds, row.published->most_seconds}},
                    {"line_rate_seconds", row.line_seconds},
                    {"calibrated_seconds", row.seconds},
                    {"syncs", std::move(syncs)},
                    {"source", row.published->source},
                    {"assumed", row.published->assumed}});
  }
  return {{"world_bytes_per_second", study.request.world_gigabytes_per_second * 1e9},
          {"node_bytes_per_second", study.request.node_gigabytes_per_second * 1e9},
          {"ends", study.request.ends},
          {"calibrated_share", study.share},
          {"rows", std::move(rows)}};
}

}  // namespace sparsecast::tools
