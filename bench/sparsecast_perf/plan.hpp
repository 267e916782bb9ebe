// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sparsecast_perf/machine.hpp"
#include "sparsecast_perf/options.hpp"

namespace sparsecast::perf {

/// How the ranks come into being.
enum class Start {
  kMpi,   ///< An MPI launcher started them.
  kHere,  ///< This program forks them.
  kJoin,  ///< By hand, one by one; this is one of them.
};

/// What of the environment and the build decides.
struct Surroundings {
  bool mpi_built = false;
  bool rendezvous_built = false;
  int launcher_ranks = 0;  ///< What an MPI launcher says in the environment; 0 without one.
  int launcher_rank = 0;
};
Surroundings look_around();

struct Plan {
  Start start = Start::kHere;
  Carrier transport = Carrier::kTcp;
};

/// Throws Error{kUsage | kUnsupported} for what cannot be started.
Plan make_plan(const Options& options, const Surroundings& surroundings);

/// True when the run asks for a device.
bool needs_device(const Options& options, const Plan& plan) noexcept;
/// Throws Error{kUnsupported | kUsage} that says what is missing for this run.
void require_machine(const Options& options, const Plan& plan, const Machine& machine);

/// The CUDA ordinal of a rank.
int device_of(const Options& options, int local_rank, std::size_t devices) noexcept;

/// Before NCCL is loaded in a rank of --share-gpu: NCCL refuses two ranks on one device unless they call themselves
/// different hosts, and can then use neither shared memory nor peer access. What the user has set stays.
void share_device(int rank);

}  // namespace sparsecast::perf
