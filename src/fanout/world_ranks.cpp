#include "fanout/world_ranks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "sparsecast/error.hpp"

namespace sparsecast::fanout {
namespace {

std::string describe_group(const FanoutGroup& group, bool trainer) {
  return fmt::format("{} '{}'", trainer ? "trainer" : "engine", group.name);
}

void check_group(const FanoutGroup& group, bool trainer) {
  const std::string who = describe_group(group, trainer);
  if (!group.layout) throw Error(ErrorCode::kUsage, "the group has no layout", who);
  if (group.ranks.size() != group.layout->ranks().size()) {
    throw Error(
        ErrorCode::kUsage,
        fmt::format("{} world ranks for the {} ranks of its layout", group.ranks.size(), group.layout->ranks().size()),
        who);
  }
}

}  // namespace

World::World(const FanoutGroup& trainer, const std::vector<FanoutGroup>& engines) {
  groups_.push_back(&trainer);
  for (const FanoutGroup& engine : engines) groups_.push_back(&engine);

  std::unordered_map<std::string, std::uint32_t> nodes;
  std::unordered_set<std::string> names;
  for (std::uint32_t g = 0; g < groups(); ++g) {
    check_group(group(g), g == 0);
    if (!names.insert(group(g).name).second) {
      throw Error(ErrorCode::kUsage, "another group has the same name", describe_group(group(g), g == 0));
    }
    for (std::uint32_t i = 0; i < group(g).ranks.size(); ++i) {
      const RankLayout& layout = group(g).layout->ranks()[i];
      const auto node = static_cast<std::uint32_t>(nodes.size());
      ranks_.push_back({group(g).ranks[i], g, i,
                        layout.node.empty() ? kNone : nodes.emplace(layout.node, node).first->second, &layout});
    }
  }
  std::sort(ranks_.begin(), ranks_.end(), [](const WorldRank& a, const WorldRank& b) {
    return std::tie(a.world, a.group) < std::tie(b.world, b.group);
  });
  for (std::uint32_t i = 0; i < size(); ++i) {
    if (ranks_[i].world < 0) throw Error(ErrorCode::kUsage, "a world rank is negative", describe(i));
    // A rank may be the trainer's and an engine's.
    if (i > 0 && ranks_[i - 1].world == ranks_[i].world && ranks_[i - 1].group != 0) {
      throw Error(ErrorCode::kUsage, fmt::format("the world rank is also that of {}", describe(i - 1)), describe(i));
    }
  }
}

std::string World::describe(std::uint32_t rank) const {
  const WorldRank& who = ranks_[rank];
  return fmt::format("rank {} (world rank {}) of {}", who.index, who.world,
                     describe_group(group(who.group), who.group == 0));
}

}  // namespace sparsecast::fanout
