#include "fanout/route_groups.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <queue>
#include <tuple>

#include "fanout/interner.hpp"
#include "fanout/rank_sets.hpp"

namespace sparsecast::fanout {
namespace {

/// All that one source has for one set of receiver ranks.
struct Flow {
  std::uint32_t source = 0;     ///< Dense.
  std::uint32_t receivers = 0;  ///< Index into the receiver sets.
  std::uint64_t bytes = 0;
  std::vector<std::uint32_t> lanes;
};

/// A channel in the making.
struct Group {
  std::vector<std::uint32_t> flows;  ///< By source once merging is done.
  RankSet members;
  std::uint64_t bytes = 0;
};

/// What is looked at to join two channels of a rank.
constexpr std::size_t kMostPairs = 1024;

__extension__ using Wide = __int128;  // Bytes times ranks may not fit 64 bits.

class ChannelMaker {
 public:
  ChannelMaker(const World& world, const std::vector<Lane>& lanes, std::size_t most)
      : world_(world), most_(most), of_rank_(world.size()) {
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> flow_of;
    ListInterner sets;
    for (std::uint32_t l = 0; l < lanes.size(); ++l) {
      std::vector<std::uint32_t> ranks;
      for (const Slot& slot : lanes[l].slots) {
        if (ranks.empty() || ranks.back() != world.place_of(slot.rank)) ranks.push_back(world.place_of(slot.rank));
      }
      const std::uint32_t set = sets.intern(ranks);
      if (set == receiver_sets_.size()) add_receivers(ranks);
      const auto [flow, fresh] =
          flow_of.emplace(std::pair(world.place_of(lanes[l].source), set), static_cast<std::uint32_t>(flows_.size()));
      if (fresh) add_flow(world.place_of(lanes[l].source), set);
      flows_[flow->second].bytes += lanes[l].bytes;
      flows_[flow->second].lanes.push_back(l);
      groups_[set].bytes += lanes[l].bytes;
    }
  }

