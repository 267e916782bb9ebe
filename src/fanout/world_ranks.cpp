// SPDX-License-Identifier: Apache-2.0
#include "fanout/world_ranks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "sparsecast/error.hpp"

namespace sparsecast::fanout {
namespace {

std::string describe_participant(const Participant& participant, bool trainer) {
  return fmt::format("{} '{}'", trainer ? "trainer" : "engine", participant.name);
}

void check_participant(const Participant& participant, bool trainer) {
  const std::string who = describe_participant(participant, trainer);
  if (!participant.layout) throw Error(ErrorCode::kUsage, "the participant has no layout", who);
  if (participant.ranks.size() != participant.layout->ranks().size()) {
    throw Error(ErrorCode::kUsage,
                fmt::format("{} world ranks for the {} ranks of its layout", participant.ranks.size(),
                            participant.layout->ranks().size()),
                who);
  }
}

}  // namespace

WorldRanks::WorldRanks(const Participant& trainer, const std::vector<Participant>& engines) {
  participants_.push_back(&trainer);
  for (const Participant& engine : engines) participants_.push_back(&engine);

  std::unordered_map<std::string, std::uint32_t> nodes;
  std::unordered_set<std::string> names;
  for (std::uint32_t g = 0; g < participants(); ++g) {
    check_participant(participant(g), g == 0);
    if (!names.insert(participant(g).name).second) {
      throw Error(ErrorCode::kUsage, "another participant has the same name",
                  describe_participant(participant(g), g == 0));
    }
    for (std::uint32_t i = 0; i < participant(g).ranks.size(); ++i) {
      const RankLayout& layout = participant(g).layout->ranks()[i];
      const auto node = static_cast<std::uint32_t>(nodes.size());
      ranks_.push_back({participant(g).ranks[i], g, i,
                        layout.node.empty() ? kNone : nodes.emplace(layout.node, node).first->second, &layout});
    }
  }
  std::sort(ranks_.begin(), ranks_.end(), [](const WorldRank& a, const WorldRank& b) {
    return std::tie(a.world, a.participant) < std::tie(b.world, b.participant);
  });
  for (std::uint32_t i = 0; i < size(); ++i) {
    if (ranks_[i].world < 0) throw Error(ErrorCode::kUsage, "a world rank is negative", describe(i));
    // A rank may belong both to the trainer and to an engine.
    if (i > 0 && ranks_[i - 1].world == ranks_[i].world && ranks_[i - 1].participant != 0) {
      throw Error(ErrorCode::kUsage, fmt::format("the world rank is also that of {}", describe(i - 1)), describe(i));
    }
  }
}

std::string WorldRanks::describe(std::uint32_t rank) const {
  const WorldRank& who = ranks_[rank];
  return fmt::format("rank {} (world rank {}) of {}", who.index, who.world,
                     describe_participant(participant(who.participant), who.participant == 0));
}

}  // namespace sparsecast::fanout
