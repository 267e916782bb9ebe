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

/// A rank of one participant: its world rank, and its number in the participant's layout.
struct WorldRank {
  int world = 0;
  std::uint32_t participant = 0;  ///< Number of the participant: 0 for the trainer, 1 + i for engine i.
  std::uint32_t index = 0;        ///< Number of the rank in the participant's layout.
  /// Number of the rank's node; kNone if it is not known.
  std::uint32_t node = kNone;
  const RankLayout* layout = nullptr;
};

/// All ranks of a plan, ordered by world rank. Inside the planner, a rank is identified by its index in this list, the
/// "dense rank", which has the same order as world ranks. A world rank that is in both the trainer and an engine occurs
/// twice, first as the trainer's.
class WorldRanks {
 public:
  /// Collects the ranks of all participants. Throws Error{kUsage} for a participant that does not fit its layout, for a
  /// negative world rank, and for a participant's name or a world rank that occurs twice.
  WorldRanks(const Participant& trainer, const std::vector<Participant>& engines);

  std::uint32_t size() const { return static_cast<std::uint32_t>(ranks_.size()); }
  const WorldRank& operator[](std::uint32_t rank) const { return ranks_[rank]; }
  const std::vector<WorldRank>& ranks() const { return ranks_; }
  /// Returns the dense rank of a world rank, which must be in the plan. If the world rank occurs twice, returns the
  /// first dense rank, which is the trainer's.
  std::uint32_t place_of(int world) const {
    return static_cast<std::uint32_t>(std::ranges::lower_bound(ranks_, world, {}, &WorldRank::world) - ranks_.begin());
  }
  const Participant& participant(std::uint32_t participant) const { return *participants_[participant]; }
  std::uint32_t participants() const { return static_cast<std::uint32_t>(participants_.size()); }
  /// Returns a description of a dense rank for messages, such as "rank 3 (world rank 19) of engine 'e1'".
  std::string describe(std::uint32_t rank) const;

 private:
  std::vector<const Participant*> participants_;
  std::vector<WorldRank> ranks_;
};

}  // namespace sparsecast::fanout
