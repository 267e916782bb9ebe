// SPDX-License-Identifier: Apache-2.0
#include "fanout/routes.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <numeric>
#include <queue>
#include <tuple>
#include <vector>

#include "fanout/interner.hpp"

namespace sparsecast::fanout {
namespace {

/// A set of dense ranks.
class RankSet {
 public:
  explicit RankSet(std::uint32_t ranks) : words_((ranks + 63) / 64) {}

  void insert(std::uint32_t rank) { words_[rank / 64] |= std::uint64_t{1} << (rank % 64); }
  bool contains(std::uint32_t rank) const { return (words_[rank / 64] >> (rank % 64) & 1) != 0; }
  RankSet& operator|=(const RankSet& other) {
    for (std::size_t i = 0; i < words_.size(); ++i) words_[i] |= other.words_[i];
    return *this;
  }
  std::uint64_t size() const {
    std::uint64_t count = 0;
    for (const std::uint64_t word : words_) count += static_cast<std::uint64_t>(std::popcount(word));
    return count;
  }
  /// Returns the size of the union of both sets.
  std::uint64_t size_with(const RankSet& other) const {
    std::uint64_t count = 0;
    for (std::size_t i = 0; i < words_.size(); ++i) {
      count += static_cast<std::uint64_t>(std::popcount(words_[i] | other.words_[i]));
    }
    return count;
  }
  /// Calls visit_rank(rank) for each rank, ascending.
  template <class Visit>
  void visit(const Visit& visit_rank) const {
    for (std::size_t i = 0; i < words_.size(); ++i) {
      for (std::uint64_t word = words_[i]; word != 0; word &= word - 1) {
        visit_rank(static_cast<std::uint32_t>(i * 64 + static_cast<std::size_t>(std::countr_zero(word))));
      }
    }
  }
  friend auto operator<=>(const RankSet&, const RankSet&) = default;

 private:
  std::vector<std::uint64_t> words_;
};

/// All routes from one source to one set of receiver ranks.
struct Flow {
  std::uint32_t source = 0;     ///< Dense rank of the source.
  std::uint32_t receivers = 0;  ///< Index of the set of receivers in the list of receiver sets.
  std::uint64_t bytes = 0;
  std::vector<std::uint32_t> routes;
};

/// A group that is not final yet.
struct GroupDraft {
  std::vector<std::uint32_t> flows;  ///< Flows of the draft; ordered by source once merging is done.
  RankSet members;
  std::uint64_t bytes = 0;
};

/// Most pairs that are compared to join two groups of a rank.
constexpr std::size_t kMostPairs = 1024;

__extension__ using Wide = __int128;  // Bytes times ranks may not fit 64 bits.

class GroupMaker {
 public:
  GroupMaker(const WorldRanks& world, const std::vector<Route>& routes, std::size_t most)
      : world_(world), most_(most), of_rank_(world.size()) {
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> flow_of;
    ListInterner sets;
    for (std::uint32_t l = 0; l < routes.size(); ++l) {
      std::vector<std::uint32_t> ranks;
      for (const Destination& destination : routes[l].destinations) {
        if (ranks.empty() || ranks.back() != world.place_of(destination.rank))
          ranks.push_back(world.place_of(destination.rank));
      }
      const std::uint32_t set = sets.intern(ranks);
      if (set == receiver_sets_.size()) add_receivers(ranks);
      const auto [flow, fresh] =
          flow_of.emplace(std::pair(world.place_of(routes[l].source), set), static_cast<std::uint32_t>(flows_.size()));
      if (fresh) add_flow(world.place_of(routes[l].source), set);
      flows_[flow->second].bytes += routes[l].bytes;
      flows_[flow->second].routes.push_back(l);
      drafts_[set].bytes += routes[l].bytes;
    }
  }

  /// Does step 2 of the rule in routes.hpp. Returns whether any groups had to be joined.
  bool merge() {
    for (std::uint32_t g = 0; g < drafts_.size(); ++g) {
      drafts_[g].members.visit([&](std::uint32_t rank) { of_rank_[rank].push_back(g); });
    }
    for (bool merged = false;; merged = true) {
      const auto worst = std::max_element(of_rank_.begin(), of_rank_.end(),
                                          [](const auto& a, const auto& b) { return a.size() < b.size(); });
      if (worst == of_rank_.end() || worst->size() <= most_) return merged;
      merge_one_of(*worst);
    }
  }

