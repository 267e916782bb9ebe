#include "fanout/senders.hpp"

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

/// Slots that choose alike, with those who may send to them.
struct SlotGroup {
  std::vector<std::uint32_t> candidates;  ///< Indices into the cell's; none: whoever sends to another group.
  std::vector<std::uint32_t> slots;       ///< As in Cells::slot_sets.
};

struct ChosenSlot {
  std::uint32_t rank = 0;
  std::uint32_t copy = 0;
  std::uint32_t candidate = 0;
};

/// What one candidate sends to slots of one class of engines.
struct LaneSlots {
  std::uint32_t candidate = 0;
  std::uint32_t slots = 0;    ///< Id in Senders::slot_sets.
  std::uint32_t counted = 0;  ///< Id in Senders::counted_sets.
  bool in_state = false;      ///< Lane::counted_in_state.
};

struct Chosen {
  Assignment assignment;
  std::uint32_t next = kNone;
};

class Chooser {
 public:
  Chooser(const World& world, const TensorTable& table, const Cells& cells, const std::vector<std::uint32_t>& classes,
          std::uint64_t lane_cost)
      : world_(world),
        table_(table),
        cells_(cells),
        classes_(classes),
        lane_cost_(std::min(lane_cost, std::uint64_t{1} << 62)),
        load_(world.size()),
        first_(cells.cells.size(), kNone) {
    out_.slot_sets = cells.slot_sets;
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

  void assign(std::uint32_t cell, const Holder& source, const LaneSlots& slots) {
    const std::array<std::uint32_t, 4> lane{source.rank, slots.slots, slots.counted, slots.in_state ? 1U : 0U};
    chosen_.push_back({{out_.lanes.intern(lane), source.shard}, first_[cell]});
    first_[cell] = static_cast<std::uint32_t>(chosen_.size() - 1);
    load_[source.rank] += bytes(cell);
    sends_.insert(key(source.rank, cells_.cells[cell].slots));
  }

  void send_all(std::uint32_t cell, const Holder& source) {
    for (const LaneSlots& lane : lanes_of(cells_.cells[cell].slots)) assign(cell, source, lane);
  }

  /// A set of slots, all from one sender, as lanes: one for each class of engines.
  const std::vector<LaneSlots>& lanes_of(std::uint32_t slots) {
    if (slots >= lanes_of_.size()) lanes_of_.resize(out_.slot_sets.size());
    if (lanes_of_[slots].empty()) {
      std::vector<ChosenSlot> all;
      const auto set = out_.slot_sets[slots];
      for (std::size_t i = 0; i < set.size(); i += 2) all.push_back({set[i], set[i + 1], 0});
      lanes_of_[slots] = divide(all);
    }
    return lanes_of_[slots];
  }

  /// One entry for each candidate and class. An engine counts what its first slot gets, the state what the first of all
  /// slots gets.
  std::vector<LaneSlots> divide(const std::vector<ChosenSlot>& slots) {
    struct Lists {
      std::vector<std::uint32_t> slots;
      std::vector<std::uint32_t> counted;
      bool in_state = false;
    };
    std::map<std::pair<std::uint32_t, std::uint32_t>, Lists> lanes;
    std::vector<bool> counted(world_.groups());
    for (const ChosenSlot& slot : slots) {
      const std::uint32_t engine = world_[slot.rank].group - 1;
      Lists& lane = lanes[{slot.candidate, classes_[engine]}];
      lane.slots.insert(lane.slots.end(), {slot.rank, slot.copy});
      lane.in_state = lane.in_state || &slot == &slots.front();
      if (!counted[engine]) lane.counted.push_back(engine);
      counted[engine] = true;
    }
    std::vector<LaneSlots> out;
    for (auto& [key, lane] : lanes) {
      std::sort(lane.counted.begin(), lane.counted.end());
      out.push_back(
          {key.first, out_.slot_sets.intern(lane.slots), out_.counted_sets.intern(lane.counted), lane.in_state});
    }
    return out;
  }

  void choose_for(std::uint32_t cell) {
    const std::vector<SlotGroup>& groups = groups_of(cell);
    std::vector<std::uint32_t> by(groups.size());
    std::vector<std::uint32_t> near;  // Who sends the cell anyway.
    for (std::size_t g = 0; g < groups.size(); ++g) {
      if (!groups[g].candidates.empty()) near.push_back(by[g] = least_loaded(cell, groups[g].candidates));
    }
    std::sort(near.begin(), near.end());
    for (std::size_t g = 0; g < groups.size(); ++g) {
      if (groups[g].candidates.empty()) by[g] = least_loaded(cell, near);
    }
    if (std::all_of(by.begin(), by.end(), [&](std::uint32_t candidate) { return candidate == by.front(); })) {
      send_all(cell, candidates(cell)[by.front()]);
      return;
    }
    split(cell, groups, by);
  }

  std::uint32_t least_loaded(std::uint32_t cell, const std::vector<std::uint32_t>& among) const {
    const auto cost = [&](std::uint32_t candidate) {
      const std::uint32_t rank = candidates(cell)[candidate].rank;
      return load_[rank] + (sends_.contains(key(rank, cells_.cells[cell].slots)) ? 0 : lane_cost_);
    };
    return *std::min_element(among.begin(), among.end(),
                             [&](std::uint32_t a, std::uint32_t b) { return cost(a) < cost(b); });
  }

  void split(std::uint32_t cell, const std::vector<SlotGroup>& groups, const std::vector<std::uint32_t>& by) {
    std::vector<ChosenSlot> slots;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      for (std::size_t i = 0; i < groups[g].slots.size(); i += 2) {
        slots.push_back({groups[g].slots[i], groups[g].slots[i + 1], by[g]});
      }
    }
    std::sort(slots.begin(), slots.end(), [](const ChosenSlot& a, const ChosenSlot& b) {
      return std::tie(a.rank, a.copy) < std::tie(b.rank, b.copy);
    });
    for (const LaneSlots& lane : divide(slots)) assign(cell, candidates(cell)[lane.candidate], lane);
  }

