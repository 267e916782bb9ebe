// SPDX-License-Identifier: Apache-2.0

// The groups of a plan as MPI communicators. MPI makes a communicator of a group only by a call that waits for all of
// its members; so the ranks first notify one another, with a deadline, that they are about to make it.

#include "sparsecast/mpi_transport.hpp"
#include "sparsecast/sharded.hpp"

#ifdef SPARSECAST_HAVE_MPI

#include <algorithm>

#include "transport/mpi/mpi_operation.hpp"

namespace sparsecast {
namespace {

class MpiGroupHandle {
 public:
  MpiGroupHandle() = default;
  ~MpiGroupHandle() {
    if (handle_ != MPI_GROUP_NULL) MPI_Group_free(&handle_);
  }
  MpiGroupHandle(const MpiGroupHandle&) = delete;
  MpiGroupHandle& operator=(const MpiGroupHandle&) = delete;
  MPI_Group* put() noexcept { return &handle_; }
  MPI_Group get() const noexcept { return handle_; }

 private:
  MPI_Group handle_ = MPI_GROUP_NULL;
};

std::unique_ptr<Transport> open_group(MPI_Comm world, const MpiGroupHandle& all, const RouteGroup& group, int tag) {
  MpiGroupHandle members;
  check_mpi(MPI_Group_incl(all.get(), static_cast<int>(group.members.size()), group.members.data(), members.put()),
            "MPI_Group_incl");
  MPI_Comm communicator = MPI_COMM_NULL;
  check_mpi(MPI_Comm_create_group(world, members.get(), tag, &communicator), "MPI_Comm_create_group");
  auto transport = make_mpi_transport(&communicator);  // Takes a duplicate, with a deadline.
  MPI_Comm_free(&communicator);
  return transport;
}

}  // namespace

GroupOpener open_mpi_groups(const void* communicator) {
  require_running_mpi("mpi groups");
  return [communicator](ControlChannel& world, const FanoutPlan& plan, Deadline deadline) {
    const MPI_Comm parent = communicator == nullptr ? MPI_COMM_WORLD : *static_cast<const MPI_Comm*>(communicator);
    int size = 0;
    check_mpi(MPI_Comm_size(parent, &size), "MPI_Comm_size");
    if (size != world.size()) {
      throw Error(ErrorCode::kUsage, "the communicator and the world are not of one size", "mpi groups");
    }
    MpiGroupHandle all;
    check_mpi(MPI_Comm_group(parent, all.put()), "MPI_Comm_group");
    world.agree(0, 0, deadline);
    std::vector<std::unique_ptr<Transport>> open(plan.groups().size());
    for (std::size_t c = 0; c < open.size(); ++c) {
      const RouteGroup& group = plan.groups()[c];
      if (!std::ranges::binary_search(group.members, world.rank())) continue;
      open[c] = open_group(parent, all, group, static_cast<int>(c));
    }
    return open;
  };
}

}  // namespace sparsecast

#else

namespace sparsecast {

GroupOpener open_mpi_groups(const void*) {
  throw Error(ErrorCode::kUnsupported, "this build of the library has no MPI transport");
}

}  // namespace sparsecast

#endif
