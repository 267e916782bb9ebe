// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sparsecast/fanout_plan.hpp"

namespace sparsecast::fanout {

inline constexpr std::uint32_t kNone = ~std::uint32_t{0};

/// A rank of the world with its part of a layout.
struct WorldRank {
  int world = 0;
  std::uint32_t participant = 0;  ///< 0: the trainer; 1 + i: engine i.
  std::uint32_t index = 0;        ///< Rank in the participant's layout.
  std::uint32_t node = kNone;
  const RankLayout* layout = nullptr;
};

/// All ranks of a plan, ascending: inside the planner a rank is its place here ("dense rank"), which orders like the
/// world's numbers. One that is the trainer's and an engine's has two places, the trainer's first.
class WorldRanks {
 public:
  /// Throws Error{kUsage} for participants that do not fit their layouts, names that occur twice and ranks that do.
  WorldRanks(const Participant& trainer, const std::vector<Participant>& engines);

  std::uint32_t size() const { return static_cast<std::uint32_t>(ranks_.size()); }
  const WorldRank& operator[](std::uint32_t rank) const { return ranks_[rank]; }
  const std::vector<WorldRank>& ranks() const { return ranks_; }
  /// The (first) place of a rank of the world, which is one of the plan's.
  std::uint32_t place_of(int world) const {
    return static_cast<std::uint32_t>(std::ranges::lower_bound(ranks_, world, {}, &WorldRank::world) - ranks_.begin());
  }
  const Participant& participant(std::uint32_t participant) const { return *participants_[participant]; }
  std::uint32_t participants() const { return static_cast<std::uint32_t>(participants_.size()); }
  /// "rank 3 (world rank 19) of engine 'e1'"
  std::string describe(std::uint32_t rank) const;

 private:
  std::vector<const Participant*> participants_;
  std::vector<WorldRank> ranks_;
};

}  // namespace sparsecast::fanout