  const std::vector<SlotGroup>& groups_of(std::uint32_t cell) {
    std::vector<std::uint32_t> ranks;
    for (const Holder& candidate : candidates(cell)) ranks.push_back(candidate.rank);
    const std::uint32_t slots = cells_.cells[cell].slots;
    const auto [found, fresh] = groups_.try_emplace(key(candidate_sets_.intern(ranks), slots));
    if (fresh) found->second = make_groups(ranks, out_.slot_sets[slots]);
    return found->second;
  }

  std::vector<SlotGroup> make_groups(const std::vector<std::uint32_t>& ranks,
                                     std::span<const std::uint32_t> slots) const {
    std::vector<SlotGroup> groups;
    std::unordered_map<std::uint32_t, std::vector<std::uint32_t>> local;  // By node: candidates.
    for (std::uint32_t c = 0; c < ranks.size(); ++c) {
      if (world_[ranks[c]].node != kNone) local[world_[ranks[c]].node].push_back(c);
    }
    std::unordered_map<std::uint32_t, std::size_t> group_of;  // By node, kNone for nodes without candidates.
    for (std::size_t i = 0; i < slots.size(); i += 2) {
      const std::uint32_t node = world_[slots[i]].node;
      const auto near = local.find(node);
      const auto [group, fresh] = group_of.emplace(near == local.end() ? kNone : node, groups.size());
      if (fresh) {
        groups.emplace_back();
        if (near != local.end()) groups.back().candidates = near->second;
      }
      groups[group->second].slots.insert(groups[group->second].slots.end(), {slots[i], slots[i + 1]});
    }
    if (groups.size() == 1 && groups[0].candidates.empty()) {
      groups[0].candidates.resize(ranks.size());
      std::iota(groups[0].candidates.begin(), groups[0].candidates.end(), 0U);
    }
    return groups;
  }

  Senders collect() {
    out_.begins.push_back(0);
    for (std::uint32_t next : first_) {
      for (; next != kNone; next = chosen_[next].next) out_.assignments.push_back(chosen_[next].assignment);
      out_.begins.push_back(out_.assignments.size());
    }
    return std::move(out_);
  }

  const World& world_;
  const TensorTable& table_;
  const Cells& cells_;
  const std::vector<std::uint32_t>& classes_;
  const std::uint64_t lane_cost_;
  std::vector<std::uint64_t> load_;          ///< Bytes, by dense rank.
  std::unordered_set<std::uint64_t> sends_;  ///< Dense rank, and slots of a cell that it sends (to some of them).
  std::vector<std::uint32_t> first_;         ///< By cell: its last choice, which leads to the others.
  std::vector<Chosen> chosen_;
  std::vector<std::vector<LaneSlots>> lanes_of_;  ///< By set of slots.
  ListInterner candidate_sets_;
  std::unordered_map<std::uint64_t, std::vector<SlotGroup>> groups_;
  Senders out_;
};

}  // namespace

std::vector<std::uint32_t> classify_engines(const World& world, const Cells& cells) {
  std::vector<Hash128> hashes(world.groups() - 1);
  std::vector<std::vector<std::uint32_t>> held(hashes.size());  // By engine: cell, then index of a rank and copy, ...
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
    const auto slots = cells.slot_sets[cells.cells[c].slots];
    for (std::size_t i = 0; i < slots.size(); i += 2) {
      const WorldRank& rank = world[slots[i]];
      held[rank.group - 1].insert(held[rank.group - 1].end(), {c, rank.index, slots[i + 1]});
      if (held[rank.group - 1].size() > kMostHeld) flush(rank.group - 1);
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

Senders choose_senders(const World& world, const TensorTable& table, const Cells& cells,
                       const std::vector<std::uint32_t>& classes, std::uint64_t lane_cost_bytes) {
  return Chooser(world, table, cells, classes, lane_cost_bytes).choose();
}

}  // namespace sparsecast::fanout
