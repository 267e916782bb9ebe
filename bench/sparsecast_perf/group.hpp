// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.hpp"
#include "sparsecast/control_channel.hpp"
#include "sparsecast_perf/launch.hpp"
#include "sparsecast_perf/options.hpp"

namespace sparsecast::perf {

inline constexpr int kPublisher = 0;

/// The ranks of a run, apart from the transport that is measured. Every call but fail() is collective; without MPI it
/// ends by the run's limit, and throws Error as soon as a rank is gone.
class Group {
 public:
  virtual ~Group() = default;
  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;
  /// Among the ranks of this machine.
  virtual int local_rank() const noexcept = 0;
  virtual void barrier() = 0;
  virtual std::vector<std::uint64_t> all_gather(std::uint64_t own) = 0;
  /// What the publisher brings, on every rank; `own` is ignored elsewhere. At most 1 MiB without MPI.
  virtual Bytes broadcast(Bytes own) = 0;
  /// A control channel of all ranks that belongs to the caller.
  virtual std::shared_ptr<ControlChannel> open_control() = 0;
  /// Tells the others that this rank gives up; under MPI, ends all of them.
  virtual void fail(const std::string& reason) noexcept = 0;

  double slowest(double seconds);
  /// Of `work`, which is collective: barrier to barrier, on the slowest rank.
  template <class Work>
  double time_of_all(const Work& work) {
    barrier();
    return slowest(bench::timed([&] {
      work();
      barrier();
    }));
  }
  std::uint64_t largest(std::uint64_t value);
  std::uint64_t sum(std::uint64_t value);
};

/// MPI_COMM_WORLD, from MPI_Init to MPI_Finalize. Throws Error{kUnsupported} in a build without MPI.
std::unique_ptr<Group> make_mpi_group(const Options& options);
/// The ranks that meet at `place`.
std::unique_ptr<Group> make_rendezvous_group(Place place, const Options& options);

}  // namespace sparsecast::perf
