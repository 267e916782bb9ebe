// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/plan_picture.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <unordered_map>

#include "tools/plan/plan_forms.hpp"

namespace sparsecast::tools {
namespace {

/// Indices into PlanStudy::cost.ranks.
using MemberIndices = std::vector<std::size_t>;
/// Returns the key that the ranks of one box share.
using Key = std::function<std::string(std::size_t)>;

/// Returns clusters of equal keys, in the order of their first members.
std::vector<MemberIndices> cluster_by(const MemberIndices& ranks, const Key& key) {
  std::vector<MemberIndices> clusters;
  std::unordered_map<std::string, std::size_t> of_key;
  for (const std::size_t i : ranks) {
    const auto [at, added] = of_key.emplace(key(i), clusters.size());
    if (added) clusters.emplace_back();
    clusters[at->second].push_back(i);
  }
  return clusters;
}

/// Joins neighbouring clusters, a power of two at a time, until there are few enough.
std::vector<MemberIndices> join_neighbours(const std::vector<MemberIndices>& clusters) {
  std::size_t together = 1;
  while (clusters.size() > kMostBoxes * together) together *= 2;
  std::vector<MemberIndices> joined((clusters.size() + together - 1) / together);
  for (std::size_t i = 0; i < clusters.size(); ++i) {
    MemberIndices& into = joined[i / together];
    into.insert(into.end(), clusters[i].begin(), clusters[i].end());
  }
  return joined;
}

/// Returns clusters by the first key that gives few enough of them, or joined neighbours by the last key.
std::vector<MemberIndices> few_clusters(const MemberIndices& ranks, const std::vector<Key>& keys) {
  std::vector<MemberIndices> clusters;
  for (const Key& key : keys) {
    clusters = cluster_by(ranks, key);
    if (clusters.size() <= kMostBoxes) return clusters;
  }
  return join_neighbours(clusters);
}

class Painter {
 public:
  explicit Painter(const PlanStudy& study) : study_(study), sends_(ranks()), receives_(ranks()), roles_(ranks()) {
    for (std::size_t i = 0; i < ranks(); ++i) place_[study.cost.ranks[i].rank].push_back(i);
    for (std::size_t c = 0; c < study.groups.size(); ++c) {
      for (const auto& [rank, bytes] : study.groups[c].sent) add_role(trainer_place(rank), c);
      for (const auto& [rank, bytes] : study.groups[c].received) add_role(engine_place(rank), c);
    }
  }

  Picture paint() {
    paint_senders();
    paint_receivers();
    paint_groups();
    paint_bands();
    return std::move(picture_);
  }

 private:
  std::size_t ranks() const { return study_.cost.ranks.size(); }
  /// A rank of both the trainer and an engine has two places, the first for the trainer.
  std::size_t trainer_place(int rank) const { return place_.at(rank).front(); }
  std::size_t engine_place(int rank) const { return place_.at(rank).back(); }
  void add_role(std::size_t place, std::size_t group) { roles_[place] += fmt::format("{},", group); }

  std::string node_key(std::size_t i) const {
    const std::string& node = study_.node_of(i);
    return fmt::format("{} {}", study_.participant_of[i], node.empty() ? fmt::format("\n{}", i) : node);
  }

  std::vector<int> world_ranks(const MemberIndices& members) const {
    std::vector<int> ranks;
    for (const std::size_t i : members) ranks.push_back(study_.cost.ranks[i].rank);
    std::sort(ranks.begin(), ranks.end());
    return ranks;
  }

  /// Returns the node that all members are on, with a separator; otherwise nothing.
  std::string node_text(const MemberIndices& members) const {
    const std::string& node = study_.node_of(members.front());
    const bool same =
        std::all_of(members.begin(), members.end(), [&](std::size_t i) { return study_.node_of(i) == node; });
    return same && !node.empty() ? node + ": " : "";
  }

  PictureBox box_of(const MemberIndices& members, double bytes, const char* what) const {
    PictureBox box;
    box.members = world_ranks(members);
    const char* word = members.size() == 1 ? "rank" : "ranks";
    box.label = fmt::format("{}{} {}", node_text(members), word, short_rank_ranges(box.members, 16));
    box.title =
        fmt::format("{}{} {}: {} {}", node_text(members), word, rank_ranges(box.members), human_size(bytes), what);
    return box;
  }

  void paint_senders() {
    MemberIndices active;
    for (std::size_t i = 0; i < study_.plan->trainer().ranks.size(); ++i) {
      if (!roles_[i].empty()) active.push_back(i);
    }
    picture_.silent = study_.plan->trainer().ranks.size() - active.size();
    const Key by_node = [&](std::size_t i) { return node_key(i); };
    const std::vector<MemberIndices> clusters = few_clusters(
        active,
        {[](std::size_t i) { return std::to_string(i); }, by_node, [&](std::size_t i) { return roles_[i]; }, by_node});
    for (const MemberIndices& members : clusters) {
      double bytes = 0;
      for (const std::size_t i : members) bytes += study_.cost.ranks[i].sent_bytes;
      for (const std::size_t i : members) sends_[i] = picture_.senders.size();
      picture_.senders.push_back(box_of(members, bytes, "sent a sync"));
    }
    if (!picture_.senders.empty()) picture_.senders.front().heading = "trainer";
  }