  void split() {
    std::priority_queue<std::tuple<Wide, std::uint32_t, std::size_t>>
        splits;  // Savings, draft, size of its first half.
    const auto offer = [&](std::uint32_t draft) {
      const auto [saved, at] = best_split(drafts_[draft]);
      // Among equal savings, the first draft wins.
      if (saved > 0) splits.emplace(saved, kNone - draft, at);
    };
    for (std::uint32_t g = 0; g < drafts_.size(); ++g) {
      std::sort(drafts_[g].flows.begin(), drafts_[g].flows.end(), [&](std::uint32_t a, std::uint32_t b) {
        return std::tie(flows_[a].source, flows_[a].receivers) < std::tie(flows_[b].source, flows_[b].receivers);
      });
      if (!drafts_[g].flows.empty()) offer(g);
    }
    while (!splits.empty()) {
      const auto [saved, key, at] = splits.top();
      splits.pop();
      const std::uint32_t draft = kNone - key;
      if (!try_split(draft, at)) continue;
      offer(draft);
      offer(static_cast<std::uint32_t>(drafts_.size() - 1));
    }
  }

  std::vector<RouteGroup> finish(std::vector<Route>& routes) {
    struct Made {
      RouteGroup group;
      std::uint32_t draft = 0;
    };
    std::vector<Made> made;
    for (std::uint32_t g = 0; g < drafts_.size(); ++g) {
      if (!drafts_[g].flows.empty()) made.push_back({describe(drafts_[g]), g});
    }
    std::sort(made.begin(), made.end(), [](const Made& a, const Made& b) {
      return std::tie(a.group.sources, a.group.receivers, a.draft) <
             std::tie(b.group.sources, b.group.receivers, b.draft);
    });
    std::vector<RouteGroup> groups;
    for (Made& one : made) {
      // Groups joined from different receiver sets may have the same members.
      if (groups.empty() || groups.back().sources != one.group.sources ||
          groups.back().receivers != one.group.receivers) {
        groups.push_back(std::move(one.group));
      }
      for (const std::uint32_t flow : drafts_[one.draft].flows) {
        for (const std::uint32_t route : flows_[flow].routes) {
          routes[route].group = static_cast<std::uint32_t>(groups.size() - 1);
        }
      }
    }
    return groups;
  }

 private:
  void add_receivers(const std::vector<std::uint32_t>& ranks) {
    receiver_sets_.emplace_back(world_.size());
    for (const std::uint32_t rank : ranks) receiver_sets_.back().insert(rank);
    drafts_.push_back({{}, receiver_sets_.back(), 0});
  }

  void add_flow(std::uint32_t source, std::uint32_t set) {
    drafts_[set].flows.push_back(static_cast<std::uint32_t>(flows_.size()));
    drafts_[set].members.insert(source);
    flows_.push_back({source, set, 0, {}});
  }

  /// Returns the bytes that the members of a group receive, wanted or not.
  static Wide delivered(std::uint64_t bytes, std::uint64_t members) {
    return static_cast<Wide>(bytes) * static_cast<Wide>(members - 1);
  }

  Wide additional(const GroupDraft& a, const GroupDraft& b) const {
    return delivered(a.bytes + b.bytes, a.members.size_with(b.members)) - delivered(a.bytes, a.members.size()) -
           delivered(b.bytes, b.members.size());
  }

  void merge_one_of(std::vector<std::uint32_t> drafts) {
    std::sort(drafts.begin(), drafts.end(), [&](std::uint32_t a, std::uint32_t b) {
      return std::tie(drafts_[a].bytes, a) < std::tie(drafts_[b].bytes, b);
    });
    const std::size_t firsts = std::clamp<std::size_t>(kMostPairs / drafts.size(), 1, drafts.size());
    std::uint32_t from = kNone;
    std::uint32_t into = kNone;
    Wide least = 0;
    for (std::size_t i = 0; i < firsts; ++i) {
      for (std::size_t k = i + 1; k < drafts.size(); ++k) {
        const Wide more = additional(drafts_[drafts[i]], drafts_[drafts[k]]);
        if (from != kNone && more >= least) continue;
        from = drafts[i];
        into = drafts[k];
        least = more;
      }
    }
    join(from, into);
  }

  void join(std::uint32_t from, std::uint32_t into) {
    GroupDraft& gone = drafts_[from];
    GroupDraft& kept = drafts_[into];
    gone.members.visit([&](std::uint32_t rank) {
      std::vector<std::uint32_t>& drafts = of_rank_[rank];
      drafts.erase(std::find(drafts.begin(), drafts.end(), from));
      if (!kept.members.contains(rank)) drafts.push_back(into);
    });
    kept.members |= gone.members;
    kept.bytes += gone.bytes;
    kept.flows.insert(kept.flows.end(), gone.flows.begin(), gone.flows.end());
    gone = {{}, RankSet(world_.size()), 0};
  }

