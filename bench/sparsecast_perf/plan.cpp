// SPDX-License-Identifier: Apache-2.0
#include "sparsecast_perf/plan.hpp"

#include <fmt/format.h>

#include <cstdlib>

#include "sparsecast/error.hpp"
#include "sparsecast/mpi_transport.hpp"
#include "sparsecast/tcp_transport.hpp"

namespace sparsecast::perf {
namespace {

int number_in(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? 0 : std::atoi(text);
}

Start choose_start(const Options& options, const Surroundings& surroundings) {
  if (options.ranks == 0) {
    if (surroundings.mpi_built) return Start::kMpi;
    throw Error(ErrorCode::kUsage, surroundings.launcher_ranks > 1
                                       ? "this build has no MPI: start it without mpirun, with --ranks N"
                                       : "at least 2 ranks are needed: --ranks 4");
  }
  if (surroundings.launcher_ranks > 1) {
    throw Error(ErrorCode::kUsage, "mpirun has started the ranks already: leave --ranks out");
  }
  if (!surroundings.rendezvous_built) {
    throw Error(ErrorCode::kUnsupported,
                "--ranks needs the rendezvous, which this build lacks (SPARSECAST_RENDEZVOUS)");
  }
  return options.rank < 0 ? Start::kHere : Start::kJoin;
}

}  // namespace

Surroundings look_around() {
  Surroundings surroundings;
  surroundings.mpi_built = mpi_available();
  surroundings.rendezvous_built = rendezvous_available();
  constexpr const char* kLaunchers[][2] = {{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
                                           {"PMI_SIZE", "PMI_RANK"},
                                           {"MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"}};
  for (const auto& [size, rank] : kLaunchers) {
    if (surroundings.launcher_ranks != 0) break;
    surroundings.launcher_ranks = number_in(size);
    surroundings.launcher_rank = number_in(rank);
  }
  return surroundings;
}

Plan make_plan(const Options& options, const Surroundings& surroundings) {
  Plan plan;
  plan.start = choose_start(options, surroundings);
  if (options.transport) {
    plan.transport = *options.transport;
  } else if (plan.start == Start::kMpi) {
    plan.transport = Carrier::kMpi;
  } else {
    plan.transport = options.backend == Backend::kCuda ? Carrier::kNccl : Carrier::kTcp;
  }
  if (options.share_gpu && plan.transport != Carrier::kNccl) {
    throw Error(ErrorCode::kUsage, "--share-gpu is for --transport nccl; with others, ranks may share a device anyway");
  }
  if (options.link_gbps != 0 && plan.transport == Carrier::kNccl) {
    throw Error(ErrorCode::kUsage,
                "--link-gbps paces what the host sends, with --transport mpi or tcp; NCCL sends from the device");
  }
  if (plan.start == Start::kMpi && plan.transport == Carrier::kTcp && !surroundings.rendezvous_built) {
    throw Error(ErrorCode::kUnsupported,
                "--transport tcp needs the rendezvous, which this build lacks (SPARSECAST_RENDEZVOUS)");
  }
  return plan;
}

bool needs_device(const Options& options, const Plan& plan) noexcept {
  return options.backend == Backend::kCuda || plan.transport == Carrier::kNccl;
}

void require_machine(const Options& options, const Plan& plan, const Machine& machine) {
  if (!needs_device(options, plan)) return;
  const bool cuda = options.backend == Backend::kCuda;
  const char* const who = cuda ? "--backend cuda" : "--transport nccl";
  if (cuda && !machine.device_backend) {
    throw Error(ErrorCode::kUnsupported, "--backend cuda: this build has no device backend (SPARSECAST_CUDA)");
  }
  if (machine.survey.devices.empty()) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{} needs a CUDA device, and this machine shows none: {}", who, machine.survey.why_none));
  }
  if (plan.transport != Carrier::kNccl) return;
  if (machine.nccl_version == 0) {
    throw Error(ErrorCode::kUnsupported, fmt::format("--transport nccl: {}", machine.why_no_nccl));
  }
  const auto devices = machine.survey.devices.size();
  if (plan.start == Start::kHere && !options.share_gpu && static_cast<std::size_t>(options.ranks) > devices) {
    throw Error(ErrorCode::kUsage,
                fmt::format("--transport nccl: {} ranks, but {} device(s); --share-gpu puts all on one, to show "
                            "correctness, not speed",
                            options.ranks, devices));
  }
}

int device_of(const Options& options, int local_rank, std::size_t devices) noexcept {
  return options.share_gpu || devices == 0 ? 0 : local_rank % static_cast<int>(devices);
}

void share_device(int rank) {
  ::setenv("NCCL_HOSTID", fmt::format("sparsecast_perf-rank-{}", rank).c_str(), 1);
  constexpr const char* kSettings[][2] = {
      {"NCCL_NET", "Socket"},    {"NCCL_SOCKET_IFNAME", "lo"}, {"NCCL_IB_DISABLE", "1"},  {"NCCL_P2P_DISABLE", "1"},
      {"NCCL_SHM_DISABLE", "1"}, {"NCCL_MNNVL_ENABLE", "0"},   {"NCCL_NVLS_ENABLE", "0"}, {"NCCL_MAX_CTAS", "4"}};
  for (const auto& [name, value] : kSettings) ::setenv(name, value, 0);
}

}  // namespace sparsecast::perf