  void paint_receivers() {
    MemberIndices all(study_.receivers());
    std::iota(all.begin(), all.end(), study_.plan->trainer().ranks.size());
    const std::vector<MemberIndices> clusters =
        few_clusters(all, {[](std::size_t i) { return std::to_string(i); }, [&](std::size_t i) { return node_key(i); },
                           [&](std::size_t i) { return fmt::format("{} {}", study_.participant_of[i], roles_[i]); },
                           [&](std::size_t i) { return std::to_string(study_.participant_of[i]); }});
    std::size_t before = 0;
    for (const MemberIndices& members : clusters) {
      double bytes = 0;
      for (const std::size_t i : members) bytes += study_.cost.ranks[i].received_bytes;
      for (const std::size_t i : members) receives_[i] = picture_.receivers.size();
      PictureBox box = box_of(members, bytes / static_cast<double>(members.size()), "received a sync and rank");
      const std::size_t engine = study_.participant_of[members.front()];
      if (engine != before) box.heading = study_.participant(engine).name;
      before = engine;
      picture_.receivers.push_back(std::move(box));
    }
  }

  /// Returns the boxes that a group connects.
  std::string ends_of(std::size_t group) const {
    std::vector<std::size_t> from;
    std::vector<std::size_t> to;
    for (const auto& [rank, bytes] : study_.groups[group].sent) from.push_back(sends_[trainer_place(rank)]);
    for (const auto& [rank, bytes] : study_.groups[group].received) to.push_back(receives_[engine_place(rank)]);
    for (std::vector<std::size_t>* boxes : {&from, &to}) {
      std::sort(boxes->begin(), boxes->end());
      boxes->erase(std::unique(boxes->begin(), boxes->end()), boxes->end());
    }
    return fmt::format("{}>{}", fmt::join(from, ","), fmt::join(to, ","));
  }

  double bytes_of(const MemberIndices& groups) const {
    double bytes = 0;
    for (const std::size_t c : groups) bytes += study_.groups[c].delta_bytes;
    return bytes;
  }

  /// Returns the mean position at which the bytes of a cluster of groups leave the senders: in this order bands cross
  /// least.
  double middle_of(const MemberIndices& groups) const {
    double weighted = 0;
    for (const std::size_t c : groups) {
      for (const auto& [rank, bytes] : study_.groups[c].sent) {
        weighted += bytes * static_cast<double>(sends_[trainer_place(rank)]);
      }
    }
    const double bytes = bytes_of(groups);
    return bytes > 0 ? weighted / bytes : 0;
  }

  void paint_groups() {
    MemberIndices all(study_.groups.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    std::vector<MemberIndices> clusters = cluster_by(all, [&](std::size_t c) { return ends_of(c); });
    std::stable_sort(clusters.begin(), clusters.end(),
                     [&](const MemberIndices& a, const MemberIndices& b) { return bytes_of(a) > bytes_of(b); });
    while (clusters.size() > kMostBoxes) {
      MemberIndices& last = clusters[clusters.size() - 2];
      last.insert(last.end(), clusters.back().begin(), clusters.back().end());
      clusters.pop_back();
    }
    std::stable_sort(clusters.begin(), clusters.end(),
                     [&](const MemberIndices& a, const MemberIndices& b) { return middle_of(a) < middle_of(b); });
    for (const MemberIndices& members : clusters) {
      PictureBox box;
      for (const std::size_t c : members) box.members.push_back(static_cast<int>(c));
      std::sort(box.members.begin(), box.members.end());
      const char* word = members.size() == 1 ? "group" : "groups";
      box.label = fmt::format("{} {}", word, short_rank_ranges(box.members, 16));
      box.title = fmt::format("{} {}: {} a sync", word, rank_ranges(box.members), human_size(bytes_of(members)));
      if (members.size() == 1) box.title += "; " + join_patterns(study_.groups[members.front()].tensors);
      picture_.groups.push_back(std::move(box));
    }
  }

  void paint_bands() {
    for (std::size_t m = 0; m < picture_.groups.size(); ++m) {
      std::vector<double> sent(picture_.senders.size(), 0);
      std::vector<double> received(picture_.receivers.size(), 0);
      for (const int c : picture_.groups[m].members) {
        const GroupStudy& group = study_.groups[static_cast<std::size_t>(c)];
        for (const auto& [rank, bytes] : group.sent) sent[sends_[trainer_place(rank)]] += bytes;
        for (const auto& [rank, bytes] : group.received) received[receives_[engine_place(rank)]] += bytes;
      }
      add_bands(m, sent, received);
    }
  }

  void add_bands(std::size_t group, const std::vector<double>& sent, const std::vector<double>& received) {
    const std::string& middle = picture_.groups[group].label;
    for (std::size_t s = 0; s < sent.size(); ++s) {
      if (sent[s] == 0) continue;
      picture_.sent.push_back(
          {s, group, sent[s],
           fmt::format("{} to {}: {} a sync", picture_.senders[s].label, middle, human_size(sent[s]))});
    }
    for (std::size_t r = 0; r < received.size(); ++r) {
      if (received[r] == 0) continue;
      const PictureBox& box = picture_.receivers[r];
      const double mean = received[r] / static_cast<double>(box.members.size());
      picture_.received.push_back(
          {group, r, mean, fmt::format("{} to {}: {} a sync and rank", middle, box.label, human_size(mean))});
    }
  }

  const PlanStudy& study_;
  Picture picture_;
  std::unordered_map<int, MemberIndices> place_;  ///< Places of each world rank.
  std::vector<std::size_t> sends_;                ///< Box of the sender at each place.
  std::vector<std::size_t> receives_;             ///< Box of the receiver at each place.
  std::vector<std::string> roles_;                ///< Groups in which the rank at each place has routes.
};

}  // namespace

Picture make_picture(const PlanStudy& study) { return Painter(study).paint(); }

}  // namespace sparsecast::tools
