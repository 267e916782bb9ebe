// SPDX-License-Identifier: Apache-2.0
#include "sparsecast_perf/wire.hpp"

#include "sparsecast_perf/pace.hpp"

namespace sparsecast::perf {

namespace {

std::unique_ptr<Wire> make_bare_wire(Carrier carrier, Group& group, const Options& options, int device) {
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

}  // namespace

std::unique_ptr<Wire> make_wire(Carrier carrier, Group& group, const Options& options, int device) {
  std::unique_ptr<Wire> wire = make_bare_wire(carrier, group, options, device);
  if (options.link_gbps == 0) return wire;
  // On one machine, encrypting and sending the dense weights to one receiver after the other would take longer than the
  // link that is modelled.
  std::unique_ptr<MemoryBroadcast> dense;
  if (carrier == Carrier::kTcp) dense = MemoryBroadcast::open(group);
  return make_paced_wire(std::move(wire), options.link_gbps, group.rank() == kPublisher, std::move(dense));
}

}  // namespace sparsecast::perf