  /// Returns the savings of splitting the draft into halves of about equal bytes, and the number of flows in the first
  /// half.
  std::pair<Wide, std::size_t> best_split(const GroupDraft& draft) const {
    std::uint64_t before = 0;
    std::uint64_t least = ~std::uint64_t{0};
    std::size_t at = 0;
    for (std::size_t i = 0; i + 1 < draft.flows.size(); ++i) {
      before += flows_[draft.flows[i]].bytes;
      if (flows_[draft.flows[i]].source == flows_[draft.flows[i + 1]].source) continue;
      const std::uint64_t after = draft.bytes - before;
      const std::uint64_t difference = before > after ? before - after : after - before;
      if (difference >= least) continue;
      least = difference;
      at = i + 1;
    }
    if (at == 0) return {0, 0};
    const GroupDraft first = section_of(draft, 0, at);
    const GroupDraft second = section_of(draft, at, draft.flows.size());
    return {delivered(draft.bytes, draft.members.size()) - delivered(first.bytes, first.members.size()) -
                delivered(second.bytes, second.members.size()),
            at};
  }

  GroupDraft section_of(const GroupDraft& draft, std::size_t begin, std::size_t end) const {
    GroupDraft part{{draft.flows.begin() + static_cast<std::ptrdiff_t>(begin),
                     draft.flows.begin() + static_cast<std::ptrdiff_t>(end)},
                    RankSet(world_.size()),
                    0};
    for (const std::uint32_t flow : part.flows) {
      part.members.insert(flows_[flow].source);
      part.members |= receiver_sets_[flows_[flow].receivers];
      part.bytes += flows_[flow].bytes;
    }
    return part;
  }

  bool try_split(std::uint32_t draft, std::size_t at) {
    GroupDraft first = section_of(drafts_[draft], 0, at);
    GroupDraft second = section_of(drafts_[draft], at, drafts_[draft].flows.size());
    bool room = true;
    second.members.visit(
        [&](std::uint32_t rank) { room = room && (!first.members.contains(rank) || of_rank_[rank].size() < most_); });
    if (!room) return false;
    const auto fresh = static_cast<std::uint32_t>(drafts_.size());
    second.members.visit([&](std::uint32_t rank) {
      std::vector<std::uint32_t>& drafts = of_rank_[rank];
      if (!first.members.contains(rank)) drafts.erase(std::find(drafts.begin(), drafts.end(), draft));
      drafts.push_back(fresh);
    });
    drafts_[draft] = std::move(first);
    drafts_.push_back(std::move(second));
    return true;
  }

  RouteGroup describe(const GroupDraft& draft) const {
    RankSet sources(world_.size());
    RankSet receivers(world_.size());
    for (const std::uint32_t flow : draft.flows) {
      sources.insert(flows_[flow].source);
      receivers |= receiver_sets_[flows_[flow].receivers];
    }
    return {worlds_of(sources), worlds_of(receivers), worlds_of(draft.members), 0};
  }

  std::vector<int> worlds_of(const RankSet& ranks) const {
    std::vector<int> worlds;
    ranks.visit([&](std::uint32_t rank) { worlds.push_back(world_[rank].world); });
    return worlds;
  }

  const WorldRanks& world_;
  const std::size_t most_;
  std::vector<RankSet> receiver_sets_;
  std::vector<Flow> flows_;
  std::vector<GroupDraft> drafts_;  ///< At first one draft for each receiver set. Drafts without flows no longer exist.
  std::vector<std::vector<std::uint32_t>> of_rank_;
};

/// Assigns a round to every group. Returns the number of rounds.
std::uint32_t color_rounds(const WorldRanks& world, std::vector<RouteGroup>& groups) {
  std::vector<std::uint32_t> order(groups.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return groups[a].members.size() > groups[b].members.size();
  });
  std::vector<std::vector<bool>> busy;  // Indexed by round, then dense rank.
  for (const std::uint32_t c : order) {
    const auto fits = [&](const std::vector<bool>& ranks) {
      return std::none_of(groups[c].members.begin(), groups[c].members.end(),
                          [&](int rank) { return ranks[world.place_of(rank)]; });
    };
    const auto round = std::find_if(busy.begin(), busy.end(), fits);
    groups[c].round = static_cast<std::uint32_t>(round - busy.begin());
    if (round == busy.end()) busy.emplace_back(world.size());
    for (const int rank : groups[c].members) busy[groups[c].round][world.place_of(rank)] = true;
  }
  return static_cast<std::uint32_t>(busy.size());
}

}  // namespace

RouteGroups make_groups(const WorldRanks& world, std::vector<Route>& routes, std::size_t most_per_rank) {
  GroupMaker maker(world, routes, most_per_rank);
  RouteGroups made;
  made.merged = maker.merge();
  maker.split();
  made.groups = maker.finish(routes);
  made.rounds = color_rounds(world, made.groups);
  return made;
}

}  // namespace sparsecast::fanout