  /// Says whether there was anything to do.
  bool merge() {
    for (std::uint32_t g = 0; g < groups_.size(); ++g) {
      groups_[g].members.visit([&](std::uint32_t rank) { of_rank_[rank].push_back(g); });
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
        splits;  // Savings, group, size of its first half.
    const auto offer = [&](std::uint32_t group) {
      const auto [saved, at] = best_split(groups_[group]);
      // Of equal savings, the first group.
      if (saved > 0) splits.emplace(saved, kNone - group, at);
    };
    for (std::uint32_t g = 0; g < groups_.size(); ++g) {
      std::sort(groups_[g].flows.begin(), groups_[g].flows.end(), [&](std::uint32_t a, std::uint32_t b) {
        return std::tie(flows_[a].source, flows_[a].receivers) < std::tie(flows_[b].source, flows_[b].receivers);
      });
      if (!groups_[g].flows.empty()) offer(g);
    }
    while (!splits.empty()) {
      const auto [saved, key, at] = splits.top();
      splits.pop();
      const std::uint32_t group = kNone - key;
      if (!try_split(group, at)) continue;
      offer(group);
      offer(static_cast<std::uint32_t>(groups_.size() - 1));
    }
  }

  std::vector<Channel> finish(std::vector<Lane>& lanes) {
    struct Made {
      Channel channel;
      std::uint32_t group = 0;
    };
    std::vector<Made> made;
    for (std::uint32_t g = 0; g < groups_.size(); ++g) {
      if (!groups_[g].flows.empty()) made.push_back({describe(groups_[g]), g});
    }
    std::sort(made.begin(), made.end(), [](const Made& a, const Made& b) {
      return std::tie(a.channel.sources, a.channel.receivers, a.group) <
             std::tie(b.channel.sources, b.channel.receivers, b.group);
    });
    std::vector<Channel> channels;
    for (Made& one : made) {
      // Joined from different receiver sets, two may have come to have the same members.
      if (channels.empty() || channels.back().sources != one.channel.sources ||
          channels.back().receivers != one.channel.receivers) {
        channels.push_back(std::move(one.channel));
      }
      for (const std::uint32_t flow : groups_[one.group].flows) {
        for (const std::uint32_t lane : flows_[flow].lanes) {
          lanes[lane].channel = static_cast<std::uint32_t>(channels.size() - 1);
        }
      }
    }
    return channels;
  }

 private:
  void add_receivers(const std::vector<std::uint32_t>& ranks) {
    receiver_sets_.emplace_back(world_.size());
    for (const std::uint32_t rank : ranks) receiver_sets_.back().insert(rank);
    groups_.push_back({{}, receiver_sets_.back(), 0});
  }

  void add_flow(std::uint32_t source, std::uint32_t set) {
    groups_[set].flows.push_back(static_cast<std::uint32_t>(flows_.size()));
    groups_[set].members.insert(source);
    flows_.push_back({source, set, 0, {}});
  }

  /// Bytes that members of a channel get, wanted or not.
  static Wide delivered(std::uint64_t bytes, std::uint64_t members) {
    return static_cast<Wide>(bytes) * static_cast<Wide>(members - 1);
  }

  Wide additional(const Group& a, const Group& b) const {
    return delivered(a.bytes + b.bytes, a.members.size_with(b.members)) - delivered(a.bytes, a.members.size()) -
           delivered(b.bytes, b.members.size());
  }

  void merge_one_of(std::vector<std::uint32_t> groups) {
    std::sort(groups.begin(), groups.end(), [&](std::uint32_t a, std::uint32_t b) {
      return std::tie(groups_[a].bytes, a) < std::tie(groups_[b].bytes, b);
    });
    const std::size_t firsts = std::clamp<std::size_t>(kMostPairs / groups.size(), 1, groups.size());
    std::uint32_t from = kNone;
    std::uint32_t into = kNone;
    Wide least = 0;
    for (std::size_t i = 0; i < firsts; ++i) {
      for (std::size_t k = i + 1; k < groups.size(); ++k) {
        const Wide more = additional(groups_[groups[i]], groups_[groups[k]]);
        if (from != kNone && more >= least) continue;
        from = groups[i];
        into = groups[k];
        least = more;
      }
    }
    join(from, into);
  }

  void join(std::uint32_t from, std::uint32_t into) {
    Group& gone = groups_[from];
    Group& kept = groups_[into];
    gone.members.visit([&](std::uint32_t rank) {
      std::vector<std::uint32_t>& groups = of_rank_[rank];
      groups.erase(std::find(groups.begin(), groups.end(), from));
      if (!kept.members.contains(rank)) groups.push_back(into);
    });
    kept.members |= gone.members;
    kept.bytes += gone.bytes;
    kept.flows.insert(kept.flows.end(), gone.flows.begin(), gone.flows.end());
    gone = {{}, RankSet(world_.size()), 0};
  }

  /// What the group saves by being split where its sources' bytes are halved, and after how many flows that is.
  std::pair<Wide, std::size_t> best_split(const Group& group) const {
    std::uint64_t before = 0;
    std::uint64_t least = ~std::uint64_t{0};
    std::size_t at = 0;
    for (std::size_t i = 0; i + 1 < group.flows.size(); ++i) {
      before += flows_[group.flows[i]].bytes;
      if (flows_[group.flows[i]].source == flows_[group.flows[i + 1]].source) continue;
      const std::uint64_t after = group.bytes - before;
      const std::uint64_t difference = before > after ? before - after : after - before;
      if (difference >= least) continue;
      least = difference;
      at = i + 1;
    }
    if (at == 0) return {0, 0};
    const Group first = part_of(group, 0, at);
    const Group second = part_of(group, at, group.flows.size());
    return {delivered(group.bytes, group.members.size()) - delivered(first.bytes, first.members.size()) -
                delivered(second.bytes, second.members.size()),
            at};
  }

  Group part_of(const Group& group, std::size_t begin, std::size_t end) const {
    Group part{{group.flows.begin() + static_cast<std::ptrdiff_t>(begin),
                group.flows.begin() + static_cast<std::ptrdiff_t>(end)},
               RankSet(world_.size()),
               0};
    for (const std::uint32_t flow : part.flows) {
      part.members.insert(flows_[flow].source);
      part.members |= receiver_sets_[flows_[flow].receivers];
      part.bytes += flows_[flow].bytes;
    }
    return part;
  }

  bool try_split(std::uint32_t group, std::size_t at) {
    Group first = part_of(groups_[group], 0, at);
    Group second = part_of(groups_[group], at, groups_[group].flows.size());
    bool room = true;
    second.members.visit(
        [&](std::uint32_t rank) { room = room && (!first.members.contains(rank) || of_rank_[rank].size() < most_); });
    if (!room) return false;
    const auto fresh = static_cast<std::uint32_t>(groups_.size());
    second.members.visit([&](std::uint32_t rank) {
      std::vector<std::uint32_t>& groups = of_rank_[rank];
      if (!first.members.contains(rank)) groups.erase(std::find(groups.begin(), groups.end(), group));
      groups.push_back(fresh);
    });
    groups_[group] = std::move(first);
    groups_.push_back(std::move(second));
    return true;
  }

  Channel describe(const Group& group) const {
    RankSet sources(world_.size());
    RankSet receivers(world_.size());
    for (const std::uint32_t flow : group.flows) {
      sources.insert(flows_[flow].source);
      receivers |= receiver_sets_[flows_[flow].receivers];
    }
    return {worlds_of(sources), worlds_of(receivers), worlds_of(group.members), 0};
  }

  std::vector<int> worlds_of(const RankSet& ranks) const {
    std::vector<int> worlds;
    ranks.visit([&](std::uint32_t rank) { worlds.push_back(world_[rank].world); });
    return worlds;
  }

  const World& world_;
  const std::size_t most_;
  std::vector<RankSet> receiver_sets_;
  std::vector<Flow> flows_;
  std::vector<Group> groups_;  ///< At first one for each receiver set; those without flows are gone.
  std::vector<std::vector<std::uint32_t>> of_rank_;
};

/// Returns the number of rounds.
std::uint32_t color_rounds(const World& world, std::vector<Channel>& channels) {
  std::vector<std::uint32_t> order(channels.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return channels[a].members.size() > channels[b].members.size();
  });
  std::vector<std::vector<bool>> busy;  // By round, then dense rank.
  for (const std::uint32_t c : order) {
    const auto fits = [&](const std::vector<bool>& ranks) {
      return std::none_of(channels[c].members.begin(), channels[c].members.end(),
                          [&](int rank) { return ranks[world.place_of(rank)]; });
    };
    const auto round = std::find_if(busy.begin(), busy.end(), fits);
    channels[c].round = static_cast<std::uint32_t>(round - busy.begin());
    if (round == busy.end()) busy.emplace_back(world.size());
    for (const int rank : channels[c].members) busy[channels[c].round][world.place_of(rank)] = true;
  }
  return static_cast<std::uint32_t>(busy.size());
}

}  // namespace

Channels make_channels(const World& world, std::vector<Lane>& lanes, std::size_t most_per_rank) {
  ChannelMaker maker(world, lanes, most_per_rank);
  Channels made;
  made.merged = maker.merge();
  maker.split();
  made.channels = maker.finish(lanes);
  made.rounds = color_rounds(world, made.channels);
  return made;
}

}  // namespace sparsecast::fanout
