// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sparsecast/layout.hpp"
#include "sparsecast_perf/options.hpp"

namespace sparsecast::perf {

/// The layouts of a run by --layout. Throws as read_layout_file.
struct LayoutPair {
  explicit LayoutPair(const FanoutOptions& options);

  std::shared_ptr<const Layout> trainer;
  std::shared_ptr<const Layout> engine;  ///< Of every engine.
};

/// Which process is which rank of the trainer, and of an engine. The trainer has the first processes; engines have
/// those that follow, and, when it is allowed and these are too few, the first ones again.
class Roster {
 public:
  struct EngineRank {
    int engine = 0;
    std::size_t rank = 0;
  };

  /// Every process has a role. Throws Error{kUsage} that says how many processes are needed, for another number.
  Roster(const LayoutPair& layouts, const FanoutOptions& options, int processes);

  int trainer_ranks() const noexcept { return trainer_ranks_; }
  int engine_ranks() const noexcept { return engine_ranks_; }  ///< Of all engines.
  int colocated() const noexcept { return trainer_ranks_ + engine_ranks_ - processes_; }
  std::optional<std::size_t> trainer_rank(int process) const;
  std::optional<EngineRank> engine_rank(int process) const;

 private:
  int trainer_ranks_ = 0;
  int ranks_of_one_ = 0;
  int engine_ranks_ = 0;
  int processes_ = 0;
};

/// "8 trainer ranks, 2 engines of 4 ranks, 8 of the processes are both"
std::string describe(const Roster& roster, const FanoutOptions& options);

}  // namespace sparsecast::perf
