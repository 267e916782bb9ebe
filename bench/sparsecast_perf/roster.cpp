// SPDX-License-Identifier: Apache-2.0
#include "sparsecast_perf/roster.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sparsecast/error.hpp"
#include "sparsecast/layout.hpp"

namespace sparsecast::perf {
namespace {

std::shared_ptr<const Layout> read(const std::string& path, const FanoutOptions& options) {
  LayoutFileOptions file;
  file.scale_down = options.scale_down;
  return std::make_shared<const Layout>(read_layout_file(FileSystem::posix(), path, file));
}

std::string engines_of(int engines, int ranks) {
  return engines == 1 ? fmt::format("1 engine of {} ranks", ranks)
                      : fmt::format("{} engines of {} ranks", engines, ranks);
}

}  // namespace

LayoutPair::LayoutPair(const FanoutOptions& options)
    : trainer(read(options.trainer, options)), engine(read(options.engine, options)) {}

Roster::Roster(const LayoutPair& layouts, const FanoutOptions& options, int processes)
    : trainer_ranks_(static_cast<int>(layouts.trainer->ranks().size())),
      ranks_of_one_(static_cast<int>(layouts.engine->ranks().size())),
      engine_ranks_(options.engines * ranks_of_one_),
      processes_(processes) {
  const int apart = trainer_ranks_ + engine_ranks_;
  const int together = std::max(trainer_ranks_, engine_ranks_);
  const int fewest = options.colocate ? together : apart;
  if (processes >= fewest && processes <= apart) return;
  const std::string who =
      fmt::format("a trainer of {} ranks and {}", trainer_ranks_, engines_of(options.engines, ranks_of_one_));
  std::string needed = fmt::format("{} need {} processes", who, apart);
  if (options.colocate) needed += fmt::format(", or, as --colocate allows, down to {}", together);
  if (!options.colocate) needed += fmt::format(" ({} are enough with --colocate)", together);
  throw Error(ErrorCode::kUsage, fmt::format("{}; there {} {}", needed, processes == 1 ? "is" : "are", processes),
              "--layout");
}

std::optional<std::size_t> Roster::trainer_rank(int process) const {
  if (process >= trainer_ranks_) return std::nullopt;
  return static_cast<std::size_t>(process);
}

std::optional<Roster::EngineRank> Roster::engine_rank(int process) const {
  const int place = process >= trainer_ranks_ ? process - trainer_ranks_ : process + processes_ - trainer_ranks_;
  if (place >= engine_ranks_) return std::nullopt;
  return EngineRank{place / ranks_of_one_, static_cast<std::size_t>(place % ranks_of_one_)};
}

std::string describe(const Roster& roster, const FanoutOptions& options) {
  std::string text = fmt::format("{} trainer ranks, {}", roster.trainer_ranks(),
                                 engines_of(options.engines, roster.engine_ranks() / options.engines));
  if (roster.colocated() > 0) text += fmt::format(", {} processes are both", roster.colocated());
  return text;
}

}  // namespace sparsecast::perf
