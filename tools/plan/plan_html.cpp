// SPDX-License-Identifier: Apache-2.0

// sparsecast plan --html: one self-contained page.

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "tools/common/page.hpp"
#include "tools/common/report.hpp"
#include "tools/plan/plan_forms.hpp"
#include "tools/plan/plan_picture.hpp"

namespace sparsecast::tools {
namespace {

std::string summary(const PlanStudy& study) {
  std::string out = "<dl>\n";
  const auto add = [&](const char* term, const std::string& text) {
    out += fmt::format("<dt>{}</dt><dd>{}</dd>\n", term, escape_markup(text));
  };
  const FanoutPlan& plan = *study.plan;
  const PlanRequest& request = study.request;
  add("trainer", fmt::format("{}, {} ranks", request.trainer_file, plan.trainer().ranks.size()));
  add("engines", fmt::format("{} of {}, {} ranks", plan.engines().size(), request.engine_file, study.receivers()));
  add("tensors", fmt::format("{}, {}", human_count(plan.table().size()), human_bytes(plan.table().bytes())));
  add("plan", fmt::format("{} routes, {} groups in {} rounds, {} transfers; {}", plan.routes().size(),
                          plan.groups().size(), plan.rounds(), plan.transfers().size(), to_hex(plan.hash())));
  add("delta", fmt::format("{} a sync: {}", human_size(study.delta_bytes), density_words(request)));
  add("sync time", fmt::format("{}: {}; predicted for {}, {}", human_time(study.cost.phases.total()),
                               phase_words(study.cost.phases), ends_words(request), link_words(request)));
  add("pause", fmt::format("{}: apply and votes", human_time(study.cost.phases.pause())));
  add("seeding", fmt::format("{} on the wire to seed every engine", human_time(study.anchor_seconds)));
  return out + "</dl>\n";
}

std::string group_table(const PlanStudy& study) {
  PageTable table({"group", "round", "sources", "receivers", "routes", "dense", "delta", "for nothing", "tensors"},
                  {false, false, true, true, false, false, false, false, true});
  for (std::size_t c = 0; c < study.groups.size(); ++c) {
    const RouteGroup& group = study.plan->groups()[c];
    const GroupStudy& of = study.groups[c];
    table.add({std::to_string(c), std::to_string(group.round), rank_ranges(group.sources), rank_ranges(group.receivers),
               std::to_string(of.routes.size()), human_bytes(of.dense_bytes), human_size(of.delta_bytes),
               human_size(of.foreign_bytes), join_patterns(of.tensors)});
  }
  return table.end();
}

std::string participant_table(const PlanStudy& study) {
  std::vector<std::string> heading = {"participant", "ranks", ""};
  for (const RankColumn& column : rank_columns()) heading.emplace_back(column.label);
  for (const RankColumn& column : rank_times()) heading.emplace_back(column.label);
  std::vector<bool> left(heading.size(), false);
  std::fill_n(left.begin(), 3, true);
  PageTable table(heading, left);
  for (std::size_t g = 0; g < study.first_of.size(); ++g) {
    const Participant& participant = study.participant(g);
    std::vector<std::string> rows[3] = {
        {participant.name, rank_ranges(participant.ranks), "least"}, {"", "", "median"}, {"", "", "most"}};
    for (const RankColumn& column : rank_columns()) {
      const Spread spread = spread_of(study, g, column.value);
      rows[0].push_back(human_size(spread.least));
      rows[1].push_back(human_size(spread.median));
      rows[2].push_back(human_size(spread.most));
    }
    for (const RankColumn& column : rank_times()) {
      const Spread spread = spread_of(study, g, column.value);
      rows[0].push_back(human_time(spread.least));
      rows[1].push_back(human_time(spread.median));
      rows[2].push_back(human_time(spread.most));
    }
    for (const std::vector<std::string>& row : rows) table.add(row);
  }
  return table.end();
}

}  // namespace

std::string plan_html(const PlanStudy& study) {
  const Picture picture = make_picture(study);
  std::string page = page_start("Fan-out plan");
  page += summary(study);
  page +=
      "<h2>Senders, groups, receivers</h2>\n<p class=\"note\">Left, the bytes that leave each sender, once, however "
      "many ranks get them; right, those that one rank of a box gets for itself.";
  if (picture.silent > 0) page += fmt::format(" {} trainer ranks send nothing: others hold the same.", picture.silent);
  page += "</p>\n" + flow_svg(picture) + group_table(study);
  page +=
      "<h2>Schedule</h2>\n<p class=\"note\">Above, the phases of the sync: what the rank that staged last waited for, "
      "then the steps of all ranks; red, the pause of the engines. Below, a row a group; every rank takes part in the "
      "transfers of its groups in one agreed order.</p>\n" +
      schedule_svg(study, picture);
  page += "<h2>Ranks</h2>\n<p class=\"note\">Bytes of a sync on the wire, memory, and predicted times.</p>\n" +
          participant_table(study);
  return page + page_end();
}

}  // namespace sparsecast::tools
