// SPDX-License-Identifier: Apache-2.0

// sparsecast plan: text.

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "tools/common/report.hpp"
#include "tools/plan/plan_forms.hpp"

namespace sparsecast::tools {
namespace {

constexpr std::size_t kMostRankText = 24;
constexpr std::size_t kMostPatternText = 64;
/// Largest number of groups that are printed with a row each. If there are more, alike groups are joined to one row.
constexpr std::size_t kMostRows = 16;

/// Prints labelled lines aligned as Report does, without its JSON.
class LabelledLines {
 public:
  explicit LabelledLines(std::ostream& out) : out_(out) {}
  void add(const char* label, const std::string& text) { out_ << fmt::format("{:<13} {}\n", label, text); }

 private:
  std::ostream& out_;
};

std::string counted(std::uint64_t count, const char* one, const char* many) {
  return fmt::format("{} {}", human_count(count), count == 1 ? one : many);
}

void print_summary(const PlanStudy& study, std::ostream& out) {
  const FanoutPlan& plan = *study.plan;
  const PlanRequest& request = study.request;
  LabelledLines lines(out);
  lines.add("trainer",
            fmt::format("{}: {}", request.trainer_file, counted(plan.trainer().ranks.size(), "rank", "ranks")));
  lines.add("engines", fmt::format("{}: {}{}", request.engine_file,
                                   request.engines == 1 ? "" : fmt::format("{} replicas, ", request.engines),
                                   counted(study.receivers(), "rank", "ranks")));
  lines.add("tensors", fmt::format("{}, {} elements, {}", human_count(plan.table().size()),
                                   human_count(plan.table().elements()), human_bytes(plan.table().bytes())));
  lines.add(
      "plan",
      fmt::format("{} in {}, {}, {}; {} + {} to read the layouts", counted(plan.routes().size(), "route", "routes"),
                  counted(plan.groups().size(), "group", "groups"), counted(plan.rounds(), "round", "rounds"),
                  counted(plan.transfers().size(), "transfer", "transfers"), human_time(study.plan_seconds),
                  human_time(study.read_seconds)));
  lines.add("plan hash", to_hex(plan.hash()));
  lines.add("delta", fmt::format("{} a sync: {}", human_size(study.delta_bytes), density_words(request)));
  const PhaseTimes& phases = study.cost.phases;
  lines.add("sync time", fmt::format("{} predicted; engines pause for {} of it: apply and votes",
                                     human_time(phases.total()), human_time(phases.pause())));
  lines.add("", phase_words(phases));
  lines.add("", ends_words(request));
  lines.add("", fmt::format("{}, links of its own for every rank", link_words(request)));
  lines.add("seeding", fmt::format("{} on the wire to seed every engine", human_time(study.anchor_seconds)));
  const double dense = static_cast<double>(plan.table().bytes());
  lines.add("dense way", fmt::format("{} gathered on one rank, then as much to each of {}: {} at least",
                                     human_size(dense), counted(study.receivers(), "rank", "ranks"),
                                     human_time(dense / study.model.world_bytes_per_second)));
}

/// Groups that are printed as one row: they carry the same tensors, each to the same number of receivers.
struct GroupRow {
  std::vector<int> groups;
  std::set<int> sources;
  std::set<int> receivers;
  std::size_t receivers_each = 0;
  std::size_t routes = 0;
  std::uint64_t dense_bytes = 0;
  double delta_bytes = 0;
  std::string tensors;
};

std::vector<GroupRow> group_rows(const PlanStudy& study, bool join) {
  std::vector<GroupRow> rows;
  std::map<std::pair<std::string, std::size_t>, std::size_t> row_of;
  for (std::size_t c = 0; c < study.groups.size(); ++c) {
    const RouteGroup& group = study.plan->groups()[c];
    const GroupStudy& of = study.groups[c];
    std::size_t at = rows.size();
    if (join) at = row_of.emplace(std::make_pair(join_patterns(of.tensors), group.receivers.size()), at).first->second;
    if (at == rows.size()) rows.emplace_back();
    GroupRow& row = rows[at];
    row.groups.push_back(static_cast<int>(c));
    row.sources.insert(group.sources.begin(), group.sources.end());
    row.receivers.insert(group.receivers.begin(), group.receivers.end());
    row.receivers_each = group.receivers.size();
    row.routes += of.routes.size();
    row.dense_bytes += of.dense_bytes;
    row.delta_bytes += of.delta_bytes;
    row.tensors = short_patterns(of.tensors, kMostPatternText);
  }
  return rows;
}

std::string ranks_text(const std::set<int>& ranks) {
  return short_rank_ranges(std::vector<int>(ranks.begin(), ranks.end()), kMostRankText);
}

void print_groups(const PlanStudy& study, bool every_group, std::ostream& out) {
  const bool join = !every_group && study.groups.size() > kMostRows;
  out << fmt::format("\nWho sends what to whom in a sync{} (1-9/4: every fourth rank):\n",
                     join ? ", groups with the same tensors together" : "");
  Columns columns({"groups", "sources", "receivers", "each", "routes", "dense", "delta", "tensors"}, 1, true);
  for (const GroupRow& row : group_rows(study, join)) {
    columns.add({short_rank_ranges(row.groups, kMostRankText), ranks_text(row.sources), ranks_text(row.receivers),
                 std::to_string(row.receivers_each), std::to_string(row.routes), human_bytes(row.dense_bytes),
                 human_size(row.delta_bytes), row.tensors});
  }
  columns.print(out);
}

using Words = std::string (*)(double value);

std::string spread_text(const Spread& spread, Words words) {
  std::string least = words(spread.least);
  const std::string most = words(spread.most);
  if (least == most) return least;
  return fmt::format("{} / {} / {}", least, words(spread.median), most);
}

/// Prints one row for consecutive engines with the same numbers.
void print_participants(const PlanStudy& study, const std::vector<RankColumn>& numbers_of, Words words,
                        std::ostream& out) {
  std::vector<std::string> heading = {"least/median/most", "ranks"};
  for (const RankColumn& column : numbers_of) heading.emplace_back(column.label);
  Columns columns(std::move(heading), 2);
  std::vector<int> ranks;
  std::string first;
  std::vector<std::string> numbers;
  const auto flush = [&](const std::string& last) {
    std::vector<std::string> row = {first == last ? first : fmt::format("{} ... {}", first, last),
                                    short_rank_ranges(ranks, kMostRankText)};
    row.insert(row.end(), numbers.begin(), numbers.end());
    columns.add(std::move(row));
  };
  for (std::size_t g = 0; g < study.first_of.size(); ++g) {
    const Participant& participant = study.participant(g);
    std::vector<std::string> next;
    for (const RankColumn& column : numbers_of) next.push_back(spread_text(spread_of(study, g, column.value), words));
    if (g < 2 || next != numbers) {
      if (g > 0) flush(study.participant(g - 1).name);
      ranks.clear();
      first = participant.name;
      numbers = std::move(next);
    }
    ranks.insert(ranks.end(), participant.ranks.begin(), participant.ranks.end());
  }
  flush(study.participant(study.first_of.size() - 1).name);
  columns.print(out);
}

void print_ranks(const PlanStudy& study, std::ostream& out) {
  std::vector<std::string> heading = {"rank", "of", "node"};
  for (const RankColumn& column : rank_columns()) heading.emplace_back(column.label);
  for (const RankColumn& column : rank_times()) heading.emplace_back(column.label);
  Columns columns(std::move(heading), 3);
  for (std::size_t i = 0; i < study.cost.ranks.size(); ++i) {
    const RankCost& rank = study.cost.ranks[i];
    std::vector<std::string> row = {std::to_string(rank.rank), study.participant(study.participant_of[i]).name,
                                    study.node_of(i)};
    for (const RankColumn& column : rank_columns()) row.push_back(human_size(column.value(rank)));
    for (const RankColumn& column : rank_times()) row.push_back(human_time(column.value(rank)));
    columns.add(std::move(row));
  }
  columns.print(out);
}

}  // namespace

std::string density_words(const PlanRequest& request) {
  return fmt::format("{:g} % of the elements change, {:g} bytes each", request.density_percent,
                     request.bytes_per_change);
}

std::string link_words(const PlanRequest& request) {
  return fmt::format("{:g} GB/s between nodes, {:g} GB/s in a node, {:g} us a transfer",
                     request.world_gigabytes_per_second, request.node_gigabytes_per_second,
                     request.latency_microseconds);
}

std::string ends_words(const PlanRequest& request) {
  if (request.ends == "host") return "weights in host memory, one thread a rank: as measured on an AMD EPYC";
  return "weights on devices like an H100: estimated, no device has run this";
}

std::string phase_words(const PhaseTimes& phases) {
  std::string text;
  for (const PhaseColumn& column : phase_columns()) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", column.label, human_time(phases.*column.seconds));
  }
  return text;
}

std::string human_size(double bytes) {
  // A prediction beyond the counter prints as its largest value.
  constexpr double kMost = 1.8e19;
  return human_bytes(static_cast<std::uint64_t>(std::llround(std::min(std::max(bytes, 0.0), kMost / 2))));
}

std::string human_time(double seconds) {
  if (seconds >= 1 || seconds == 0) return human_seconds(seconds);
  if (seconds >= 1e-3) return fmt::format("{:.3g} ms", seconds * 1e3);
  return seconds >= 1e-6 ? fmt::format("{:.3g} us", seconds * 1e6) : fmt::format("{:.3g} ns", seconds * 1e9);
}

void print_plan(const PlanStudy& study, const Every& every, std::ostream& out) {
  print_summary(study, out);
  print_groups(study, every.group, out);
  out << "\nBytes of a sync on the wire, and memory, of a rank:\n";
  print_participants(study, rank_columns(), human_size, out);
  out << "\nPredicted time of a rank in each phase of a sync, and until it has staged everything:\n";
  print_participants(study, rank_times(), human_time, out);
  if (!every.rank) return;
  out << '\n';
  print_ranks(study, out);
}

}  // namespace sparsecast::tools
