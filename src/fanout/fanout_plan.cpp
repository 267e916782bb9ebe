// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "fanout/cells.hpp"
#include "fanout/hash.hpp"
#include "fanout/names.hpp"
#include "fanout/route_groups.hpp"
#include "fanout/routes.hpp"
#include "fanout/schedule.hpp"
#include "fanout/senders.hpp"
#include "fanout/world_ranks.hpp"
#include "sparsecast/error.hpp"
#include "sparsecast/fanout_plan.hpp"

namespace sparsecast {
namespace {

/// All of a plan that depends on which engines may share routes.
struct PlanDraft {
  std::vector<Route> routes;
  fanout::RouteGroups groups;
  fanout::Schedule schedule;
};

PlanDraft make_draft(const fanout::WorldRanks& world, const fanout::CanonicalNames& names, const fanout::Cells& cells,
                     const std::vector<std::uint32_t>& classes, const PlanOptions& options) {
  PlanDraft draft;
  {
    const auto senders = fanout::choose_senders(world, names.table, cells, classes, options.route_cost_bytes);
    draft.routes = fanout::make_routes(world, names, cells, senders);
  }
  draft.groups = fanout::make_groups(world, draft.routes, options.max_groups_per_rank);
  draft.schedule = fanout::schedule_transfers(world, draft.routes, draft.groups.groups);
  return draft;
}

/// The rule is in plan_groups.hpp, number 4.
PlanDraft make_best_draft(const fanout::WorldRanks& world, const fanout::CanonicalNames& names,
                          const PlanOptions& options) {
  const fanout::Cells cells = fanout::cut_cells(world, names);
  const std::vector<std::uint32_t> together(world.participants() - 1, 0);
  PlanDraft draft = make_draft(world, names, cells, together, options);
  if (!draft.groups.merged) return draft;
  const std::vector<std::uint32_t> classes = fanout::classify_engines(world, cells);
  if (classes == together) return draft;
  PlanDraft apart = make_draft(world, names, cells, classes, options);
  const bool worth = apart.schedule.length < draft.schedule.length / 4 * 3;
  return worth ? std::move(apart) : std::move(draft);
}

}  // namespace

FanoutPlan::FanoutPlan(Participant trainer, std::vector<Participant> engines, const PlanOptions& options)
    : trainer_(std::move(trainer)), engines_(std::move(engines)) {
  if (options.max_groups_per_rank == 0) {
    throw Error(ErrorCode::kUsage, "max_groups_per_rank is 0", "fan-out plan");
  }
  const fanout::WorldRanks world(trainer_, engines_);
  fanout::CanonicalNames names = fanout::resolve_names(world, options.unsent);
  PlanDraft draft = make_best_draft(world, names, options);
  routes_ = std::move(draft.routes);
  groups_ = std::move(draft.groups.groups);
  rounds_ = draft.groups.rounds;
  transfers_ = std::move(draft.schedule.transfers);
  table_ = std::move(names.table);
  tensor_of_ = std::move(names.tensor_of);
  hash_ = fanout::hash_plan(*this, options);
}

}  // namespace sparsecast
