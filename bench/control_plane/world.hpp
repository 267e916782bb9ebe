// SPDX-License-Identifier: Apache-2.0
#pragma once

// A trainer and its engines with what their ranks say to one another: the messages of a regroup and of a sync, made by
// the library's own functions.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sharded/rank_info.hpp"
#include "sharded/sync_world.hpp"

namespace sparsecast::bench {

/// Returns the processor time that this thread has used, in seconds.
double thread_seconds();

/// World of `ranks` ranks: about two thirds are the trainer's, which come first; the others are engines of equal size.
struct World {
  /// Makes the world with at most `engines` engines. Layouts have `tensors` tensors, cut by rows for the trainer and by
  /// columns for the engines. Throws Error{kUsage} for fewer than 3 ranks.
  World(int ranks, int engines, int tensors);

  std::vector<RankInfo> rank_infos;  ///< By world rank.
  std::shared_ptr<const Layout> trainer_layout;
  std::shared_ptr<const Layout> engine_layout;  ///< Of each engine.
  Meeting meeting;                              ///< What the ranks know once they have met.

  int size() const noexcept { return static_cast<int>(rank_infos.size()); }
  /// Returns the layout that a rank has before the ranks meet.
  const std::shared_ptr<const Layout>& layout_of(int rank) const;
  /// Returns a good vote of a rank; the digests of all ranks add up.
  Vote vote_of(int rank) const;
};

/// A collective of the control channel: what each rank gives, and what all get.
struct Step {
  std::string name;
  std::vector<std::uint64_t> parts;  ///< Bytes from each rank.
  std::uint64_t gathered = 0;        ///< Bytes to each rank when all parts go to all ranks.
  std::uint64_t reduced = 0;         ///< Bytes to each rank when one rank combines the parts.
  double all_seconds = 0;            ///< Processor time in which a rank reads the parts of all ranks.
  double combine_seconds = 0;        ///< Processor time of the one rank that combines them.
  double read_seconds = 0;           ///< Processor time of each rank for what was combined.
};

/// Returns the collectives of a regroup whose groups are NCCL communicators, in their order. Times are measured here.
std::vector<Step> steps_of_regroup(const World& world);
/// Returns those of a sync: whether all have staged, votes, decision.
std::vector<Step> steps_of_sync(const World& world);

}  // namespace sparsecast::bench
