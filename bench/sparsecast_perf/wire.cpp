#include "sparsecast_perf/wire.hpp"

namespace sparsecast::perf {

std::unique_ptr<Wire> make_wire(Carrier carrier, Group& group, const Options& options, int device) {
  switch (carrier) {
    case Carrier::kMpi:
      return make_mpi_wire();
    case Carrier::kNccl:
      return make_nccl_wire(group, options, device);
    case Carrier::kTcp:
      return make_tcp_wire(group);
  }
  throw Error(ErrorCode::kUsage, "no such transport");
}

}  // namespace sparsecast::perf
