// SPDX-License-Identifier: Apache-2.0
#include "fanout/routes.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace sparsecast::fanout {
namespace {

/// Destinations that get a cell from the same sender, with the candidates for it.
struct DestinationSet {
  std::vector<std::uint32_t> candidates;    ///< Indices into the cell's candidates. If empty, any candidate may send,
                                            ///< preferably one that sends to another set.
  std::vector<std::uint32_t> destinations;  ///< Encoded as a list of Cells::destination_sets.
};

struct ChosenDestination {
  std::uint32_t rank = 0;
  std::uint32_t copy = 0;
  std::uint32_t candidate = 0;
};

/// Destinations of one class of engines that one candidate sends to.
struct RouteDestinations {
  std::uint32_t candidate = 0;
  std::uint32_t destinations = 0;  ///< Id in Senders::destination_sets.
  std::uint32_t counted = 0;       ///< Id in Senders::counted_sets.
  bool in_state = false;           ///< Route::counted_in_state.
};

struct Chosen {
  Assignment assignment;
  std::uint32_t next = kNone;
};

class Chooser {
 public:
  Chooser(const WorldRanks& world, const TensorTable& table, const Cells& cells,
          const std::vector<std::uint32_t>& classes, std::uint64_t route_cost)
      : world_(world),
        table_(table),
        cells_(cells),
        classes_(classes),
        route_cost_(std::min(route_cost, std::uint64_t{1} << 62)),
        load_(world.size()),
        first_(cells.cells.size(), kNone) {
    out_.destination_sets = cells.destination_sets;
  }

