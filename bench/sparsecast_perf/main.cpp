// SPDX-License-Identifier: Apache-2.0

// sparsecast_perf: one publisher (rank 0) and many receivers, with real weights, or a trainer and engines that cut them
// differently (--layout). Ranks come from an MPI launcher, are forked here (--ranks N), or meet one by one (--rank R
// --rendezvous HOST:PORT).

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "sparsecast_perf/run.hpp"

namespace sparsecast::perf {
namespace {

constexpr int kUsageExit = 2;
constexpr int kFailedExit = 3;
/// Of the first call of a CUDA driver on a machine with many devices.
constexpr std::chrono::seconds kProbeTimeout{60};

int complain(const std::string& sentence) {
  fmt::print(stderr, "sparsecast_perf: {}\n", sentence);
  return kUsageExit;
}

/// On ranks of an MPI launcher that leave the complaint to rank 0: the launcher ends all when one ends, and rank 0 is
/// to speak first.
int leave_quietly() {
  std::this_thread::sleep_for(std::chrono::seconds(1));
  return kUsageExit;
}

/// Where a rank that was started by hand meets the others.
Place place_by_hand(const Options& options) {
  Place place;
  place.rank = options.rank;
  place.size = options.ranks;
  parse_endpoint(options.rendezvous, place.host, place.port);
  const char* const secret = std::getenv("SPARSECAST_SECRET");
  if (secret == nullptr) {
    throw Error(ErrorCode::kUsage, "--rank needs the group's secret in the environment's SPARSECAST_SECRET");
  }
  place.secret = secret;
  return place;
}

/// The processes that will take part, where that is known before they meet; else 0.
int expected_processes(const Options& options, const Surroundings& surroundings) {
  return options.ranks != 0 ? options.ranks : surroundings.launcher_ranks;
}

int run_rank(const Options& options, const Plan& plan, const std::optional<LayoutPair>& layouts,
             std::optional<Place> place) {
  std::unique_ptr<Group> group;
  int rank = place ? place->rank : 0;
  try {
    group = place ? make_rendezvous_group(std::move(*place), options) : make_mpi_group(options);
    rank = group->rank();
    if (!layouts && group->size() < 2) {
      return complain("needs at least 2 ranks: a publisher and a receiver. Try --ranks 4, or mpirun -np 4.");
    }
    if (options.share_gpu) share_device(rank);
    std::optional<Roster> roster;
    try {
      if (layouts) roster.emplace(*layouts, options.fanout, group->size());
    } catch (const Error& error) {
      return rank == kPublisher ? complain(error.what()) : kUsageExit;
    }
    const auto benchmark =
        roster ? make_fanout(options, plan, *layouts, *roster, *group) : make_broadcast(options, plan, *group);
    return run(*benchmark, options, *group) ? 0 : 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "rank {}: {}\n", rank, error.what());
    std::fflush(stderr);
    if (group) group->fail(error.what());
    return kFailedExit;
  }
}

int start(int argc, char** argv) {
  const Surroundings surroundings = look_around();
  Options options;
  int exit_code = 0;
  const bool speaks = surroundings.launcher_rank == 0;
  if (!parse_options(argc, argv, speaks, options, exit_code)) {
    return speaks || exit_code == 0 ? exit_code : leave_quietly();
  }
  Plan plan;
  std::optional<LayoutPair> layouts;
  std::optional<Place> place;
  try {
    plan = make_plan(options, surroundings);
    if (options.by_layouts()) {
      layouts.emplace(options.fanout);
      const int processes = expected_processes(options, surroundings);
      if (processes != 0) Roster(*layouts, options.fanout, processes);
    }
    if (needs_device(options, plan)) require_machine(options, plan, probe_machine(kProbeTimeout));
    if (plan.start == Start::kJoin) place = place_by_hand(options);
  } catch (const Error& error) {
    return speaks ? complain(error.what()) : leave_quietly();
  }
  if (plan.start == Start::kHere) {
    const auto limit = std::chrono::milliseconds(static_cast<std::int64_t>(options.limit_seconds * 1000));
    place = launch(options.ranks, limit, exit_code);
    if (!place) return exit_code;
  }
  return run_rank(options, plan, layouts, std::move(place));
}

}  // namespace
}  // namespace sparsecast::perf

int main(int argc, char** argv) {
  try {
    return sparsecast::perf::start(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "sparsecast_perf: {}\n", error.what());
    return 3;
  }
}