  Senders choose() {
    std::vector<std::pair<std::uint64_t, std::uint32_t>> open;
    for (std::uint32_t i = 0; i < cells_.cells.size(); ++i) {
      if (candidates(i).size() == 1) {
        send_all(i, candidates(i).front());
      } else {
        open.emplace_back(bytes(i), i);
      }
    }
    std::stable_sort(open.begin(), open.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    for (const auto& [size, cell] : open) choose_for(cell);
    return collect();
  }

 private:
  static std::uint64_t key(std::uint32_t high, std::uint32_t low) { return std::uint64_t{high} << 32 | low; }

  std::span<const Holder> candidates(std::uint32_t cell) const {
    return cells_.candidates_of(cells_.cells[cell].candidates);
  }
  std::uint64_t bytes(std::uint32_t cell) const {
    return elements_of(cells_.cells[cell].box) * element_size(table_[cells_.cells[cell].tensor].dtype);
  }

  void assign(std::uint32_t cell, const Holder& source, const RouteDestinations& destinations) {
    const std::array<std::uint32_t, 4> route{source.rank, destinations.destinations, destinations.counted,
                                             destinations.in_state ? 1U : 0U};
    chosen_.push_back({{out_.routes.intern(route), source.shard}, first_[cell]});
    first_[cell] = static_cast<std::uint32_t>(chosen_.size() - 1);
    load_[source.rank] += bytes(cell);
    sends_.insert(key(source.rank, cells_.cells[cell].destinations));
  }

  void send_all(std::uint32_t cell, const Holder& source) {
    for (const RouteDestinations& route : routes_of(cells_.cells[cell].destinations)) assign(cell, source, route);
  }

  /// Returns a set of destinations, all from one sender, as routes: one for each class of engines.
  const std::vector<RouteDestinations>& routes_of(std::uint32_t destinations) {
    if (destinations >= routes_of_.size()) routes_of_.resize(out_.destination_sets.size());
    if (routes_of_[destinations].empty()) {
      std::vector<ChosenDestination> all;
      const auto set = out_.destination_sets[destinations];
      for (std::size_t i = 0; i < set.size(); i += 2) all.push_back({set[i], set[i + 1], 0});
      routes_of_[destinations] = divide(all);
    }
    return routes_of_[destinations];
  }

  /// Returns one entry for each candidate and class. An engine counts the route to its first destination; the state
  /// counts the route to the first of all destinations.
  std::vector<RouteDestinations> divide(const std::vector<ChosenDestination>& destinations) {
    struct EngineLists {
      std::vector<std::uint32_t> destinations;
      std::vector<std::uint32_t> counted;
      bool in_state = false;
    };
    std::map<std::pair<std::uint32_t, std::uint32_t>, EngineLists> routes;
    std::vector<bool> counted(world_.participants());
    for (const ChosenDestination& destination : destinations) {
      const std::uint32_t engine = world_[destination.rank].participant - 1;
      EngineLists& route = routes[{destination.candidate, classes_[engine]}];
      route.destinations.insert(route.destinations.end(), {destination.rank, destination.copy});
      route.in_state = route.in_state || &destination == &destinations.front();
      if (!counted[engine]) route.counted.push_back(engine);
      counted[engine] = true;
    }
    std::vector<RouteDestinations> out;
    for (auto& [key, route] : routes) {
      std::sort(route.counted.begin(), route.counted.end());
      out.push_back({key.first, out_.destination_sets.intern(route.destinations),
                     out_.counted_sets.intern(route.counted), route.in_state});
    }
    return out;
  }

  void choose_for(std::uint32_t cell) {
    const std::vector<DestinationSet>& sets = sets_of(cell);
    std::vector<std::uint32_t> by(sets.size());
    std::vector<std::uint32_t> near;  // Candidates that send the cell anyway.
    for (std::size_t g = 0; g < sets.size(); ++g) {
      if (!sets[g].candidates.empty()) near.push_back(by[g] = least_loaded(cell, sets[g].candidates));
    }
    std::sort(near.begin(), near.end());
    for (std::size_t g = 0; g < sets.size(); ++g) {
      if (sets[g].candidates.empty()) by[g] = least_loaded(cell, near);
    }
    if (std::all_of(by.begin(), by.end(), [&](std::uint32_t candidate) { return candidate == by.front(); })) {
      send_all(cell, candidates(cell)[by.front()]);
      return;
    }
    split(cell, sets, by);
  }

  std::uint32_t least_loaded(std::uint32_t cell, const std::vector<std::uint32_t>& among) const {
    const auto cost = [&](std::uint32_t candidate) {
      const std::uint32_t rank = candidates(cell)[candidate].rank;
      return load_[rank] + (sends_.contains(key(rank, cells_.cells[cell].destinations)) ? 0 : route_cost_);
    };
    return *std::min_element(among.begin(), among.end(),
                             [&](std::uint32_t a, std::uint32_t b) { return cost(a) < cost(b); });
  }

  void split(std::uint32_t cell, const std::vector<DestinationSet>& sets, const std::vector<std::uint32_t>& by) {
    std::vector<ChosenDestination> destinations;
    for (std::size_t g = 0; g < sets.size(); ++g) {
      for (std::size_t i = 0; i < sets[g].destinations.size(); i += 2) {
        destinations.push_back({sets[g].destinations[i], sets[g].destinations[i + 1], by[g]});
      }
    }
    std::sort(destinations.begin(), destinations.end(), [](const ChosenDestination& a, const ChosenDestination& b) {
      return std::tie(a.rank, a.copy) < std::tie(b.rank, b.copy);
    });
    for (const RouteDestinations& route : divide(destinations)) assign(cell, candidates(cell)[route.candidate], route);
  }

  const std::vector<DestinationSet>& sets_of(std::uint32_t cell) {
    std::vector<std::uint32_t> ranks;
    for (const Holder& candidate : candidates(cell)) ranks.push_back(candidate.rank);
    const std::uint32_t destinations = cells_.cells[cell].destinations;
    const auto [found, fresh] = sets_.try_emplace(key(candidate_sets_.intern(ranks), destinations));
    if (fresh) found->second = make_sets(ranks, out_.destination_sets[destinations]);
    return found->second;
  }

  std::vector<DestinationSet> make_sets(const std::vector<std::uint32_t>& ranks,
                                        std::span<const std::uint32_t> destinations) const {
    std::vector<DestinationSet> sets;
    std::unordered_map<std::uint32_t, std::vector<std::uint32_t>> local;  // Candidates, keyed by node.
    for (std::uint32_t c = 0; c < ranks.size(); ++c) {
      if (world_[ranks[c]].node != kNone) local[world_[ranks[c]].node].push_back(c);
    }
    std::unordered_map<std::uint32_t, std::size_t> set_of;  // Keyed by node; kNone for nodes without candidates.
    for (std::size_t i = 0; i < destinations.size(); i += 2) {
      const std::uint32_t node = world_[destinations[i]].node;
      const auto near = local.find(node);
      const auto [set, fresh] = set_of.emplace(near == local.end() ? kNone : node, sets.size());
      if (fresh) {
        sets.emplace_back();
        if (near != local.end()) sets.back().candidates = near->second;
      }
      sets[set->second].destinations.insert(sets[set->second].destinations.end(),
                                            {destinations[i], destinations[i + 1]});
    }
    if (sets.size() == 1 && sets[0].candidates.empty()) {
      sets[0].candidates.resize(ranks.size());
      std::iota(sets[0].candidates.begin(), sets[0].candidates.end(), 0U);
    }
    return sets;
  }

  Senders collect() {
    out_.begins.push_back(0);
    for (std::uint32_t next : first_) {
      for (; next != kNone; next = chosen_[next].next) out_.assignments.push_back(chosen_[next].assignment);
      out_.begins.push_back(out_.assignments.size());
    }
    return std::move(out_);
  }

  const WorldRanks& world_;
  const TensorTable& table_;
  const Cells& cells_;
  const std::vector<std::uint32_t>& classes_;
  const std::uint64_t route_cost_;
  std::vector<std::uint64_t> load_;  ///< Bytes to send, indexed by dense rank.
  std::unordered_set<std::uint64_t>
      sends_;  ///< Pairs of a dense rank and the destinations of a cell that it sends to at least some of them.
  std::vector<std::uint32_t> first_;  ///< Last choice of each cell, the head of a linked list of its choices.
  std::vector<Chosen> chosen_;
  std::vector<std::vector<RouteDestinations>> routes_of_;  ///< Routes, indexed by set of destinations.
  ListInterner candidate_sets_;
  std::unordered_map<std::uint64_t, std::vector<DestinationSet>> sets_;
  Senders out_;
};

}  // namespace

std::vector<std::uint32_t> classify_engines(const WorldRanks& world, const Cells& cells) {
  std::vector<Hash128> hashes(world.participants() - 1);
  // Indexed by engine: cell, then index of a rank and copy, ...
  std::vector<std::vector<std::uint32_t>> held(hashes.size());
  const auto flush = [&](std::size_t engine) {
    const std::array<std::uint64_t, 2> before{hashes[engine].lo, hashes[engine].hi};
    for (const std::uint64_t word : before) {
      held[engine].push_back(static_cast<std::uint32_t>(word));
      held[engine].push_back(static_cast<std::uint32_t>(word >> 32));
    }
    hashes[engine] = xxh3_128(std::as_bytes(std::span(held[engine])));
    held[engine].clear();
  };
  constexpr std::size_t kMostHeld = 4096;
  for (std::uint32_t c = 0; c < cells.cells.size(); ++c) {
    const auto destinations = cells.destination_sets[cells.cells[c].destinations];
    for (std::size_t i = 0; i < destinations.size(); i += 2) {
      const WorldRank& rank = world[destinations[i]];
      held[rank.participant - 1].insert(held[rank.participant - 1].end(), {c, rank.index, destinations[i + 1]});
      if (held[rank.participant - 1].size() > kMostHeld) flush(rank.participant - 1);
    }
  }
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint32_t> classes;
  std::vector<std::uint32_t> of(hashes.size());
  for (std::size_t e = 0; e < hashes.size(); ++e) {
    flush(e);
    const auto number = static_cast<std::uint32_t>(classes.size());
    of[e] = classes.emplace(std::pair(hashes[e].lo, hashes[e].hi), number).first->second;
  }
  return of;
}

Senders choose_senders(const WorldRanks& world, const TensorTable& table, const Cells& cells,
                       const std::vector<std::uint32_t>& classes, std::uint64_t route_cost_bytes) {
  return Chooser(world, table, cells, classes, route_cost_bytes).choose();
}

}  // namespace sparsecast::fanout
